"""A run against the truth: labels of folders, of a table, and what is said where they do not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from anomalyncd.errors import DataError, MissingDataError
from anomalyncd.run import evaluate as module
from anomalyncd.run.evaluate import evaluate_run, read_labels, told_images
from anomalyncd.run.finished import FinishedRun


def a_run(folder: Path, **columns: Any) -> FinishedRun:
    """As much of a finished run as is needed: four images, the tables of which are given."""
    table = pd.DataFrame(
        {"image": ["a", "b", "c", "d"], "label": [0, 1, 1, 2], "probability": [0.9, 0.8, 0.7, 0.6], **columns}
    )
    run = FinishedRun.__new__(FinishedRun)
    run.__dict__.update(
        images=table, path=folder, folder=SimpleNamespace(place=lambda name: folder / name),
        manifest=pd.DataFrame({"image": ["a", "e"], "status": ["ok", "skipped"], "message": ["", "damaged"]}),
    )  # fmt: skip
    return run


def test_folders_tell_the_truth_unless_a_table_does(tmp_path: Path) -> None:
    run = a_run(tmp_path, true_label=["good", "x", "y", "z"])
    found, skipped = evaluate_run(run)
    assert skipped == 1 and found.n_images == 4
    (tmp_path / "labels.csv").write_text("image,label\na,good\nb,x\nc,x\n")
    better, _ = evaluate_run(run, tmp_path / "labels.csv")
    assert better.n_images == 3 and better.f1 == 1 and found.f1 < 1


def test_images_that_were_told_do_not_count(tmp_path: Path) -> None:
    run = a_run(tmp_path, true_label=["good", "x", "y", None])
    (tmp_path / "known.csv").write_text("image,region,label,class_name,looks_like\nc,0,1,y,\n")
    assert told_images(run) == {"c"}
    found, _ = evaluate_run(run)
    assert found.n_images == 2 and found.f1 == 1
    everything = "".join(f"{name},0,1,y,\n" for name in "abcd")
    (tmp_path / "known.csv").write_text(f"image,region,label,class_name,looks_like\n{everything}")
    with pytest.raises(DataError, match="every image with a true label was given as a known example"):
        evaluate_run(run)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\nz,good\n")
    with pytest.raises(DataError, match="none of its images is in the run; ids look like 'a'"):
        evaluate_run(a_run(tmp_path), labels)
    with pytest.raises(DataError, match="its images lay in no class folders"):
        evaluate_run(a_run(tmp_path))
    run = a_run(tmp_path, true_label=["fine", "x", "x", "y"])
    with pytest.raises(DataError, match="--normal-label ok: no image has this label; there are fine, x, y"):
        evaluate_run(run, normal_names=["fine", "ok"])


def test_names_of_the_normal_class_and_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "evaluate", lambda *given, **named: seen.append((given, named)))
    run = a_run(tmp_path, true_label=["fine", "x", None, "y"])
    evaluate_run(run)
    evaluate_run(run, normal_names=["fine"])
    (truth, labels, sure), named = seen[0]
    assert truth == ["fine", "x", "y"] and labels == [0, 1, 2] and sure.tolist() == [0.9, 0.8, 0.6]
    assert "good" in named["normal_names"] and list(named["normal_names"]) == sorted(named["normal_names"])
    assert seen[1][1]["normal_names"] == ("fine",)
    for odd, known in (
        ([0, 1.0, 5, 0], True),
        ([0.5, 1.01, 0, 0], False),
        ([0.5, -0.1, 0, 0], False),
        ([None] * 4, False),
    ):
        evaluate_run(a_run(tmp_path, true_label=["fine", "x", None, "y"], probability=odd))
        assert (seen[-1][0][2] is not None) is known
    run.__dict__["images"] = run.images.drop(columns="probability")
    evaluate_run(run)
    assert seen[-1][0][2] is None


def test_a_table_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("\ufeff Image , LABEL,more\na.png, dent ,1\nb.png,  ,2\n007,001,3\n", encoding="utf-8")
    assert read_labels(path) == {"a.png": "dent", "007": "001"}
    for content, words in (
        ("image,class\na,b\n", "expected the columns image and label, but got image, class"),
        ("image,label\na,b\nc,d\na,b\n", "expected one row an image, but a is there more than once"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            read_labels(path)
    with pytest.raises(DataError, match="but this is no file"):
        read_labels(tmp_path)
    with pytest.raises(MissingDataError, match="but there is no such file"):
        read_labels(tmp_path / "none.csv")
