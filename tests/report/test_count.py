"""The picture of how the number of classes was estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from anomalyncd.assign import count as assign_count
from anomalyncd.assign.count import CountEstimate, estimate_count
from anomalyncd.report.classes import draw_count
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder


@pytest.fixture(scope="module")
def found() -> CountEstimate:
    rng = np.random.default_rng(0)
    x = np.eye(8)[np.arange(45) % 3] + rng.normal(0, 0.15, (45, 8))
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (("STARTS", 2), ("RESAMPLES", 6), ("BLOBS", 2)):
            patch.setattr(assign_count, name, few)
        return estimate_count((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), most=6)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    saved: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (saved.append(self), real(self, *a, **o))[1])
    return saved


def finish(run: Path) -> RunFolder:
    folder = RunFolder(run)
    folder.finish("learn", "")
    folder.write_text("images.csv", "")
    return folder


def write(run: Path, found: CountEstimate, **changes: Any) -> None:
    finish(run).write_json("count.json", {**found.to_json_dict(), "normal": 1, **changes})


def test_the_choice_is_marked_where_the_score_says(found: CountEstimate, figures: list[Figure], tmp_path: Path) -> None:
    write(tmp_path / "run", found)
    path = draw_count(FinishedRun(tmp_path / "run"))
    assert path == tmp_path / "run" / "pictures" / "count.png"
    picture = cv2.imread(str(path))
    assert picture is not None and min(picture.shape[:2]) > 300 and picture.std() > 10
    above, below = figures[0].axes
    curve = above.lines[0].get_xydata()
    np.testing.assert_allclose(curve, np.column_stack([found.candidates, found.score]))
    marks = [line for line in above.lines[1:] if len(line.get_xdata()) == 1]
    assert [float(mark.get_xdata()[0]) for mark in marks] == [found.count] == [3]
    assert marks[0].get_ydata()[0] == pytest.approx(found.score[found.candidates.index(3)])
    assert "3" in above.get_title()
    for line in below.lines:
        assert line.get_xdata().tolist() == found.candidates
    assert {tuple(found.silhouette), tuple(found.stability)} <= {tuple(line.get_ydata()) for line in below.lines}


def test_one_class_has_no_mark_among_the_candidates(
    found: CountEstimate, figures: list[Figure], tmp_path: Path
) -> None:
    write(tmp_path / "run", found, count=1, low=1, high=1)
    assert draw_count(FinishedRun(tmp_path / "run")) is not None
    assert all(len(line.get_xdata()) > 1 for line in figures[0].axes[0].lines)


def test_nothing_is_drawn_where_nothing_was_estimated(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    assert draw_count(FinishedRun(tmp_path / "run")) is None
    few = estimate_count(np.eye(3, dtype=np.float32), most=5)
    write(tmp_path / "run", few)
    assert draw_count(FinishedRun(tmp_path / "run")) is None and not (tmp_path / "run" / "pictures").exists()


def test_one_candidate_only(found: CountEstimate, tmp_path: Path) -> None:
    first = {name: values[:1] for name, values in found.to_json_dict().items() if isinstance(values, list)}
    write(tmp_path / "run", found, **first, count=2, low=2, high=2)
    assert draw_count(FinishedRun(tmp_path / "run")) is not None
