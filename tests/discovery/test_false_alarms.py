"""Normal or defect, from maps to labels: weak defects, normal maps, and a line that moves without learning again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.discovery import fit as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import DataError
from anomalyncd.progress import Silent
from anomalyncd.regions.extract import Extractor
from command import call
from scenes import COLOURS, SIZES, TINY, content

NORMAL, WEAK, STRONG = 0.10, 0.35, 0.90
Pictures = tuple[list[np.ndarray], list[np.ndarray]]
SETTINGS: dict[str, Any] = {**TINY, "learn": {"epochs": 0}, "features": {"views": 1}}


def picture(kind: int | None, level: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Image with a defect of a kind, or none, and a map whose top is at a level."""
    image = rng.integers(90, 110, (64, 64, 3), dtype=np.uint8)
    height, width = SIZES[0 if kind is None else kind]
    y, x = rng.integers(4, 24, 2)
    spot = np.zeros((64, 64), np.float32)
    spot[y : y + height, x : x + width] = 1
    if kind is not None:
        image[spot > 0] = np.clip(np.array(COLOURS[kind]) + rng.integers(-10, 10, (height * width, 3)), 0, 255)
    soft = cv2.GaussianBlur(spot, (5, 5), 0) * rng.normal(level, 0.015)
    return image, np.maximum(soft, rng.uniform(0, 0.05, (64, 64))).astype(np.float32)


def pictures(kinds: Sequence[int | None], levels: Sequence[float], seed: int) -> Pictures:
    rng = np.random.default_rng(seed)
    pairs = [picture(kind, level, rng) for kind, level in zip(kinds, levels, strict=True)]
    return [image for image, _ in pairs], [anomaly_map for _, anomaly_map in pairs]


@pytest.fixture(scope="module")
def line() -> Pictures:
    """12 normal images, 8 weak defects of one kind, 8 strong ones of another."""
    return pictures([None] * 12 + [1] * 8 + [2] * 8, [NORMAL] * 12 + [WEAK] * 8 + [STRONG] * 8, seed=0)


@pytest.fixture(scope="module")
def normal() -> Pictures:
    return pictures([None] * 20, [NORMAL] * 20, seed=1)


class Heard(Silent):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def check_no_weak_defect_is_normal(model: AnomalyNCD) -> None:
    labels = model.labels_
    assert (labels[12:] > 0).all(), "weak defects are defects"
    assert (labels[:12] == 0).sum() >= 11, "a false alarm in 12 at most"
    assert len(set(labels[12:20])) == len(set(labels[20:])) == 1 and labels[12] != labels[20]
    chance = model.images_["false_alarm"].to_numpy()
    assert np.array_equal(chance <= model.model_.config.detect.false_alarms, labels > 0)
    assert model.regions_["false_alarm"].between(0, 1).all()


@pytest.mark.parametrize("given", ["maps alone", "images and maps", "nothing"])
def test_no_weak_defect_is_called_normal(given: str, line: Pictures, normal: Pictures) -> None:
    images, maps = line
    more: dict[str, Any] = {} if given == "nothing" else {"normal_maps": normal[1]}
    if given == "images and maps":
        more["normal"] = normal[0]
    model = AnomalyNCD(3, **SETTINGS).fit(images, maps=maps, **more)
    check_no_weak_defect_is_normal(model)
    known = model.model_.false_alarms
    assert known is not None
    assert known.source == ("mixture" if given == "nothing" else "normal images")
    assert (known.looks is not None) == (given == "images and maps"), "maps alone have no looks"
    assert known.scores.mean == pytest.approx(NORMAL, abs=0.03)
    predicted = model.predict(images, maps=maps)
    assert predicted.labels.tolist() == model.labels_.tolist()


def test_a_defect_among_the_normal_images_does_not_hide_others(line: Pictures, normal: Pictures) -> None:
    images, maps = pictures([1, 2], [WEAK, STRONG], seed=2)
    model = AnomalyNCD(3, **SETTINGS).fit(
        line[0], maps=line[1], normal=[*normal[0], *images], normal_maps=[*normal[1], *maps]
    )
    check_no_weak_defect_is_normal(model)
    assert model.model_.false_alarms is not None and model.model_.false_alarms.scores.count == 20


def test_too_few_normal_maps_are_said(line: Pictures, normal: Pictures) -> None:
    heard = Heard()
    model = AnomalyNCD(3, **SETTINGS, progress=heard).fit(line[0], maps=line[1], normal_maps=normal[1][:4])
    assert any("4 normal images are too few" in warning for warning in heard.warnings)
    assert model.model_.false_alarms is not None and model.model_.false_alarms.source == "mixture"
    check_no_weak_defect_is_normal(model)


def test_where_nothing_tells_every_region_is_a_defect(line: Pictures) -> None:
    heard, defects = Heard(), slice(20, 28)
    model = AnomalyNCD(2, **SETTINGS, progress=heard).fit(line[0][defects], maps=line[1][defects])
    assert any("no two groups of images" in warning for warning in heard.warnings)
    assert model.model_.false_alarms is None
    assert np.array_equal(model.labels_ > 0, model.images_["n_regions"] > 0) and (model.labels_ > 0).any()


