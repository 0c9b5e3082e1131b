"""A run that was stopped anywhere ends as if it had not been, and a changed setting redoes what depends on it only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd.discovery.fit import _warn_of_results
from anomalyncd.errors import BadFileError, RunError
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.progress import Advance, Silent
from anomalyncd.regions import extract
from anomalyncd.run import store
from anomalyncd.run.folder import RunFolder

FAST: dict[str, Any] = {"features": {"views": 1}, "learn": {"epochs": 2}}
PAPER: dict[str, Any] = {"preset": "paper", "learn": {"epochs": 1, "bank_views": 2}, "crop": {"size": 224}}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD", 3)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight 48-pixel images: two good, three with a bright square, three with a red line; their maps and masks."""
    root = tmp_path_factory.mktemp("line")
    rng = np.random.default_rng(0)
    for index in range(8):
        image = rng.integers(0, 60, (48, 48, 3)).astype(np.uint8)
        mask = np.zeros((48, 48), np.uint8)
        top = 6 + 3 * index
        if 2 <= index < 5:
            mask[top : top + 12, 10:24] = 255
            image[mask > 0] = 240
        elif index >= 5:
            mask[top : top + 4, 3:45] = 255
            image[mask > 0] = (200, 0, 0)
        for folder, picture in (("images", image[..., ::-1]), ("maps", cv2.GaussianBlur(mask, (5, 5), 0) | 3)):
            (root / folder).mkdir(exist_ok=True)
            cv2.imwrite(str(root / folder / f"{index}.png"), picture)
        if mask.any():
            (root / "masks").mkdir(exist_ok=True)
            cv2.imwrite(str(root / "masks" / f"{index}.png"), mask)
    return root


def fit(line: Path, run: Path, progress: Silent | None = None, kind: str = "maps", **settings: Any) -> AnomalyNCD:
    model = AnomalyNCD(3, backbone="tiny", device="cpu", progress=progress, **(settings or FAST))
    return model.fit(line / "images", **{kind: line / kind}, run=run)


def content(run: Path) -> dict[str, bytes]:
    """Everything that a run writes, but for the log and the lock."""
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in ("run.log", ".lock")}


def times(run: Path, pattern: str) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted(run.glob(pattern))]


