"""New images into a finished run: known classes stay what they are, and what is new becomes a class."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.data.images import read_image
from anomalyncd.detect import Detector
from anomalyncd.discovery import update as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import relearn
from anomalyncd.discovery.update import Update, update_run
from anomalyncd.errors import DataError, RunError
from anomalyncd.run import store
from anomalyncd.run.finished import read_corrections
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import read_csv
from scenes import GOOD, KINDS, TINY, content, fit, images, regions, scene, write_scenes

NEW = [0, 3, 1, GOOD, 3, 2, 3, 0, 3]
FOREIGN = 3  # the kind that the run has not seen


@pytest.fixture(scope="module")
def tomorrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images under the same names as those of `line`, of known kinds and of one that is new."""
    return write_scenes(tmp_path_factory.mktemp("tomorrow"), NEW, seed=1)


on_masks = pytest.mark.parametrize("given", ["masks"], indirect=True)  # where maps would show nothing else
on_maps = pytest.mark.parametrize("given", ["maps"], indirect=True)


def take_in(run: Path, folder: Path, given: str, **options: Any) -> Update:
    return update_run(run, gather(folder / "images", **{given: folder / given}), **options)


def labels_of(run: Path) -> dict[str, int]:
    table = images(run)
    return dict(zip(table["image"], table["label"].tolist(), strict=True))


def class_of_kind(run: Path) -> dict[int, int]:
    """Kind → label, by the images that the run was made from."""
    labels = images(run)["label"].tolist()[: len(KINDS)]
    return dict(zip(KINDS, labels, strict=False))


def test_known_classes_stay_and_the_unknown_kind_becomes_a_class(
    run: Path, line: Path, tomorrow: Path, given: str
) -> None:
    relearn(run, {}, (), {1: "blue line", 3: "square"})
    before, known = labels_of(run), class_of_kind(run)
    found = take_in(run, tomorrow, given)
    assert (found.n_images, found.known, found.skipped) == (len(NEW), [], {})
    assert found.opened == {4: NEW.count(FOREIGN)} and found.unknown == 0 and found.moved == []
    after = labels_of(run)
    assert len(after) == len(KINDS) + len(NEW) and {name: after[name] for name in before} == before
    assert list(after.values())[len(KINDS) :] == [{**known, FOREIGN: 4}[kind] for kind in NEW]
    model = DiscoveryModel.read(run)
    assert model.names == {0: "normal", 1: "blue line", 2: "class 2", 3: "square", 4: "class 4"}
    assert found.n_regions == len(regions(run)) - len(regions(run).query("image in @before"))
    again = AnomalyNCD.load(run).predict(tomorrow / "images", **{given: tomorrow / given})
    assert again.labels.tolist() == list(after.values())[len(KINDS) :]
    old = AnomalyNCD.load(run).predict(line / "images", **{given: line / given})
    assert old.labels.tolist() == list(before.values())


def test_the_tables_are_whole(run: Path, tomorrow: Path, given: str) -> None:
    take_in(run, tomorrow, given)
    table, image_table, manifest = regions(run), images(run), read_csv(run / "manifest.csv")
    assert manifest["image"].tolist() == image_table["image"].tolist()
    assert manifest["file"].iloc[-1] == str(tomorrow / "images" / f"{len(NEW) - 1:03d}.png")
    assert image_table["n_regions"].sum() == len(table) == manifest["n_regions"].sum()
    assert len(set(table["crop"])) == len(table) and all((run / crop).is_file() for crop in table["crop"])
    columns = [name for name in image_table if name.startswith("p_")]
    assert columns == [f"p_{k}" for k in range(5)]
    np.testing.assert_allclose(image_table[columns].sum(axis=1), 1, atol=1e-5)


