"""`n_classes="auto"`: the number is estimated from the regions, kept, and said; small groups are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.discovery import learning as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import RunError
from anomalyncd.run.tables import read_csv
from scenes import GOOD, KINDS, TINY, content, fit, images, regions, scene, write_scenes


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


def estimate(run: Path) -> dict[str, object]:
    return dict(json.loads((run / "count.json").read_text()))


@pytest.mark.parametrize("given", ["masks", "maps"])
def test_the_number_is_found_kept_and_not_estimated_again(
    given: str, line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    model = fit(line, run, given, "auto", most_classes=6)
    found = estimate(run)
    assert found["normal"] == 1 and model.classes_.tolist() == list(range(int(found["count"]) + 1))  # type: ignore[call-overload]
    assert len(found["answers"]) == 4 and model.model_.n_region_classes >= 2  # type: ignore[arg-type]
    assert (model.labels_[: KINDS.count(GOOD)] == 0).all() and (model.labels_[KINDS.count(GOOD) :] > 0).all()
    before = content(run)
    monkeypatch.setattr(module, "estimate_count", lambda *_, **__: pytest.fail("estimated again"))
    again = fit(line, run, given, "auto", most_classes=6)
    assert again.labels_.tolist() == model.labels_.tolist() and content(run) == before
    loaded = AnomalyNCD.load(run)
    assert loaded.n_classes == "auto" and loaded.classes_.tolist() == model.classes_.tolist()


def test_names_and_order_of_files_have_no_say(line: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(len(KINDS))
    for new, old in enumerate(order):
        for part, ending in (("images", "png"), ("masks", "png")):
            (tmp_path / part).mkdir(exist_ok=True)
            source = line / part / f"{old:03d}.{ending}"
            if source.exists():
                shutil.copy(source, tmp_path / part / f"{new:03d}.{ending}")
    one, other = (
        fit(line, tmp_path / "one", "masks", "auto", most_classes=5),
        fit(tmp_path, tmp_path / "two", "masks", "auto", most_classes=5),
    )
    assert estimate(tmp_path / "one") == estimate(tmp_path / "two")
    assert other.labels_.tolist() == one.labels_[order].tolist()


@pytest.mark.parametrize("n_defects", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("has_normal", [True, False])
def test_few_regions(n_defects: int, has_normal: bool) -> None:
    rng = np.random.default_rng(0)
    scenes = [scene(kind, rng) for kind in [0] * n_defects + ([GOOD] * 2 if has_normal or not n_defects else [])]
    model = AnomalyNCD("auto", has_normal=has_normal, **TINY).fit([s[0] for s in scenes], masks=[s[1] for s in scenes])
    if has_normal:
        assert model.labels_.tolist() == [1] * n_defects + [0] * 2
    else:
        assert set(model.labels_.tolist()) == {1}


def test_a_number_that_is_given_is_not_estimated(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(line, run, "masks", "auto", most_classes=3)
    fit(line, run, "masks", 4)
    assert not (run / "count.json").exists() and DiscoveryModel.read(run).classes.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("n_images", [2])
def test_the_preset_paper_with_hardly_any_region(n_images: int) -> None:
    rng = np.random.default_rng(0)
    scenes = [scene(kind, rng) for kind in [0] * n_images + [GOOD] * 3]
    settings = {
        **TINY,
        "preset": "paper",
        "crop": {"size": 224},
        "learn": {"epochs": 1, "bank_views": 2},
        "features": {},
    }
    model = AnomalyNCD("auto", **settings).fit([s[0] for s in scenes], maps=[s[2] for s in scenes])
    assert len(model.labels_) == n_images + 3


def test_a_rare_kind_is_listed(tmp_path: Path) -> None:
    """Two regions of a kind that no class was made for."""
    folder = write_scenes(tmp_path / "line", [GOOD] * 2 + [0] * 12 + [1] * 12 + [3] * 2, seed=0)
    run = tmp_path / "run"
    fit(folder, run, "masks", 3)
    groups = read_csv(run / "groups.csv")
    assert list(groups.columns) == ["group", "image", "region", "label", "class_name"]
    rare = groups[groups["image"].isin(["026.png", "027.png"])]
    assert len(rare) == 2 and len(set(rare["group"])) == 1
    table = regions(run).set_index(["image", "region"])
    for row in groups.itertuples():
        assert table.loc[(row.image, row.region), "label"] == row.label


def test_none_is_listed_where_there_is_none(line: Path, tmp_path: Path) -> None:
    fit(write_scenes(tmp_path / "few", [GOOD, 0, 0, 1], seed=0), tmp_path / "run", "masks", 2)
    groups = read_csv(tmp_path / "run" / "groups.csv")
    assert len(groups) == 0 and "group" in groups


def test_corrections_outlive_the_same_call(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(line, run, "masks", "auto", most_classes=4)
    row = next(r for r in regions(run).itertuples() if r.label == 1)
    key = (row.image, row.region)
    relearn(run, {key: 9}, [key], {9: "odd"})
    fit(line, run, "masks", "auto", most_classes=4)
    assert images(run).set_index("image").loc[row.image, "class_name"] == "odd"
    with pytest.raises(RunError, match=r"names of classes \(odd\), classes that were corrected"):
        fit(line, run, "masks", "auto", most_classes=5)


def test_the_weakest_kind_is_normal_however_many_regions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_normal_kind", lambda *given: None)
    kinds = np.array([0, 1, 1, 1, 1, 1, 2])
    renumbered: list[list[int]] = []
    classifier = SimpleNamespace(
        cosines=lambda parts: np.eye(3)[kinds], n_base=0, renumber=lambda order: renumbered.append(order.tolist())
    )
    strength = np.where(kinds == 1, 0.3, 0.9)  # together more than one of the others
    novel = SimpleNamespace(parts={}, regions=[SimpleNamespace(score=score) for score in strength])
    model = SimpleNamespace(classifier=classifier, n_region_classes=3)
    module._put_normal_first(model, novel, np.arange(7))  # type: ignore[arg-type]
    assert renumbered == [[1, 0, 2]]