class Killed(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


class Stopper(Silent):
    """Raises when a task has been advanced that many times."""

    def __init__(self, task: str, after: int) -> None:
        self.name, self.left = task, after

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        def advance(steps: int = 1, note: str = "") -> None:
            if name == self.name:
                self.left -= 1
                if self.left < 0:
                    raise Killed

        yield advance


@pytest.fixture(scope="module")
def whole(line: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Content of a run that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHARD", 3)
        run = tmp_path_factory.mktemp("whole") / "run"
        model = fit(line, run)
    assert model.labels_.tolist()[:2] == [0, 0] and 0 not in model.labels_[2:]
    return content(run)


def test_the_same_call_again_changes_nothing(line: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    run = tmp_path / "run"
    fit(line, run)
    assert content(run) == whole
    before = times(run, "tokens/*") + times(run, "model.safetensors") + times(run, "crops/*/*")
    fit(line, run)
    assert content(run) == whole
    assert times(run, "tokens/*") + times(run, "model.safetensors") + times(run, "crops/*/*") == before


@pytest.mark.parametrize(
    ("task", "after"), [("Range of the maps", 0), ("Regions", 0), ("Regions", 1), ("Regions", 2), ("Learning", 1)]
)
def test_stopped_while_working(task: str, after: int, line: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    run = tmp_path / "run"
    with pytest.raises(Killed):
        fit(line, run, Stopper(task, after))
    assert not (run / "images.csv").exists()
    done = {path.name: path.stat().st_mtime_ns for path in run.glob("tokens/*.safetensors")}
    fit(line, run)
    assert content(run) == whole
    assert {name: (run / "tokens" / name).stat().st_mtime_ns for name in done} == done, "finished shards are kept"


def test_each_pass_over_images_is_told_with_their_number(line: Path, tmp_path: Path) -> None:
    told: dict[str, int] = {}

    class Listener(Silent):
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Advance]:
            told[name] = total
            with super().task(name, total) as advance:
                yield advance

    files = [sorted((line / kind).iterdir()) for kind in ("images", "masks")]
    base = (files[0][2:], files[1], ["square"] * 3 + ["line"] * 3)
    model = AnomalyNCD(3, backbone="tiny", device="cpu", progress=Listener(), **FAST)
    model.fit(line / "images", maps=line / "maps", base=base, run=tmp_path / "run")
    assert {"Range of the maps": 8, "Regions": 8, "Labelled base set": 6}.items() <= told.items()


@pytest.mark.parametrize("task", ["Views", "Learning", "Class tokens"])
def test_stopped_while_training_the_last_block(task: str, line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "whole", kind="masks", **PAPER)
    with pytest.raises(Killed):
        fit(line, tmp_path / "run", Stopper(task, 0), kind="masks", **PAPER)
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    assert not list(tmp_path.rglob("*.partial"))


def test_stopped_at_any_write(
    line: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename of a file in turn; then other settings are begun and stopped too; then it goes on."""
    replace = os.replace
    crashes = 0
    for limit in range(100):
        left = limit

        def replace_or_die(source: Path, target: Path) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            replace(source, target)

        run = tmp_path / str(limit)
        monkeypatch.setattr(os, "replace", replace_or_die)
        try:
            fit(line, run)
            finished = True
        except Killed:
            finished, crashes = False, crashes + 1
        monkeypatch.setattr(os, "replace", replace)
        if limit % 3 == 0:
            with pytest.raises(Killed):
                fit(line, run, Stopper("Regions", 1), features={"views": 1}, learn={"epochs": 2}, crop={"padding": 0.3})
        fit(line, run)
        assert content(run) == whole, f"after a crash at write {limit}"
        if finished:
            break
    assert crashes > 15


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    line: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunFolder.write

    def full(self: RunFolder, name: str, data: bytes) -> None:
        if name == "tokens/00001.safetensors":
            raise OSError(28, "No space left on device")
        write(self, name, data)

    monkeypatch.setattr(RunFolder, "write", full)
    with pytest.raises(RunError, match=r"No space left on device.*call the same command again"):
        fit(line, tmp_path / "run")
    assert "No space left" in (tmp_path / "run/run.log").read_text()
    monkeypatch.setattr(RunFolder, "write", write)
    fit(line, tmp_path / "run")
    assert content(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("setting", "redone"),
    [
        ({"learn": {"epochs": 3}}, {"model"}),
        ({"features": {"views": 1, "center": False}}, {"model"}),
        ({"features": {"views": 1, "image": 0.25}}, {"model"}),
        ({"merge": {"how": "average"}}, set()),
        ({"crop": {"padding": 0.5}}, {"tokens", "model"}),
        ({"features": {"views": 2}}, {"tokens", "model"}),
        ({"binarize": {"erosion": 2}}, {"range", "tokens", "model"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # the same in every process
)
def test_a_changed_setting_redoes_what_depends_on_it(
    setting: dict[str, Any], redone: set[str], line: Path, tmp_path: Path
) -> None:
    watched = {"range": "range.json", "tokens": "tokens/*", "model": "loss.csv"}
    fit(line, tmp_path / "run")
    before = {what: times(tmp_path / "run", pattern) for what, pattern in watched.items()}
    fit(line, tmp_path / "run", **{**FAST, **setting})
    after = {what: times(tmp_path / "run", pattern) for what, pattern in watched.items()}
    assert {what for what in watched if after[what] != before[what]} == redone
    fit(line, tmp_path / "fresh", **{**FAST, **setting})
    assert content(tmp_path / "run") == content(tmp_path / "fresh"), "as a fresh run with these settings"


def test_a_changed_file_is_noticed(line: Path, tmp_path: Path) -> None:
    shutil.copytree(line, tmp_path / "line")
    fit(tmp_path / "line", tmp_path / "run")
    first = times(tmp_path / "run", "tokens/*")
    shutil.copy(line / "images/2.png", tmp_path / "line/images/3.png")
    fit(tmp_path / "line", tmp_path / "run")
    assert all(old != new for old, new in zip(first, times(tmp_path / "run", "tokens/*"), strict=True))


def test_a_file_that_could_not_be_read_is_tried_again(
    line: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network share that was away for a moment: the file itself is as it was."""
    read = extract.read_image

    def away(source: Any) -> Any:
        if Path(source).name == "3.png":
            raise BadFileError(f"{source}: cannot be read (Host is down)")
        return read(source)

    monkeypatch.setattr(extract, "read_image", away)
    model = fit(line, tmp_path / "run")
    assert model.skipped_ == {"3.png": f"{line / 'images/3.png'}: cannot be read (Host is down)"}
    first = times(tmp_path / "run", "tokens/*")
    assert fit(line, tmp_path / "run").skipped_ and times(tmp_path / "run", "tokens/*") == first
    monkeypatch.setattr(extract, "read_image", read)
    fit(line, tmp_path / "run")
    assert content(tmp_path / "run") == whole


@pytest.mark.parametrize(
    "file", ["stages.json", "range.json", "tokens/00001.safetensors", "model.safetensors", "images.csv", "config.yaml"]
)
@pytest.mark.parametrize("damage", ["cut", "noise", "gone"])
def test_damage_is_mended_by_the_same_call(
    file: str, damage: str, line: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    run = tmp_path / "run"
    fit(line, run)
    path = run / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "noise":
        path.write_bytes(b"\x00\xff{[" + os.urandom(50))
    else:
        path.unlink()
    if (file, damage) == ("stages.json", "gone"):  # what tells a run folder from any other
        with pytest.raises(RunError, match="holds other files"):
            fit(line, run)
    else:
        fit(line, run)
        assert content(run) == whole


def test_damaged_class_tokens_are_computed_again(line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    before = content(tmp_path / "run")
    (tmp_path / "run/tokens/trained.safetensors").write_bytes(b"x")
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    assert content(tmp_path / "run") == before


def test_missing_pictures_are_made_again(line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    before = content(tmp_path / "run")
    for picture in [*(tmp_path / "run/crops").rglob("*_mask.png"), *(tmp_path / "run/masks").rglob("*.png")]:
        picture.unlink()
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    assert content(tmp_path / "run") == before


def test_damaged_crops_are_named_with_what_to_do(line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "run", kind="masks", **PAPER)
    for crop in (tmp_path / "run/crops").rglob("*_mask.png"):
        crop.write_bytes(b"")
    settings = {**PAPER, "random_state": 1}
    with pytest.raises(RunError, match=r"a crop of this run is missing.*Remove .*tokens"):
        fit(line, tmp_path / "run", kind="masks", **settings)
    assert not list(tmp_path.rglob("*.partial"))
    shutil.rmtree(tmp_path / "run/tokens")
    fit(line, tmp_path / "run", kind="masks", **settings)


def test_names_that_people_gave_stay_until_classes_are_learned_anew(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(line, run)
    assert json.loads((run / "classes.json").read_text()) == {"0": "normal", "1": "class 1", "2": "class 2"}
    (run / "classes.json").write_text(json.dumps({"1": "Kratzer ü"}))
    assert (
        "Kratzer ü" in AnomalyNCD.load(run).predict(line / "images", maps=line / "maps").images["class_name"].tolist()
    )
    assert "Kratzer ü" in fit(line, run, **FAST, merge={"how": "score"}).images_["class_name"].tolist()
    assert "Kratzer ü" in (run / "regions.csv").read_text(encoding="utf-8")
    with pytest.raises(RunError, match=r"names of classes \(Kratzer ü\)"):
        fit(line, run, **FAST, crop={"padding": 0.5})
    assert "Kratzer ü" in fit(line, run, **FAST, merge={"how": "score"}).images_["class_name"].tolist()


@pytest.mark.parametrize("content", ["[]", "{", '{"x": "dent"}'])
def test_damaged_names_are_named(content: str, line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "run")
    (tmp_path / "run/classes.json").write_text(content)
    for use in (lambda: fit(line, tmp_path / "run"), lambda: AnomalyNCD.load(tmp_path / "run")):
        with pytest.raises(RunError, match=r"classes\.json: expected names of classes"):
            use()


def test_the_log_is_appended_to(line: Path, tmp_path: Path) -> None:
    fit(line, tmp_path / "run")
    fit(line, tmp_path / "run")
    log = (tmp_path / "run/run.log").read_text()
    assert log.count("AnomalyNCD.fit") == 2 and log.count("finished in") == 2 and "learning: " in log


def test_classes_without_images_are_named_but_normal_is_none_of_them() -> None:
    warned: list[str] = []
    progress = SimpleNamespace(warn=warned.append)
    model = SimpleNamespace(classes=np.arange(3), names={0: "normal", 1: "dent", 2: "hole"}, false_alarms=None)
    result = SimpleNamespace(labels=np.array([2, 2]), regions=pd.DataFrame({"region": [0]}))
    _warn_of_results(model, result, progress)  # type: ignore[arg-type]
    assert len(warned) == 1 and warned[0].startswith("dent: no image is of this class")
    result.regions = result.regions[:0]
    _warn_of_results(model, result, progress)  # type: ignore[arg-type]
    assert len(warned) == 1