@on_masks
def test_an_update_does_not_do_for_the_whole_run_what_is_for_new_images(
    run: Path, tomorrow: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, looked_at = list[int](), list[int]()
    real, foreign = store.RegionStore._read, DiscoveryModel.foreign
    monkeypatch.setattr(
        DiscoveryModel, "foreign", lambda self, scenes: [looked_at.append(len(scenes)), foreign(self, scenes)][1]
    )
    monkeypatch.setattr(store.RegionStore, "_read", lambda self, n, **how: [reads.append(n), real(self, n, **how)][1])
    take_in(run, tomorrow, given)
    assert reads.count(0) == 2, "as they were, and with the new ones"
    assert looked_at == [len(NEW)], "whether an image shows the product is asked of the new ones"


@on_masks
def test_images_of_the_same_name_get_another(run: Path, tomorrow: Path, given: str) -> None:
    """A name that still ends as a picture's does, so that exports and maps beside it are not mixed up."""
    take_in(run, tomorrow, given)
    names = images(run)["image"].tolist()
    assert len(set(names)) == len(names)
    assert names[len(KINDS) :] == [f"{index:03d} (2).png" for index in range(len(NEW))]
    third = write_scenes(run.parent / "third", [0], seed=3)
    take_in(run, third, given)
    assert images(run)["image"].iloc[-1] == "000 (3).png"


@on_maps
def test_the_same_files_again_change_nothing(run: Path, tomorrow: Path, line: Path, given: str) -> None:
    take_in(run, tomorrow, given)
    before = content(run)
    again = take_in(run, tomorrow, given)
    assert again == Update(0, 0, [f"{index:03d}.png" for index in range(len(NEW))])
    assert take_in(run, line, given).n_images == 0
    assert content(run) == before


@on_masks
def test_some_of_them_are_there_already(run: Path, tomorrow: Path, given: str, tmp_path: Path) -> None:
    take_in(run, tomorrow, given)
    both = tmp_path / "both"
    shutil.copytree(tomorrow, both)
    inputs = gather(both / "images", **{given: both / given})
    old = gather(tomorrow / "images", **{given: tomorrow / given})[:5]
    found = update_run(run, replace(inputs, samples=[*old, *inputs[5:]]))
    assert (
        found.n_images == len(NEW) - 5 and len(found.known) == 5 and len(images(run)) == len(KINDS) + 2 * len(NEW) - 5
    )


def test_only_known_kinds_open_nothing(run: Path, given: str, tmp_path: Path) -> None:
    known = class_of_kind(run)
    kinds = [0, 1, 2, GOOD] * 3
    found = take_in(run, write_scenes(tmp_path / "more", kinds, seed=8), given)
    assert found.opened == {} and found.moved == []
    assert images(run)["label"].tolist()[len(KINDS) :] == [known[kind] for kind in kinds]


@on_maps
def test_normal_images_alone(run: Path, given: str, tmp_path: Path) -> None:
    before = DiscoveryModel.read(run).classes.tolist()
    found = take_in(run, write_scenes(tmp_path / "more", [GOOD, GOOD, 0], seed=8), given)
    assert found.n_images == 3 and found.opened == {}
    assert images(run)["label"].tolist()[-3:-1] == [0, 0] and DiscoveryModel.read(run).classes.tolist() == before


def test_too_few_for_a_class_wait_until_more_come(run: Path, given: str, tmp_path: Path) -> None:
    """One a day: unknown, and unknown still; with the third they are a class."""
    line = []
    for day in range(3):
        folder = write_scenes(tmp_path / f"day{day}", [FOREIGN, 0], seed=10 + day)
        found = take_in(run, folder, given)
        line.append((dict(found.opened), found.unknown))
        labels = images(run)["label"].tolist()[len(KINDS) :: 2]
        if day < 2:
            assert labels == [-1] * (day + 1), "told from all classes, also after another one of its kind"
            assert AnomalyNCD.load(run).predict(folder / "images", **{given: folder / given}).labels[0] == -1
            assert set(images(run)["class_name"].iloc[len(KINDS) :: 2]) == {"unknown"}
            assert regions(run).query("label == -1")["unknown"].min() > 0.5
    assert line == [({}, 1), ({}, 2), ({4: 3}, 0)]
    assert labels == [4, 4, 4] and len(found.moved) == 2
    assert {(move.before, move.after) for move in found.moved} == {(-1, 4)}


@on_masks
def test_a_person_names_what_is_unknown(run: Path, given: str, tmp_path: Path) -> None:
    take_in(run, write_scenes(tmp_path / "one", [FOREIGN], seed=10), given)
    key = next((r.image, r.region) for r in regions(run).itertuples() if r.label == -1)
    relearn(run, {}, (), {1: "still unknown"})
    assert regions(run)["label"].tolist().count(-1) == 1
    relearn(run, {key: 4}, [key], {4: "green"})
    found = take_in(run, write_scenes(tmp_path / "two", [FOREIGN, FOREIGN], seed=11), given)
    assert found.opened == {} and DiscoveryModel.read(run).names[4] == "green"
    assert set(images(run)["label"].iloc[-2:]) <= {4, -1}
    assert read_corrections(run) == {key: 4}


@on_masks
def test_corrections_are_kept(run: Path, tomorrow: Path, given: str) -> None:
    row = next(r for r in regions(run).itertuples() if r.label == 1)
    key = (row.image, row.region)
    relearn(run, {key: 3}, [key], {3: "hole"})
    before = labels_of(run)
    take_in(run, tomorrow, given)
    after = labels_of(run)
    assert after[row.image] == 3 and read_corrections(run) == {key: 3}
    assert sum(after[name] == label for name, label in before.items()) >= len(before) - 1


@on_maps
def test_a_merged_run_opens_the_next_free_number(run: Path, tomorrow: Path, given: str) -> None:
    second = regions(run).query("label == 2")
    relearn(run, dict.fromkeys(zip(second["image"], second["region"], strict=True), 1), (), {})
    assert DiscoveryModel.read(run).classes.tolist() == [0, 1, 3]
    assert take_in(run, tomorrow, given).opened == {4: NEW.count(FOREIGN)}
    assert DiscoveryModel.read(run).classes.tolist() == [0, 1, 3, 4]


@on_masks
def test_files_that_cannot_be_read_are_skipped_and_listed(
    run: Path, tomorrow: Path, given: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tomorrow, tmp_path / "broken"))
    (folder / "images" / "001.png").write_bytes(b"no picture")
    found = take_in(run, folder, given)
    assert found.n_images == len(NEW) - 1 and list(found.skipped) == ["001 (2).png"]
    manifest = read_csv(run / "manifest.csv").set_index("image")
    assert manifest.loc["001 (2).png", "status"] == "skipped" and "001 (2).png" not in labels_of(run)
    assert found.opened == {4: NEW.count(FOREIGN) - 1}
    assert "001 (2).png" in AnomalyNCD.load(run).skipped_
    before = content(run)
    assert take_in(run, folder, given).n_images == 0, "it is still broken"
    assert content(run) == before