def test_where_scores_do_not_tell_a_kind_that_scores_like_silence_is_normal() -> None:
    """Scores without a gap: images where nothing is found, false alarms that look alike, and two kinds of defect."""
    kinds = [None] * 8 + [0] * 10 + [1] * 10 + [2] * 10
    levels = [0.0] * 8 + [*np.linspace(0.03, 0.3, 10)] + [*np.linspace(0.2, 0.6, 10)] + [*np.linspace(0.3, 0.9, 10)]
    images, maps = pictures(kinds, levels, seed=4)
    rng = np.random.default_rng(4)
    maps[:8] = [rng.uniform(0, level, (64, 64)).astype(np.float32) for level in np.linspace(0.05, 0.25, 8)]
    heard = Heard()
    model = AnomalyNCD(3, **SETTINGS, progress=heard).fit(images, maps=maps)
    assert any("no two groups of images" in warning for warning in heard.warnings)
    assert model.model_.false_alarms is None and model.model_.learns_normal
    assert (model.labels_[:18] == 0).all() and len(set(model.labels_[18:28])) == len(set(model.labels_[28:])) == 1
    assert 0 < model.labels_[18] != model.labels_[28] > 0
    assert model.predict(images, maps=maps).labels.tolist() == model.labels_.tolist()


@pytest.mark.parametrize("n_normal", [5, 6, 8])
def test_few_normal_images_among_many_defects(n_normal: int) -> None:
    """So few that their highest values alone would tell nothing."""
    kinds, levels = [None] * n_normal + [1] * 10 + [2] * 10, [NORMAL] * n_normal + [STRONG] * 20
    images, maps = pictures(kinds, levels, seed=3)
    model = AnomalyNCD(3, **SETTINGS).fit(images, maps=maps)
    assert (model.labels_[n_normal:] > 0).all() and (model.labels_[:n_normal] == 0).all()


def write(folder: Path, given: Pictures) -> Path:
    for name in ("images", "maps"):
        (folder / name).mkdir(parents=True)
    for index, (image, anomaly_map) in enumerate(zip(*given, strict=True)):
        cv2.imwrite(str(folder / f"images/{index:03d}.png"), image)
        np.save(folder / f"maps/{index:03d}.npy", anomaly_map)
    return folder


