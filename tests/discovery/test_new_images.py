"""More images for a run, without a run: which are new, what they are called, and what may open a class."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.discovery import update as module
from anomalyncd.regions.records import ImageRecord


def manifest_of(*rows: tuple[Path, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "image": [file.name for file, _ in rows],
            "file": [str(file) for file, _ in rows],
            "status": [s for _, s in rows],
        }
    )


def test_which_samples_are_new_and_what_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    for name in ("ok.png", "changed.png", "mended.png", "new.png"):
        cv2.imwrite(str(tmp_path / name), picture)
    (tmp_path / "broken.png").write_bytes(b"nonsense")
    (tmp_path / "manifest.csv").touch()
    monkeypatch.setattr(module, "is_changed", lambda path, row, written: path.name == "changed.png")
    rows = [("ok", "ok"), ("changed", "ok"), ("mended", "skipped"), ("broken", "skipped")]
    state = SimpleNamespace(
        manifest=manifest_of(*((tmp_path / f"{name}.png", status) for name, status in rows)),
        store=SimpleNamespace(images=[SimpleNamespace(id=name) for name in ("ok.png", "a/new.png", "a/new (2).png")]),
    )
    names = ["ok", "changed", "mended", "broken", "new"]
    samples = [Sample(f"{name}.png", tmp_path / f"{name}.png") for name in names]
    samples += [Sample("ok.png", picture), Sample("a/new.png", picture), Sample("a/new.png", picture)]
    found, known = module._new_samples(tmp_path, state, samples)  # type: ignore[arg-type]
    assert known == ["ok.png", "broken.png"]
    assert [sample.id for sample in found] == [
        "changed.png", "mended.png", "new.png", "ok (2).png", "a/new (3).png", "a/new (4).png",
    ]  # fmt: skip
    assert found[0].image == tmp_path / "changed.png"


def test_the_last_row_of_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.csv").touch()
    asked: list[object] = []
    monkeypatch.setattr(module, "is_changed", lambda path, row, written: (asked.append(row["image"]), False)[1])
    table = manifest_of((tmp_path / "a.png", "ok"), (tmp_path / "a.png", "ok"))
    table["image"] = ["first", "last"]
    state = SimpleNamespace(manifest=table, store=SimpleNamespace(images=[]))
    assert module._new_samples(tmp_path, state, [Sample("a.png", tmp_path / "a.png")]) == ([], ["a.png"])  # type: ignore[arg-type]
    assert asked == ["last"]


def region(index: int, number: int = 0) -> SimpleNamespace:
    return SimpleNamespace(index=index, image=f"{index}.png", region=number)


def test_regions_of_other_products_are_not_counted_as_unknown() -> None:
    state = SimpleNamespace(
        regions=[region(0), region(1), region(2), region(2, 1)], outside=np.array([False, True, False])
    )
    assert module._n_unknown(state, np.array([-1, -1, -1, 0])) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("scenes", [True, False])
def test_new_regions_have_the_classes_that_the_model_gives_them(scenes: bool) -> None:
    """Two old regions in two images; three new ones, of which one is unknown and one of another product."""
    records = [ImageRecord(k, f"{k}.png", 8, 8, 1) for k in range(5)]
    seen: list[Any] = []
    nan = float("nan")

    def recognize(parts: Any, regions: Any, images: Any) -> tuple[np.ndarray, None, None]:
        seen.append((parts["p"].tolist(), [one.index for one in regions], len(images)))
        return np.array([[0.1, 0.9], [nan, nan], [0.8, 0.2]]), None, None

    model = SimpleNamespace(
        recognize=recognize, classes=np.array([0, 4]), foreign=lambda given: given if scenes else None,
    )  # fmt: skip
    store = SimpleNamespace(
        regions=[region(0), region(1), region(2), region(3), region(4)], images=records, parts={"p": np.arange(5)},
        scenes=np.array([0.9, 0.9, 0.1, 0.2, 0.6]), run=SimpleNamespace(path=Path("run")),
    )  # fmt: skip
    state = SimpleNamespace(
        model=model, store=SimpleNamespace(images=records[:2]), regions=store.regions[:2], labels=np.array([4, -1]),
        fixed=np.array([True, False]), outside=np.array([False, True]), truth={"0.png": "x"},
        manifest=pd.DataFrame({"image": ["0.png", "1.png"]}),
    )  # fmt: skip
    samples = [Sample(f"{k}.png", np.zeros((2, 2, 3)), label="new" if k == 3 else None) for k in (2, 3, 4)]
    found = module._joined(state, store, samples)  # type: ignore[arg-type]
    assert seen == [([2, 3, 4], [2, 3, 4], 5)]
    assert found.labels.tolist() == [4, -1, 4, -1, -1 if scenes else 0] and found.labels.dtype == np.int64
    assert found.outside.tolist() == [False, True, False, False, scenes], "what was in the run stays as it was"
    assert found.fixed.tolist() == [True, False, False, False, False]
    assert found.truth == {"0.png": "x", "3.png": "new"}
    assert found.manifest["image"].tolist() == [f"{k}.png" for k in range(5)]
    assert found.features is store.parts and found.store is store


def test_what_may_open_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "open_classes", lambda *given, **named: (seen.append((given, named)), "opened")[1])
    config = make_config({"unknown": {"group": 4}, "detect": {"false_alarms": 0.05}})
    model = SimpleNamespace(
        config=config, highest=9, classifier=SimpleNamespace(space=SimpleNamespace(blocks=lambda features: ("b", "w"))),
        false_alarm_probability=lambda *given: np.array([0.05, 0.06, 0.0]),
    )  # fmt: skip
    state = SimpleNamespace(
        model=model, labels=np.array([1, -1, -1]), regions=[region(0), region(1), region(2)], features={},
        store=SimpleNamespace(images=[]), outside=np.array([False, False, True]),
    )  # fmt: skip
    assert module._with_new_classes(state, 2) == "opened"  # type: ignore[arg-type, comparison-overlap]
    ((blocks, weights, images, labels, n_before, silent, least), named) = seen[0]
    assert (blocks, weights, n_before, least, named) == ("b", "w", 2, 4, {"above": 9, "seed": config.random_state})
    assert images.tolist() == [0, 1, 2] and labels is state.labels and silent.tolist() == [False, True, True]
    model.config = make_config({"unknown": {"false_rate": 0}})
    assert module._with_new_classes(state, 2) is state.labels and len(seen) == 1  # type: ignore[arg-type]