@on_maps
def test_a_broken_file_that_was_mended_is_taken_in(run: Path, tomorrow: Path, given: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tomorrow, tmp_path / "broken"))
    whole = (folder / "images" / "001.png").read_bytes()
    (folder / "images" / "001.png").write_bytes(b"no picture")
    take_in(run, folder, given)
    (folder / "images" / "001.png").write_bytes(whole)
    found = take_in(run, folder, given)
    assert found.n_images == 1 and images(run)["label"].iloc[-1] == 4


@on_masks
def test_nothing_that_can_be_read(run: Path, given: str, tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "broken", [0], seed=0)
    (folder / "images" / "000.png").write_bytes(b"no picture")
    before = content(run, "*.csv", "*.json", "model.safetensors")
    with pytest.raises(DataError, match="none of the 1 images could be read"):
        take_in(run, folder, given)
    assert content(run, "*.csv", "*.json", "model.safetensors") == before
    AnomalyNCD.load(run)


class Killed(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


@on_maps
def test_how_many_images_a_shard_has_changes_nothing(
    run: Path, tomorrow: Path, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    take_in(whole, tomorrow, given)
    monkeypatch.setattr(store, "SHARD", 4)
    take_in(run, tomorrow, given)
    assert content(run, "*.csv", "masks/*") == content(whole, "*.csv", "masks/*")


@pytest.mark.parametrize(
    ("where", "given"),
    [("first shard", "masks"), ("learning", "maps"), ("commit", "maps"), ("half committed", "masks")],
    indirect=["given"],
)
def test_killed_and_called_again(
    where: str, run: Path, line: Path, tomorrow: Path, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD", 4)
    undisturbed = Path(shutil.copytree(run, tmp_path / "undisturbed"))
    take_in(undisturbed, tomorrow, given)
    before = content(run, "*.csv", "model.safetensors")

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        if where == "first shard":
            real = RunFolder.write
            patch.setattr(
                RunFolder, "write", lambda self, name, data: (real(self, name, data), "tokens/" in name and die())
            )
        elif where == "learning":
            patch.setattr(module, "learn_again", die)
        elif where == "commit":
            patch.setattr(RunFolder, "commit", die)
        else:
            patch.setattr("shutil.rmtree", die)  # all files are in place, only the empty folder is left
        with pytest.raises(Killed):
            take_in(run, tomorrow, given)
    if where != "half committed":
        assert content(run, "*.csv", "model.safetensors") == before
        assert len(AnomalyNCD.load(run).labels_) == len(KINDS), "the run is as it was"
        assert relearn(run, {}, (), {}) == [], "and can be worked with"
    take_in(run, tomorrow, given)
    assert labels_of(run) == labels_of(undisturbed)
    if where == "half committed":
        assert content(run) == content(undisturbed)
    same = [set(content(folder)) for folder in (run, undisturbed)]
    assert same[0] ^ same[1] <= {"corrections.csv"} and not list(run.rglob("*.partial"))


@on_maps
def test_what_a_killed_update_left_is_not_taken_for_the_runs_own(
    run: Path, tomorrow: Path, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then other, fewer images are taken in: none of the first ones shows up."""
    monkeypatch.setattr(store, "SHARD", 2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "learn_again", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            take_in(run, tomorrow, given)
    take_in(run, write_scenes(tmp_path / "few", [0, 1, 2], seed=4), given)
    assert len(images(run)) == len(KINDS) + 3
    assert take_in(run, tomorrow, given).n_images == len(NEW)
    assert len(images(run)) == len(KINDS) + 3 + len(NEW)


@on_masks
def test_discover_does_not_forget_what_was_taken_in(run: Path, line: Path, tomorrow: Path, given: str) -> None:
    take_in(run, tomorrow, given)
    before = content(run)
    with pytest.raises(RunError, match=r"taken in more images since \(`anomalyncd update`\).*Choose another folder"):
        fit(line, run, given)
    assert content(run) == before


@on_maps
def test_discover_goes_on_where_an_update_came_to_nothing(run: Path, line: Path, tomorrow: Path, given: str) -> None:
    take_in(run, line, given)  # all known
    before = images(run)
    fit(line, run, given)
    assert images(run).equals(before)


@on_maps
def test_the_estimator_holds_old_and_new(run: Path, tomorrow: Path, given: str, tmp_path: Path) -> None:
    model = AnomalyNCD.load(run)
    found = model.update(tomorrow / "images", **{given: tomorrow / given})
    assert found.opened == {4: NEW.count(FOREIGN)} and model.classes_.tolist() == [0, 1, 2, 3, 4]
    assert len(model.labels_) == len(model.images_) == len(KINDS) + len(NEW) == len(model.probabilities_)
    model.save(tmp_path / "copy")
    loaded = AnomalyNCD.load(tmp_path / "copy")
    for one in (AnomalyNCD.load(run), loaded):
        np.testing.assert_array_equal(one.labels_, model.labels_)
        np.testing.assert_array_equal(one.probabilities_, model.probabilities_)
        assert one.images_.equals(model.images_) and one.regions_.equals(model.regions_)
    more = write_scenes(tmp_path / "more", [FOREIGN, 0], seed=5)
    predictions = [one.predict(more / "images", **{given: more / given}) for one in (model, loaded)]
    assert predictions[0].labels.tolist() == predictions[1].labels.tolist() == [4, class_of_kind(run)[0]]
    assert loaded.update(more / "images", **{given: more / given}).opened == {}
    assert len(images(run)) == len(KINDS) + len(NEW), "the copy is a run of its own"


def test_a_model_that_was_fitted_without_a_folder(line: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    old, new = ([scene(kind, rng) for kind in kinds] for kinds in (KINDS, [FOREIGN] * 3))
    model = AnomalyNCD(4, **TINY).fit([s[0] for s in old], masks=[s[1] for s in old])
    found = model.update([s[0] for s in new], masks=[s[1] for s in new])
    assert found.opened == {4: 3} and model.labels_.tolist()[-3:] == [4] * 3
    assert model.images_["image"].iloc[-1] == "image_000002 (2)"
    model.save(tmp_path / "run")
    assert AnomalyNCD.load(tmp_path / "run").labels_.tolist() == model.labels_.tolist()


def test_true_labels_are_carried_along(tmp_path: Path) -> None:
    for name, seed in (("old", 0), ("new", 1)):
        flat = write_scenes(tmp_path / f"{name} flat", [0, 0, 1, 1, 2, 2, 3, 3, 3][: 6 if name == "old" else 9], seed)
        for index, kind in enumerate([0, 0, 1, 1, 2, 2, 3, 3, 3][: 6 if name == "old" else 9]):
            for part in ("images", "masks"):
                (tmp_path / name / part / f"kind{kind}").mkdir(parents=True, exist_ok=True)
                shutil.copy(flat / part / f"{index:03d}.png", tmp_path / name / part / f"kind{kind}")
    run = tmp_path / "run"
    AnomalyNCD(4, **TINY).fit(tmp_path / "old" / "images", masks=tmp_path / "old" / "masks", run=run)
    take_in(run, tmp_path / "new", "masks")
    table = images(run)
    assert table["true_label"].tolist() == [Path(name).parts[0] for name in table["image"]]
    assert table["image"].tolist()[-1] == "kind3/008.png"


def test_without_normal_images(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "line", KINDS[6:], seed=0)
    run = tmp_path / "run"
    fit(folder, run, "masks", 3, has_normal=False)
    found = take_in(run, write_scenes(tmp_path / "new", [FOREIGN] * 3 + [0], seed=1), "masks")
    assert found.opened == {4: 3} and DiscoveryModel.read(run).classes.tolist() == [1, 2, 3, 4]


def test_runs_that_cannot_be_added_to(line: Path, tomorrow: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    settings = {"preset": "paper", "crop": {"size": 224}, "learn": {"epochs": 1, "bank_views": 2}, "features": {}}
    fit(line, tmp_path / "paper", "maps", **settings)
    before = content(tmp_path / "paper")
    with pytest.raises(DataError, match=r"--preset paper.*Call `discover`"):
        take_in(tmp_path / "paper", tomorrow, "maps")
    assert content(tmp_path / "paper") == before
    with pytest.raises(DataError, match="fitted on masks"):
        take_in(runs["masks"], tomorrow, "maps")
    good = write_scenes(tmp_path / "good", [GOOD, GOOD, 0], seed=0)
    cv2.imwrite(str(good / "masks" / "002.png"), np.zeros((64, 64), np.uint8))
    fit(good, tmp_path / "run", "masks", 2)
    with pytest.raises(DataError, match="no defect classes to add to"):
        take_in(tmp_path / "run", tomorrow, "masks")
    with pytest.raises(RunError, match="expected a finished run"):
        take_in(tmp_path / "nothing", tomorrow, "masks")


@on_masks
def test_another_writer(run: Path, tomorrow: Path, given: str) -> None:
    with RunFolder(run).writing(), pytest.raises(RunError, match="another process is writing"):
        take_in(run, tomorrow, given)


class Colour(Detector):
    """Finds what is not grey."""

    name = "colour"
    needs_normal = False
    seen: ClassVar[list[bytes]] = []

    def fit(self, normal_images: Iterable[np.ndarray]) -> Colour:
        return self

    def maps(self, images: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for image in images:
            self.seen.append(image.tobytes())
            away = np.abs(image.astype(np.float32) - 100).max(axis=2) / 255
            yield cv2.GaussianBlur(away, (0, 0), 1)

    def save(self, folder: Path) -> None:
        folder.mkdir()

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Colour:
        return cls()


def test_a_run_with_a_detector(line: Path, tomorrow: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {**TINY, "detect": {}}
    model = AnomalyNCD(4, **settings).fit(line / "images", detector=Colour(), run=run)
    known = class_of_kind(run)
    assert len(set(known.values())) == 4
    Colour.seen.clear()
    found = model.update(tomorrow / "images")
    # One after the other: nothing is fitted any more, so no order has to be made of what the files hold.
    assert Colour.seen == [read_image(sample.image).tobytes() for sample in gather(tomorrow / "images")]
    assert found.n_images == len(NEW) and list(found.opened) == [4]
    expected = [{**known, FOREIGN: 4}[kind] for kind in NEW]
    assert model.labels_.tolist()[len(KINDS) :] == expected
    assert AnomalyNCD.load(run).predict(tomorrow / "images").labels.tolist() == expected
    assert model.update(tomorrow / "images").n_images == 0


@pytest.fixture(scope="module")
def many() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(21)
    return [scene(kind, rng) for kind in [0, 1, 2, GOOD, FOREIGN, 1, 2] * 10][:65]


class TestPredict:
    """What is said of new images, however they are asked about."""

    @pytest.mark.parametrize("size", [1, 7, 64])
    def test_batches_and_order_do_not_show(self, size: int, run: Path, given: str, many: list[tuple[Any, ...]]) -> None:
        model = AnomalyNCD.load(run)
        column = 1 if given == "masks" else 2

        def predict(rows: list[int]) -> Any:
            return model.predict([many[i][0] for i in rows], **{given: [many[i][column] for i in rows]})

        whole = predict(list(range(len(many))))
        order = np.random.default_rng(size).permutation(len(many)).tolist()
        order = order[: {1: 10, 7: 28}.get(size)]
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            found = predict(rows)
            assert found.labels.tolist() == whole.labels[rows].tolist()
            np.testing.assert_allclose(found.probabilities, whole.probabilities[rows], atol=1e-5)
            # Tokens are rounded to float16, so a last bit that depends on the batch may show a little: 1.4e-5 was seen.
            np.testing.assert_allclose(found.images["unknown"], whole.images["unknown"].iloc[rows], atol=5e-5)
        assert set(whole.labels.tolist()) == {-1, 0, 1, 2, 3}

    def test_a_foreign_region_is_unknown(self, run: Path, given: str) -> None:
        rng = np.random.default_rng(2)
        new = [scene(kind, rng) for kind in (FOREIGN, 0, FOREIGN)]
        found = AnomalyNCD.load(run).predict(
            [s[0] for s in new], **{given: [s[1 if given == "masks" else 2] for s in new]}
        )
        assert found.labels.tolist() == [-1, class_of_kind(run)[0], -1]
        assert found.images["class_name"].tolist()[0] == "unknown" and found.images["classes"].tolist()[0] == "-1"
        assert (found.probabilities[[0, 2]] == 0).all() and found.images["unknown"].iloc[[0, 2]].min() > 0.5
        assert found.regions["label"].tolist() == found.labels.tolist()

    def test_fitted_images_never_are(self, run: Path, line: Path, given: str) -> None:
        model = AnomalyNCD.load(run)
        found = model.predict(line / "images", **{given: line / given})
        assert found.labels.tolist() == model.labels_.tolist() and (found.regions["label"] >= 0).all()
        assert found.images["unknown"].max() < 0.5

    def test_identical_pictures_know_each_other(self) -> None:
        image, mask, _ = scene(0, np.random.default_rng(0))
        model = AnomalyNCD(2, **TINY).fit([image] * 6, masks=[mask] * 6)
        assert model.labels_.tolist() == [1] * 6
        assert model.predict([image], masks=[mask]).labels.tolist() == [1]

    def test_it_can_be_switched_off(self, line: Path, tmp_path: Path) -> None:
        model = fit(line, tmp_path / "run", "masks", unknown={"false_rate": 0})
        image, mask, _ = scene(FOREIGN, np.random.default_rng(2))
        found = model.predict([image], masks=[mask])
        assert found.labels[0] > 0 and found.images["unknown"].tolist() == [0]
        assert AnomalyNCD.load(tmp_path / "run").predict([image], masks=[mask]).labels.tolist() == found.labels.tolist()


@on_masks
def test_a_name_that_a_camera_used_again(run: Path, given: str, line: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(line, tmp_path / "line"))
    made = fit(folder, tmp_path / "made", given)
    assert take_in(tmp_path / "made", folder, given).n_images == 0
    first, second, third = sorted((folder / "images").rglob("*.png"))[:3]
    times = second.stat().st_mtime_ns, second.stat().st_mtime_ns - 10**12
    cv2.imwrite(str(first), cv2.imread(str(first))[::-1])
    cv2.imwrite(str(second), cv2.imread(str(second))[::-1])
    os.utime(second, ns=(times[1], times[1]))  # as a copy of an older image has
    os.utime(third)  # touched, or copied back from elsewhere
    again = take_in(tmp_path / "made", folder, given)
    assert again.n_images == 2 and len(again.known) == len(made.labels_) - 2
    assert images(tmp_path / "made")["image"].tolist()[-2:] == [f"{first.stem} (2).png", f"{second.stem} (2).png"]
    assert take_in(tmp_path / "made", folder, given).n_images == 0


@on_masks
def test_a_run_of_before_knows_files_by_the_time_of_its_table(run: Path, given: str, line: Path) -> None:
    table = read_csv(run / "manifest.csv")
    table.drop(columns=["n_bytes", "modified", "sha256"]).to_csv(run / "manifest.csv", index=False)
    assert take_in(run, line, given).n_images == 0
    more = write_scenes(run.parent / "more", [0, 1], seed=5)
    assert take_in(run, more, given).n_images == 2 and take_in(run, more, given).n_images == 0


@on_maps
def test_maps_for_a_run_with_its_own_detector_are_refused(run: Path, given: str, tomorrow: Path) -> None:
    model = DiscoveryModel.read(run)
    detect = model.config.detect.model_copy(update={"name": "musc"})
    model.config = model.config.model_copy(update={"detect": detect})
    with pytest.raises(DataError, match="made by its own detector, musc"):
        model.check_maps(gather(tomorrow / "images", maps=tomorrow / "maps"))


@on_masks
def test_the_number_of_a_class_that_is_gone_is_not_used_again(run: Path, given: str, tomorrow: Path) -> None:
    table = regions(run)
    last = int(table["label"].max())
    keys = zip(table["image"], table["region"], table["label"], strict=True)
    relearn(run, {(image, region): 1 for image, region, label in keys if label == last}, (), {})
    assert last not in regions(run)["label"].tolist()
    opened = take_in(run, tomorrow, given).opened
    assert opened and min(opened) > last


@on_masks
def test_another_rate_of_unknowns_keeps_names_and_classes(given: str, line: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    fit(line, made, given)
    relearn(made, {}, (), {1: "dent"})
    before, limit = labels_of(made), DiscoveryModel.read(made).unknown.limit  # type: ignore[union-attr]
    fit(line, made, given, unknown={"false_rate": 0.5})
    assert labels_of(made) == before and DiscoveryModel.read(made).names[1] == "dent"
    assert DiscoveryModel.read(made).unknown.limit < limit  # type: ignore[union-attr]