@pytest.mark.parametrize("with_normal", [True, False])
def test_another_sensitivity_labels_anew_and_learns_nothing_again(
    with_normal: bool, line: Pictures, normal: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = [*np.linspace(0.08, 0.14, 12), *np.linspace(0.11, WEAK, 8), *[STRONG] * 8]  # some near any line
    images = write(tmp_path / "line", pictures([None] * 12 + [1] * 8 + [2] * 8, levels, seed=0))
    more: list[Any] = []
    if with_normal:
        own = write(tmp_path / "good", normal)
        more = ["--normal", own / "images", "--normal-maps", own / "maps"]
    settings = ["--backbone", "tiny", "--set", "model.image_size=224", "--set", "features.views=1", "--quiet"]

    def discover(run: str, *options: Any) -> Path:
        call("discover", images / "images", "--maps", images / "maps", "--classes", 3, "--out", tmp_path / run,
             *more, *settings, *options)  # fmt: skip
        return tmp_path / run

    def defects(run: Path) -> int:
        return int((np.array(json.loads((run / "normal.json").read_text())["labels"]) > 0).sum())

    fresh = {rate: discover(f"fresh {rate}", "--sensitivity", rate) for rate in (0.001, 0.2)}
    run = discover("run")
    stages = (run / "stages.json").read_bytes()
    monkeypatch.setattr(Extractor, "__call__", lambda *_, **__: pytest.fail("looked for regions again"))
    monkeypatch.setattr(Extractor, "prepare", lambda *_, **__: pytest.fail("looked for regions again"))
    monkeypatch.setattr(module, "learn_classes", lambda *_, **__: pytest.fail("learned again"))
    monkeypatch.setattr(module, "map_ranges", lambda *_, **__: pytest.fail("read the maps again"))
    for rate, other in fresh.items():
        discover("run", "--sensitivity", rate)
        assert (run / "stages.json").read_bytes() == stages
        mine, theirs = content(run), content(other)
        differs = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
        differs.discard("report.html")  # it names the folder
        assert not differs, "as a fresh run with that sensitivity"
        assert DiscoveryModel.read(run).config.detect.false_alarms == rate
    assert defects(fresh[0.001]) < defects(fresh[0.2])


@pytest.mark.parametrize("learn", [{"normal": "class"}, {"normal": "calibrated"}])
def test_another_way_to_tell_normal_ones_is_as_in_a_fresh_run(
    learn: dict[str, Any], line: Pictures, tmp_path: Path
) -> None:
    """Regions that are cut out where none is stable depend on it."""
    images = write(tmp_path / "line", line)
    given = {"maps": images / "maps"}
    other = {"normal": "class" if learn["normal"] == "calibrated" else "calibrated", "epochs": 0}
    settings = {**SETTINGS, "binarize": {"method": "fixed", "fixed_threshold": 0.6}}
    for run, ways in (("run", (other, {**learn, "epochs": 0})), ("fresh", ({**learn, "epochs": 0},))):
        for way in ways:
            AnomalyNCD(3, **{**settings, "learn": way}).fit(images / "images", **given, run=tmp_path / run)
    assert content(tmp_path / "run") == content(tmp_path / "fresh")


def test_a_class_that_ends_empty_is_said(monkeypatch: pytest.MonkeyPatch, line: Pictures) -> None:
    heard = Heard()
    model = AnomalyNCD(3, **SETTINGS, progress=heard).fit(line[0], maps=line[1])
    assert not any("of this class" in warning for warning in heard.warnings)
    name = model.model_.names[2]
    rows = [label if label != 2 else 1 for label in model.labels_.tolist()]
    run = type("Result", (), {"labels": np.array(rows), "regions": model.regions_})
    module._warn_of_results(model.model_, run, heard)  # type: ignore[arg-type]
    assert f"{name}: no image is of this class in the end." in heard.warnings[-1] and "--classes" in heard.warnings[-1]


def test_normal_maps_that_have_no_place(line: Pictures, normal: Pictures) -> None:
    images, maps = line
    with pytest.raises(DataError, match="normal images need maps too"):
        AnomalyNCD(3, **SETTINGS).fit(images, maps=maps, normal=normal[0])
    masks = [anomaly_map > 0.2 for anomaly_map in maps]
    with pytest.raises(DataError, match="they go with maps only"):
        AnomalyNCD(3, **SETTINGS).fit(images, masks=masks, normal_maps=normal[1])


def test_bad_normal_maps_are_left_out(line: Pictures, normal: Pictures, tmp_path: Path) -> None:
    (tmp_path / "broken.npy").write_bytes(b"no map")
    holes = np.full((64, 64), np.nan, np.float32)
    model = AnomalyNCD(3, **SETTINGS).fit(
        line[0], maps=line[1], normal_maps=[*normal[1], tmp_path / "broken.npy", holes]
    )
    check_no_weak_defect_is_normal(model)
    assert model.model_.false_alarms is not None and model.model_.false_alarms.scores.count == 20


@pytest.mark.parametrize("given", [True, False], ids=["normal maps", "none"])
def test_a_defect_whose_map_is_infinite_is_a_defect_of_its_kind(
    line: Pictures, normal: Pictures, tmp_path: Path, given: bool
) -> None:
    images, maps = line[0], [values.copy() for values in line[1]]
    for place in (12, 20, 21):  # one weak and two strong defects; in the last a single pixel
        top = maps[place] > maps[place].max() * 0.7
        maps[place][top] = np.inf if place < 21 else maps[place][top]
    maps[21][np.unravel_index(maps[21].argmax(), (64, 64))] = np.inf
    maps[0][0, 0] = -np.inf
    more: dict[str, Any] = {"normal_maps": normal[1]} if given else {}
    model = AnomalyNCD(3, **SETTINGS).fit(images, maps=maps, run=tmp_path / "run", **more)
    check_no_weak_defect_is_normal(model)
    assert model.images_["false_alarm"][[12, 20, 21]].tolist() == [0, 0, 0]
    assert np.isfinite(model.regions_["score"]).all() and (model.regions_["score"] <= 1).all()
    expected = AnomalyNCD(3, **SETTINGS).fit(images, maps=line[1], **more)
    assert model.labels_.tolist() == expected.labels_.tolist()
    assert model.predict(images, maps=maps).labels.tolist() == model.labels_.tolist()
    for name in ("normal.json", "range.json"):  # strictly JSON
        json.loads((tmp_path / "run" / name).read_text(), parse_constant=pytest.fail)
    assert json.loads((tmp_path / "run" / "normal.json").read_text())["scores"].count(None) == 3
    before = content(tmp_path / "run", "*.csv", "*.json", "model.safetensors")
    again = AnomalyNCD(3, **SETTINGS).fit(images, maps=maps, run=tmp_path / "run", **more)
    assert again.labels_.tolist() == model.labels_.tolist()
    assert content(tmp_path / "run", "*.csv", "*.json", "model.safetensors") == before


def test_images_whose_map_is_nothing_but_infinity(line: Pictures, normal: Pictures) -> None:
    model = AnomalyNCD(3, **SETTINGS).fit(line[0], maps=line[1], normal_maps=normal[1])
    maps = [np.full((64, 64), value, np.float32) for value in (np.inf, -np.inf)]
    found = model.predict(line[0][:2], maps=maps)
    assert found.labels[0] != 0 and found.labels[1] == 0
    assert found.regions["image"].nunique() == 1
