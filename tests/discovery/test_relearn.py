"""Corrections of a person: obeyed, learned from, kept, and nothing else is disturbed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.demo import iter_line
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import Move, relearn
from anomalyncd.errors import DataError, RunError
from anomalyncd.run.finished import read_corrections
from anomalyncd.run.folder import RunFolder
from scenes import GOOD, KINDS, TINY, content, fit, images, regions, scene, write_scenes

Key = tuple[str, int]
TABLES = ("regions.csv", "images.csv", "classes.json", "corrections.csv", "manifest.csv")


on_masks = pytest.mark.parametrize("given", ["masks"], indirect=True)  # where maps would show nothing else


def by_key(run: Path) -> dict[Key, int]:
    table = regions(run)
    return dict(zip(zip(table["image"], table["region"], strict=True), table["label"].tolist(), strict=True))


def of_class(run: Path, label: int) -> list[Key]:
    return [key for key, own in by_key(run).items() if own == label]


def check_whole(run: Path) -> None:
    """What holds for every run: tables, names and model fit together."""
    model, table, image_table = DiscoveryModel.read(run), regions(run), images(run)
    classes = model.classes.tolist()
    assert classes == sorted(set(classes)) and list(model.names) == classes
    assert {int(k): name for k, name in json.loads((run / "classes.json").read_text()).items()} == model.names
    assert [name for name in image_table if name.startswith("p_")] == [f"p_{k}" for k in classes]
    assert set(table["label"]) <= {*classes, -1}
    for rows in (table, image_table):
        assert rows["class_name"].tolist() == [model.names.get(k, "unknown") for k in rows["label"]]
    assert model.classifier is not None and model.classifier.n_classes == len(model.learned_classes)
    assert image_table["n_regions"].sum() == len(table) and not list(run.glob("commit*"))
    assert all((run / crop).exists() for crop in table["crop"])
    AnomalyNCD.load(run)


def check_moves(run: Path, before: dict[Key, int], moves: list[Move]) -> None:
    after = by_key(run)
    expected = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    assert {(move.image, move.region): (move.before, move.after) for move in moves} == expected


def test_without_changes_nothing_changes(run: Path) -> None:
    before, labels = by_key(run), images(run)["label"].tolist()
    for _ in range(3):
        assert relearn(run, {}, (), {}) == []
        assert by_key(run) == before and images(run)["label"].tolist() == labels
    check_whole(run)
    assert read_corrections(run) == {}


@on_masks
def test_a_name_alone(run: Path) -> None:
    before, probabilities = by_key(run), regions(run)["probability"].tolist()
    assert relearn(run, {}, (), {2: "Riß, 3 µm"}) == []
    assert by_key(run) == before
    np.testing.assert_allclose(regions(run)["probability"], probabilities, atol=0.05)
    assert AnomalyNCD.load(run).model_.names[2] == "Riß, 3 µm"
    assert set(regions(run).query("label == 2")["class_name"]) == {"Riß, 3 µm"}
    relearn(run, {of_class(run, 1)[0]: 3}, [of_class(run, 1)[0]], {})
    assert DiscoveryModel.read(run).names[2] == "Riß, 3 µm", "names stay"
    check_whole(run)


def test_move_one_region(run: Path, line: Path, given: str) -> None:
    before, key = by_key(run), of_class(run, 1)[0]
    moves = relearn(run, {key: 3}, [key], {})
    after = by_key(run)
    assert after[key] == 3 and read_corrections(run) == {key: 3}
    check_moves(run, before, moves)
    assert sum(before[k] == after[k] for k in before) >= len(before) - 2, "the others stay"
    row = images(run).set_index("image").loc[key[0]]
    assert row["label"] == 3 and row["p_3"] == 1
    check_whole(run)


def test_merge(run: Path, line: Path, given: str) -> None:
    before = by_key(run)
    moves = relearn(run, dict.fromkeys(of_class(run, 2), 1), (), {1: "both"})
    after = by_key(run)
    assert after == {key: 1 if label == 2 else label for key, label in before.items()}
    check_moves(run, before, moves)
    model = DiscoveryModel.read(run)
    assert model.classes.tolist() == [0, 1, 3] and model.names == {0: "normal", 1: "both", 3: "class 3"}
    check_whole(run)
    found = AnomalyNCD.load(run).predict(line / "images", **{given: line / given})
    assert found.labels.tolist() == images(run)["label"].tolist() and found.probabilities.shape[1] == 3


def test_split(run: Path, line: Path, given: str) -> None:
    """Two kinds that were merged are told apart again, and have another number."""
    before, first = by_key(run), of_class(run, 1)
    relearn(run, dict.fromkeys(of_class(run, 2), 1), (), {})
    moves = relearn(run, dict.fromkeys(first, 7), (), {7: "apart"})
    after = by_key(run)
    assert after == {key: 7 if label == 1 else 1 if label == 2 else label for key, label in before.items()}
    assert len(moves) == len(first) and DiscoveryModel.read(run).classes.tolist() == [0, 1, 3, 7]
    check_whole(run)
    found = AnomalyNCD.load(run).predict(line / "images", **{given: line / given})
    assert found.labels.tolist() == images(run)["label"].tolist()


def test_false_alarms_one_by_one(run: Path, line: Path, given: str) -> None:
    """A person calls some of a class false alarms: the rest of it follows, and new images of the kind are normal."""
    before, keys = by_key(run), of_class(run, 3)
    relearn(run, dict.fromkeys(keys[:3], 0), keys[:3], {})
    after = by_key(run)
    assert {after[key] for key in keys[:3]} == {0} and set(read_corrections(run)) == set(keys[:3])
    assert Counter(after.values())[1] == Counter(before.values())[1]
    assert DiscoveryModel.read(run).learns_normal
    check_whole(run)
    all_of_it = of_class(run, 3)
    relearn(run, dict.fromkeys(all_of_it, 0), all_of_it, {})
    assert DiscoveryModel.read(run).classes.tolist() == [0, 1, 2], "a class without regions is gone"
    model, rng = AnomalyNCD.load(run), np.random.default_rng(9)
    kind = next(
        k
        for k, label in zip(KINDS, [before.get((f"{i:03d}.png", 0)) for i in range(len(KINDS))], strict=True)
        if label == 3
    )
    new = [scene(kind, rng) for _ in range(4)]
    found = model.predict([image for image, _, _ in new], masks=[mask for _, mask, _ in new])
    assert set(found.labels.tolist()) == {0}
    check_whole(run)


def test_a_whole_class_merged_into_normal(run: Path, line: Path, given: str) -> None:
    """As the review page does it: no region is placed by itself."""
    before = by_key(run)
    relearn(run, dict.fromkeys(of_class(run, 2), 0), (), {})
    assert by_key(run) == {key: 0 if label == 2 else label for key, label in before.items()}
    assert DiscoveryModel.read(run).classes.tolist() == [0, 1, 3]
    check_whole(run)
    found = AnomalyNCD.load(run).predict(line / "images", **{given: line / given})
    assert found.labels.tolist() == images(run)["label"].tolist()


@pytest.mark.parametrize("fixed", [False, True])
def test_everything_is_a_false_alarm(run: Path, fixed: bool) -> None:
    keys = list(by_key(run))
    relearn(run, dict.fromkeys(keys, 0), keys if fixed else (), {})
    assert set(by_key(run).values()) == {0} and set(images(run)["label"]) == {0}
    assert DiscoveryModel.read(run).classes.tolist() == [0]
    check_whole(run)
    relearn(run, {keys[0]: 4}, keys[:1], {4: "one after all"})
    assert by_key(run)[keys[0]] == 4
    check_whole(run)


def test_corrections_survive(run: Path, line: Path, given: str) -> None:
    """… being learned again, and the same `discover` again, which reads all that is there."""
    one, other = of_class(run, 1)[0], of_class(run, 2)[0]
    relearn(run, {one: 3}, [one], {1: "dent"})
    relearn(run, {other: 0}, [other], {3: "hole"})
    assert read_corrections(run) == {one: 3, other: 0}
    relearn(run, {}, (), {})
    after, names = by_key(run), DiscoveryModel.read(run).names
    assert (after[one], after[other]) == (3, 0) and (names[1], names[3]) == ("dent", "hole")
    before = content(run)
    model = fit(line, run, given)
    assert by_key(run) == after and model.model_.names == names
    assert model.labels_.tolist() == images(run)["label"].tolist()
    changed = {name for name, data in content(run).items() if data != before.get(name)}
    assert not changed & {*TABLES} - {"manifest.csv"}, changed
    assert read_corrections(run) == {one: 3, other: 0}


@on_masks
def test_a_correction_can_be_corrected(run: Path) -> None:
    before, key = by_key(run), of_class(run, 1)[0]
    relearn(run, {key: 3}, [key], {})
    relearn(run, {key: 1}, [key], {})
    after = by_key(run)
    assert after[key] == 1 and read_corrections(run) == {key: 1}
    assert sum(before[k] == after[k] for k in before) >= len(before) - 2, "what had followed may stay"


@on_masks
def test_predict_agrees_with_the_tables_afterwards(run: Path, line: Path, given: str) -> None:
    """But for what a person placed against all looks."""
    key = of_class(run, 1)[0]
    relearn(run, {key: 3}, [key], {})
    found = AnomalyNCD.load(run).predict(line / "images", **{given: line / given})
    same = found.labels == images(run)["label"].to_numpy()
    assert same[images(run)["image"] != key[0]].all() and (found.labels >= 0).all()


@pytest.mark.parametrize("at", ["before", "after"])
def test_killed_in_the_middle(run: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(self: RunFolder) -> None:
        if (self.path / "commit").is_dir() or at == "before":
            raise Killed

    before, old = content(run, *TABLES, "model.safetensors"), by_key(run)
    key = of_class(run, 1)[0]
    real = RunFolder.commit
    with monkeypatch.context() as patch:
        if at == "before":
            patch.setattr(RunFolder, "commit", lambda self, files: die(self))
        else:
            patch.setattr(RunFolder, "_finish_commit", die)
        with pytest.raises(Killed):
            relearn(run, {key: 3}, [key], {1: "dent"})
    assert RunFolder.commit is real
    assert content(run, *TABLES, "model.safetensors") == before
    model = AnomalyNCD.load(run)  # reading finishes what was decided
    expected = {**old, key: 3} if at == "after" else old
    assert {k: v for k, v in by_key(run).items() if k == key} == {key: expected[key]}
    assert model.model_.names[1] == ("dent" if at == "after" else "class 1")
    check_whole(run)


@on_masks
def test_wrong_wishes_change_nothing(run: Path) -> None:
    before = content(run)
    with pytest.raises(DataError, match=r"there is no region 9 of image '000\.png'"):
        relearn(run, {("000.png", 9): 1}, (), {})
    with pytest.raises(DataError, match="no region 0 of image 'nothing'"):
        relearn(run, {}, [("nothing", 0)], {})
    with pytest.raises(DataError, match="a class of 0 or more"):
        relearn(run, {of_class(run, 1)[0]: -1}, (), {})
    assert content(run) == before


@on_masks
def test_tables_that_do_not_fit_what_is_stored(run: Path) -> None:
    table = (run / "regions.csv").read_text().splitlines(keepends=True)
    (run / "regions.csv").write_text("".join(table[:-1]))
    with pytest.raises(RunError, match=r"regions\.csv does not fit .* Call the same `discover` again"):
        relearn(run, {}, (), {})


def test_a_run_without_any_region(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "line", [GOOD, GOOD, 0], seed=0)
    (folder / "masks" / "002.png").write_bytes((folder / "images" / "000.png").read_bytes())
    import cv2

    cv2.imwrite(str(folder / "masks" / "002.png"), np.zeros((64, 64), np.uint8))
    fit(folder, tmp_path / "run", "masks", 3)
    assert relearn(tmp_path / "run", {}, (), {0: "fine"}) == []
    assert AnomalyNCD.load(tmp_path / "run").model_.names == {0: "fine", 1: "class 1", 2: "class 2"}
    assert images(tmp_path / "run")["class_name"].tolist() == ["fine"] * 3


def test_a_run_with_one_region(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "line", [GOOD, GOOD, 0], seed=0)
    fit(folder, tmp_path / "run", "masks", 2)
    relearn(tmp_path / "run", {("002.png", 0): 5}, [("002.png", 0)], {5: "it"})
    assert by_key(tmp_path / "run") == {("002.png", 0): 5} and images(tmp_path / "run")["label"].tolist() == [0, 0, 5]
    check_whole(tmp_path / "run")


def test_a_run_in_which_every_image_has_a_defect(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "line", KINDS[4:], seed=0)
    fit(folder, tmp_path / "run", "masks", 3, has_normal=False)
    run, before = tmp_path / "run", by_key(tmp_path / "run")
    assert set(before.values()) == {1, 2, 3}
    relearn(run, dict.fromkeys(of_class(run, 3), 1), (), {})
    assert DiscoveryModel.read(run).classes.tolist() == [1, 2]
    check_whole(run)
    key = of_class(run, 2)[0]
    relearn(run, {key: 0}, [key], {})
    assert by_key(run)[key] == 0 and DiscoveryModel.read(run).classes.tolist() == [0, 1, 2]
    assert DiscoveryModel.read(run).names[0] == "normal"
    check_whole(run)
    relearn(run, {key: 2}, [key], {})
    assert DiscoveryModel.read(run).classes.tolist() == [1, 2], "and nothing is normal again"
    check_whole(run)


def test_false_alarms_that_only_their_score_tells(line: Path, tmp_path: Path) -> None:
    """A run that does not learn the normal class begins to when a person finds a false alarm."""
    run = tmp_path / "run"
    fit(line, run, "maps", learn={"epochs": 3, "normal": "calibrated"})
    assert not DiscoveryModel.read(run).learns_normal
    before, key = by_key(run), of_class(run, 1)[0]
    relearn(run, dict.fromkeys(of_class(run, 2), 3), (), {})
    assert not DiscoveryModel.read(run).learns_normal, "no false alarm was found"
    relearn(run, {key: 0}, [key], {})
    after = by_key(run)
    assert after[key] == 0 and DiscoveryModel.read(run).learns_normal
    assert {k for k in before if before[k] == 0} <= {k for k in after if after[k] == 0}
    check_whole(run)


def test_heads_of_a_base_set_stay(line: Path, tmp_path: Path) -> None:
    demo = list(iter_line(n_per_class=3, n_normal=0, n_combined=0, size=64, kinds=["stain", "crack"]))
    base = ([item.image for item in demo], [item.mask for item in demo], [item.label for item in demo])
    run = tmp_path / "run"
    AnomalyNCD(4, **TINY).fit(line / "images", masks=line / "masks", base=base, run=run)
    before = DiscoveryModel.read(run).classifier
    assert before is not None and before.n_base == 2
    labels = by_key(run)
    relearn(run, dict.fromkeys(of_class(run, 2), 3), (), {})
    after = DiscoveryModel.read(run).classifier
    assert after is not None and after.n_base == 2 and after.n_classes == 2
    np.testing.assert_array_equal(after.weight[:2], before.weight[:2])
    assert by_key(run) == {key: 3 if label == 2 else label for key, label in labels.items()}
    check_whole(run)


def test_the_preset_paper_learns_again_from_its_trained_features(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"preset": "paper", "crop": {"size": 224}, "learn": {"epochs": 1, "bank_views": 2}, "features": {}}
    fit(line, run, "maps", **settings)
    key = next(iter(by_key(run)))
    relearn(run, {key: 2}, [key], {2: "hole"})
    assert by_key(run)[key] == 2
    check_whole(run)
    model = fit(line, run, "maps", **settings)
    assert model.model_.names[2] == "hole" and by_key(run)[key] == 2


@on_masks
def test_many_corrections_are_quick(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking one region up must not cost a walk over all of them."""
    from anomalyncd.discovery import relearn as module

    built = []
    real = module.RunState.row.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(module.RunState, "row", property(lambda self: (built.append(1), real(self))[1]))
    keys = list(by_key(run))
    relearn(run, dict.fromkeys(keys, 1), keys, {})
    assert len(built) <= 2
