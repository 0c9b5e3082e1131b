"""The picture of how the number of classes was estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from anomalyncd.assign.count import CountEstimate, estimate_count
from anomalyncd.report.classes import count_sentence, draw_count
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder


@pytest.fixture(scope="module")
def found() -> CountEstimate:
    return CountEstimate(5, 4, 9, [20, 10, 5], [4, 5, 9], [4, 9, 9], 12.0)


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


def test_every_answer_and_the_choice_are_drawn(found: CountEstimate, figures: list[Figure], tmp_path: Path) -> None:
    write(tmp_path / "run", found)
    path = draw_count(FinishedRun(tmp_path / "run"))
    assert path == tmp_path / "run" / "pictures" / "count.png"
    picture = cv2.imread(str(path))
    assert picture is not None and min(picture.shape[:2]) > 300 and picture.std() > 10
    (axis,) = figures[0].axes
    drawn = {line.get_label(): list(line.get_xdata()) for line in axis.lines}
    assert drawn["communities"] == found.communities and drawn["gap of eigenvalues"] == found.gaps
    assert drawn["chosen"] == [found.count] * 2
    assert " ".join(axis.get_title().split()) == count_sentence(found.to_json_dict())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "cannot tell for sure: 4 to 9 all show at some scale. 5 is the coarser answer, and 9 is the next finer one",
        ),
        ({"low": 5, "high": 5}, "Estimated: 5 kinds. Coarser and finer looks say the same."),
        ({"low": 4, "high": 5, "communities": [4, 5, 5], "gaps": [4, 5, 5]}, "A coarser look gives 4"),
        ({"count": 4, "low": 4, "high": 5, "communities": [4, 4, 5], "gaps": [4, 4, 5]}, "A finer look gives 5"),
        (
            {"count": 1, "low": 1, "high": 1, "communities": [], "gaps": []},
            "one kind, because the regions fall into groups",
        ),
        (
            {"count": 1, "low": 1, "high": 3, "communities": [], "gaps": []},
            "one kind, because there are too few regions",
        ),
    ],
)
def test_the_estimate_in_words(found: CountEstimate, changes: dict[str, Any], sentence: str) -> None:
    assert sentence in count_sentence({**found.to_json_dict(), **changes})


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
