"""Known kinds, from what a caller hands over to the tables of a run and its updates."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import AnomalyNCDError, DataError, SettingsError
from anomalyncd.known.given import Example, Told, gather_known, join_known, overlap
from anomalyncd.regions.find import Region
from anomalyncd.run.evaluate import evaluate_run
from anomalyncd.run.tables import read_csv
from scenes import GOOD, KINDS, TINY, content, images, write_scenes

PLAIN = {**TINY, "learn": {"epochs": 0}}
NAMES = {0: "spot", 1: "bar", 2: "pole"}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


def ids(kind: int) -> list[str]:
    return [f"{index:03d}.png" for index, one in enumerate(KINDS) if one == kind]


def fit(line: Path, run: Path, given: str, n_classes: int | str = 4, **more: object) -> AnomalyNCD:
    return AnomalyNCD(n_classes, **PLAIN).fit(line / "images", **{given: line / given}, run=run, **more)


def table(path: Path, labels: dict[str, str]) -> Path:
    path.write_text("image,label\n" + "".join(f"{name},{label}\n" for name, label in labels.items()))
    return path


@pytest.mark.parametrize("given", ["masks", "maps"])
def test_known_kinds_keep_their_names_and_others_are_found(given: str, line: Path, tmp_path: Path) -> None:
    known = {ids(2)[0]: "pole", ids(1)[0]: "bar"}
    model = fit(line, tmp_path / "run", given, known=table(tmp_path / "known.csv", known))
    found = images(tmp_path / "run").set_index("image")["class_name"]
    assert model.model_.names == {0: "normal", 1: "bar", 2: "pole", 3: "class 3"}
    for kind, name in {GOOD: "normal", 0: "class 3", 1: "bar", 2: "pole"}.items():
        assert set(found[ids(kind)]) == {name}
    assert set(read_csv(tmp_path / "run" / "known.csv")["image"]) == set(known)
    truth = table(tmp_path / "truth.csv", {name: str(kind) for kind in NAMES for name in ids(kind)})
    evaluation, _ = evaluate_run(tmp_path / "run", truth)
    assert evaluation.n_images == sum(kind != GOOD for kind in KINDS) - 2, "what was told is no question"


def test_nothing_known_changes_no_byte(line: Path, tmp_path: Path) -> None:
    for given in ("masks", "maps"):
        fit(line, tmp_path / "one", given)
        fit(line, tmp_path / "other", given, known=None)
        assert content(tmp_path / "one") == content(tmp_path / "other")
        assert not (tmp_path / "one" / "known.csv").exists()
        shutil.rmtree(tmp_path / "one")
        shutil.rmtree(tmp_path / "other")


def test_a_second_call_goes_on_and_other_labels_learn_anew(line: Path, tmp_path: Path) -> None:
    first = table(tmp_path / "a.csv", {ids(1)[0]: "bar"})
    fit(line, tmp_path / "run", "masks", known=first)
    before = content(tmp_path / "run")
    assert fit(line, tmp_path / "run", "masks", known=first).model_.names[1] == "bar"
    assert content(tmp_path / "run") == before
    again = fit(line, tmp_path / "run", "masks", known={ids(0)[0]: "spot", ids(0)[1]: "spot"})
    assert again.model_.names[1] == "spot", "names that came with labels are not the work of people in the run"
    assert "bar" not in again.model_.names.values()


def test_auto_estimates_only_what_is_new(line: Path, tmp_path: Path) -> None:
    known = {name: NAMES[kind] for kind in (0, 1) for name in ids(kind)[:3]}
    model = fit(line, tmp_path / "run", "masks", "auto", known=known)
    assert [model.model_.names[k] for k in (1, 2)] == ["bar", "spot"] and len(model.classes_) >= 4
    assert model.run_.count is not None and model.run_.count["known"] == 2


def test_class_folders_of_other_images_are_taken_in(line: Path, tmp_path: Path) -> None:
    other = write_scenes(tmp_path / "other", [1, 1, 0], seed=5)
    for part in ("images", "masks"):
        for index, name in enumerate(("bar", "bar", "spot")):
            (tmp_path / "known" / part / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(other / part / f"{index:03d}.png", tmp_path / "known" / part / name / f"{index}.png")
    model = fit(line, tmp_path / "run", "masks", known=tmp_path / "known")
    found = images(tmp_path / "run").set_index("image")["class_name"]
    assert found["known/bar/0.png"] == "bar" and set(found[ids(1)]) == {"bar"} and set(found[ids(0)]) == {"spot"}
    assert len(model.labels_) == len(KINDS) + 3
    with pytest.raises(DataError, match="needs a map as they have"):
        fit(line, tmp_path / "maps", "maps", known=tmp_path / "known" / "images")


def test_normal_examples_are_false_alarms(line: Path, tmp_path: Path) -> None:
    known = dict.fromkeys(ids(GOOD), "good") | {ids(0)[0]: "spot"}
    model = fit(line, tmp_path / "run", "maps", known=known)
    assert model.model_.false_alarms is not None and model.model_.false_alarms.source == "normal images"
    assert set(images(tmp_path / "run").set_index("image")["label"][ids(GOOD)]) == {0}
    with pytest.raises(DataError, match="--no-normal"):
        AnomalyNCD(3, has_normal=False, **PLAIN).fit(line / "images", masks=line / "masks", known={ids(0)[0]: "ok"})


def test_a_reviewed_run_hands_its_names_and_corrections_on(line: Path, tmp_path: Path) -> None:
    model = fit(line, tmp_path / "first", "masks")
    label = int(model.images_.set_index("image")["label"][ids(1)[0]])
    relearn(tmp_path / "first", {(ids(0)[0], 0): 7}, [(ids(0)[0], 0)], {label: "bar", 7: "odd"})
    again = fit(line, tmp_path / "again", "masks", 5, known=tmp_path / "first")
    found = images(tmp_path / "again").set_index("image")["class_name"]
    assert set(found[ids(1)]) == {"bar"} and found[ids(0)[0]] == "odd" and again.model_.names[1] == "bar"


def test_update_takes_labels(line: Path, tmp_path: Path) -> None:
    model = fit(line, tmp_path / "run", "masks", known={ids(1)[0]: "bar"})
    write_scenes(tmp_path / "new", [3, 3, 1], seed=9)
    (tmp_path / "new" / "images").rename(tmp_path / "new" / "later")
    for index in range(3):
        (tmp_path / "new" / "later" / f"{index:03d}.png").rename(tmp_path / "new" / "later" / f"n{index}.png")
        (tmp_path / "new" / "masks" / f"{index:03d}.png").rename(tmp_path / "new" / "masks" / f"n{index}.png")
    labels = table(tmp_path / "labels.csv", {"n0.png": "ring", "n2.png": "bar", ids(2)[0]: "pole"})
    model.update(tmp_path / "new" / "later", masks=tmp_path / "new" / "masks", known=labels)
    found = images(tmp_path / "run").set_index("image")["class_name"]
    assert found["n0.png"] == "ring" and found["n2.png"] == "bar" and found[ids(2)[0]] == "pole"
    assert found[ids(1)[0]] == "bar", "what was told at first stays"
    assert "ring" in model.model_.names.values()


def test_what_cannot_be_done_is_said(line: Path, tmp_path: Path) -> None:
    known = {name: NAMES[kind] for kind in NAMES for name in ids(kind)[:1]}
    with pytest.raises(SettingsError, match="at least 4 for bar, pole, spot, but got 3"):
        fit(line, tmp_path / "a", "masks", 3, known=known)
    with pytest.raises(SettingsError, match=r"leave learn\.epochs"):
        AnomalyNCD(4, **TINY).fit(line / "images", masks=line / "masks", known=known)
    with pytest.raises(DataError, match=r"there is no image 'x\.png'"):
        fit(line, tmp_path / "b", "masks", known={"x.png": "bar"})
    empty = tmp_path / "flat"
    shutil.copytree(line / "images", empty)
    with pytest.raises(DataError, match="expected labelled images"):
        fit(line, tmp_path / "c", "masks", known=empty)
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("image,label,region\n001.png,bar,one\n")
    with pytest.raises(DataError, match="line 2: expected the number of a region"):
        fit(line, tmp_path / "d", "masks", known=wrong)
    with pytest.raises(AnomalyNCDError):
        fit(line, tmp_path / "e", "masks", known=tmp_path / "nowhere")


def test_tables_of_others_are_one_line(tmp_path: Path) -> None:
    table = tmp_path / "known.csv"
    for text, words in (("001.png,bar," + "9" * 5000, "the number of a region"), ("n" * 5000 + ",bar,", "nor a file")):
        table.write_text(f"image,label,region\n{text}\n")
        with pytest.raises(DataError, match=f"line 2: .*{words}") as error:
            gather_known(table, Dataset(()))
        assert len(str(error.value)) < 2000


def test_labels_of_images_and_regions_find_their_places() -> None:
    def region(image: str, number: int, x: int, area: float) -> Region:
        return Region(image=image, region=number, box=(x, 0, 10, 10), square=(x, 0, 10), area=area, score=1.0)

    regions = [region("a", 0, 0, 5), region("a", 1, 50, 9), region("b", 0, 0, 5)]
    a, b = Sample("a", np.empty(0)), Sample("b", np.empty(0))
    assert Told((Example(a, "dent"),)).labels(regions, masked=False) == {1: "dent"}
    assert Told((Example(a, "dent"),)).labels(regions, masked=True) == {0: "dent", 1: "dent"}
    assert Told((Example(a, "Good"),)).labels(regions, masked=False) == {0: "Good", 1: "Good"}
    both = Told((Example(a, "cut", region=0), Example(a, "dent"), Example(b, "cut", box=(2, 0, 10, 10))))
    assert both.labels(regions, masked=True) == {0: "cut", 1: "dent", 2: "cut"}
    assert (
        both.kinds == ["cut", "dent"]
        and Told((Example(b, "cut", box=(9, 0, 9, 9)),)).labels(regions, masked=True) == {}
    )
    assert overlap((0, 0, 10, 10), (0, 0, 10, 10)) == 1


def test_an_image_is_known_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    dataset = Dataset([Sample("deep/a.png", tmp_path / "a.png")])
    joined, told = join_known(dataset, [Example(Sample("a.png", tmp_path / "x" / ".." / "a.png"), "dent")])
    assert len(joined) == 1 and told.examples[0].sample.id == "deep/a.png"
    assert gather_known(None, dataset) == [] and join_known(dataset, [])[0] is dataset
