"""What the stages of a run are made from. That a stopped run goes on where it ended is in tests/discovery/test_fit.py."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anomalyncd.config import make_config
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.data.maps import StackRow
from anomalyncd.detect import PatchCore
from anomalyncd.progress import Silent
from anomalyncd.run import stages
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.stages import Stages, content_digest, content_order, definite, file_identity, fingerprint


def begun(folder: Path) -> Stages:
    return Stages(RunFolder(folder / "run"), make_config({"model": {"backbone": "tiny"}}), Silent())


def files(folder: Path) -> Dataset:
    for name in ("a.png", "a.npy", "b.png"):
        (folder / name).write_bytes(b"1")
    return Dataset([Sample("a", folder / "a.png", folder / "a.npy"), Sample("b", folder / "b.png", folder / "a.npy")])


def test_all_stages_of_a_call_are_of_the_same_files(tmp_path: Path) -> None:
    """A file that changes while a run works on it is seen by the next call, and then by every stage."""
    images, now = files(tmp_path), begun(tmp_path)
    before = now.range_key(images), begun(tmp_path).regions_key(images)
    os.utime(tmp_path / "a.png", (1, 1))
    assert (now.range_key(images), now.regions_key(images)) == before
    after = begun(tmp_path)
    assert after.range_key(images) != before[0] and after.regions_key(images) != before[1]


def test_files_are_looked_at_once_in_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, looked_at = files(tmp_path), []
    base = Dataset([Sample("b", tmp_path / "b.png", mask=tmp_path / "a.npy", label="x")])
    fingerprint = stages.fingerprint
    monkeypatch.setattr(
        stages, "fingerprint", lambda samples, *run: looked_at.append(samples) or fingerprint(samples, *run)
    )
    now = begun(tmp_path)
    keys = {now.range_key(images), now.regions_key(images), now.base_key(base), now.base_key(base), now.base_key(None)}
    assert len(keys) == 4 and len(looked_at) == 3  # the images, the normal ones, the base set


def with_settings(folder: Path, **settings: Any) -> Stages:
    return Stages(RunFolder(folder / "run"), make_config({"model": {"backbone": "tiny"}}, settings), Silent())


def regions(*digests: str, errors: tuple[str, ...] = ("", "x")) -> Any:
    return SimpleNamespace(
        regions=[SimpleNamespace(digest=digest, is_drawn=digest.startswith("drawn ")) for digest in digests],
        images=[SimpleNamespace(error=error) for error in errors],
    )


def keys(
    stages_: Stages, images: Dataset, base: Dataset | None = None, *, known: tuple[Any, ...] = ()
) -> dict[str, str]:
    return {
        "maps": stages_.maps_key(images, [], None, None), "range": stages_.range_key(images),
        "regions": stages_.regions_key(images), "normal": stages_.normal_key(), "base": stages_.base_key(base),
        "learn": stages_.learn_key(images, base, regions("a", "b"), known),
    }  # fmt: skip


IGNORE = {"ignore": [[[[0, 0], [0.5, 0], [0.5, 0.5]]]]}


@pytest.mark.parametrize(
    ("settings", "redone"),
    [
        ({}, ""),
        ({"merge": {"how": "average"}}, ""),
        ({"unknown": {"false_rate": 0.2}}, ""),
        ({"detect": {"false_alarms": 0.2}}, ""),
        ({"features": {"center": False}}, "learn"),
        ({"learn": {"epochs": 2}}, "learn"),
        ({"learn": {"normal": "class"}}, "regions learn"),
        ({"random_state": 3}, "maps learn"),
        ({"detect": {"name": "musc"}}, "maps learn"),
        ({"binarize": {"erosion": 3}}, "range regions learn"),
        ({"has_normal": False}, "range regions learn"),
        ({"crop": {"size": 300}}, "regions normal base learn"),
        ({"features": {"blocks": [1]}}, "regions normal base learn"),
        ({"features": {"image": 0}}, "regions normal base learn"),
        ({"features": {"image": 0.4}}, "learn"),
        ({"model": {"image_size": 224}}, "regions normal base learn"),
        ({"precision": "bfloat16"}, "maps regions normal base learn"),
        (IGNORE, "maps range regions normal learn"),
    ],
    ids=str,
)
def test_a_setting_redoes_what_depends_on_it(settings: dict[str, Any], redone: str, tmp_path: Path) -> None:
    images = files(tmp_path)
    base = Dataset([Sample("b", tmp_path / "b.png", mask=tmp_path / "a.npy", label="x")])
    before, after = keys(begun(tmp_path), images, base), keys(with_settings(tmp_path, **settings), images, base)
    assert {name for name in before if before[name] != after[name]} == set(redone.split())


def test_what_is_learned_depends_on_regions_files_and_what_was_told(tmp_path: Path) -> None:
    images, now = files(tmp_path), begun(tmp_path)
    plain = now.learn_key(images, None, regions("a", "b"))
    others = [
        now.learn_key(images, None, regions("a", "c")), now.learn_key(images, None, regions("a", "b", errors=("", ""))),
        now.learn_key(images, None, regions("a", "b"), ["told"]),
        now.learn_key(images, Dataset([Sample("b", tmp_path / "b.png", label="x")]), regions("a", "b")),
    ]  # fmt: skip
    assert len({plain, *others}) == 5
    assert now.learn_key(images, None, regions("a", "b", errors=("", "y"))) == plain, "why it failed has no say"
    assert now.learn_key(images, None, regions("a", "drawn c", "b")) == plain, "what people drew came later"
    assert now.learn_key(images, None, regions("a", "b"), []) == plain


def test_labels_and_normal_images_have_a_say(tmp_path: Path) -> None:
    files(tmp_path)

    def base(label: str) -> str:
        return begun(tmp_path).base_key(Dataset([Sample("b", tmp_path / "b.png", label=label)]))

    assert base("x") == base("x") != base("y") and begun(tmp_path).base_key(None) == ""
    with_normal = begun(tmp_path)
    with_normal.normal = [Sample("n", tmp_path / "a.png")]
    images = Dataset([Sample("a", tmp_path / "a.png", tmp_path / "a.npy")])
    assert with_normal.range_key(images) != begun(tmp_path).range_key(images)
    assert with_normal.normal_key() != begun(tmp_path).normal_key()


def test_maps_are_of_images_normal_images_and_the_detector(tmp_path: Path) -> None:
    images = files(tmp_path)
    normal = [Sample("n", tmp_path / "b.png")]
    now = begun(tmp_path)
    detector = PatchCore(backbone="tiny", size=32, device="cpu")
    other = PatchCore(backbone="tiny", size=48, device="cpu")
    fitted = tmp_path / "fitted"
    (fitted / "detector").mkdir(parents=True)
    (fitted / "detector" / "a").write_bytes(b"1")
    found = [
        now.maps_key(images, [], None, None), now.maps_key(images, normal, None, None),
        now.maps_key(normal, images, None, None), now.maps_key(images, [], detector, None),
        now.maps_key(images, [], other, None), now.maps_key(images, [], None, fitted),
    ]  # fmt: skip
    (fitted / "detector" / "a").write_bytes(b"12")
    found.append(now.maps_key(images, [], None, fitted))
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"1")
    own = with_settings(tmp_path, detect={"name": "patchcore", "settings": {"weights": str(weights)}})
    found.append(own.maps_key(images, [], None, None))
    weights.write_bytes(b"12")
    found.append(own.maps_key(images, [], None, None))
    assert len(set(found)) == 9
    assert now.maps_key(images, [], detector, None) == found[3]


def test_a_stage_is_done_once_unless_what_it_made_is_damaged(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as folder:
        now = Stages(folder, make_config({"model": {"backbone": "tiny"}}), Silent())
        made: list[int] = []

        def make() -> int:
            made.append(1)
            folder.write_text("out", str(len(made)))
            return len(made)

        def read() -> int | None:
            text = folder.place("out").read_text()
            return int(text) if text.isdigit() else None

        assert [now.once("s", "k", read, make, "out") for _ in range(2)] == [1, 1] and len(made) == 1
        folder.write_text("out", "damaged")
        assert now.once("s", "k", read, make, "out") == 2
        assert now.once("s", "other", read, make, "out") == 3 and folder.is_done("s", "other")

        def broken() -> int:
            assert not folder.place("out").exists(), "taken away before it is made from other inputs"
            raise ValueError

        with pytest.raises(ValueError):
            now.once("s", "third", read, broken, "out")
        assert folder.has_begun("s") and not folder.is_done("s", "third")


@pytest.mark.parametrize("wrong", [None, [], {"low": 0}, {"scores": ["a"]}, {"high": "x"}, {"peaks": None}])
def test_the_range_is_read_again_and_made_anew_where_it_is_damaged(wrong: Any, tmp_path: Path) -> None:
    images = files(tmp_path)
    state = {"low": 0.5, "high": 2, "scores": [1, None], "peaks": [2.5], "normal_scores": [], "normal_peaks": []}
    with RunFolder(tmp_path / "run").writing() as folder:

        def now(fit: Any) -> dict[str, Any]:
            return Stages(folder, make_config({"model": {"backbone": "tiny"}}), Silent()).range(images, fit)

        assert now(lambda: state) == state
        assert now(lambda: pytest.fail("fitted again")) == state
        damaged = {**state, **wrong} if wrong and "low" not in wrong else wrong
        folder.write_json("range.json", damaged)
        assert now(lambda: {**state, "low": 0.1})["low"] == 0.1


def test_what_was_learned_is_kept(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as folder:
        now = Stages(folder, make_config({"model": {"backbone": "tiny"}}), Silent())
        now.keep_learned(b"model", [], None)
        assert sorted(folder.files()) == [".lock", "model.safetensors", "stages.json"]
        now.keep_learned(b"again", [{"epoch": 1, "loss": 0.5}], {"count": 3})
        assert folder.read_json("count.json") == {"count": 3}
        assert folder.place("loss.csv").read_text() == "epoch,loss\n1,0.5\n"
        assert folder.place("model.safetensors").read_bytes() == b"again"


def test_the_time_of_a_stage_is_without_that_of_stages_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 14.0, 15.0])
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(clock))
    now, said = begun(tmp_path), []
    monkeypatch.setattr(now.progress, "note", said.append, raising=False)
    now.seconds["before"] = 100.0
    with now.timed("outer"), now.timed("inner"):
        pass
    assert now.seconds == {"before": 100, "inner": 3, "outer": 2} and said == ["inner: 3.0 s", "outer: 2.0 s"]


def test_files_of_a_run_are_called_as_they_are_in_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "maps").mkdir(parents=True)
    file = run / "maps" / "a.npy"
    file.write_bytes(b"123")
    os.utime(file, ns=(5, 7))
    assert file_identity(file, run) == ["maps/a.npy", 3, 7] and file_identity(file) == [str(file), 3, 7]
    assert file_identity(StackRow(file, 4), run) == [f"{file}[4]", 3, 7]
    assert file_identity(run / "gone", run) == ["gone", "missing"] and file_identity(Path("a\0"))[1] == "missing"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = fingerprint([Sample("x", file, array, None), Sample("y", array.T, None, file)], run)
    assert found[0] == ["x", ["maps/a.npy", 3, 7], ["float32", (2, 3), content_digest(array)], None]
    assert found[1][1][1:] == [(3, 2), content_digest(array.T)] and found[1][3] == ["maps/a.npy", 3, 7]


def test_content_tells_pictures_apart_and_orders_them(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    assert content_digest(file) == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert content_digest(np.frombuffer(b"one", np.uint8)) == content_digest(file)
    assert content_digest(None) == content_digest(tmp_path / "gone") == ""
    arrays = [np.full((2, 2), value, np.uint8) for value in range(6)]
    order = content_order([Sample(str(k), array) for k, array in enumerate(arrays)])
    assert order == sorted(range(6), key=lambda k: content_digest(arrays[k])) and order != list(range(6))
    turned = arrays[0].copy(order="F")
    assert content_digest(turned) == content_digest(arrays[0])


def test_settings_are_made_definite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = definite(make_config({"model": {"backbone": "auto", "weights": "w.pt"}}))
    assert config.model.backbone != "auto" and config.model.weights == tmp_path / "w.pt"
    assert definite(make_config({})).model.weights is None
