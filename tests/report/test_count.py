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
    answers = {"silhouette": 20, "eigengap": 9, "communities": 5, "shared neighbours": 4}
    return CountEstimate(5, 4, 20, 9, "cannot tell", answers, 12.0, 100, 10)


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
    assert drawn["answers"] == [5, 9, 4, 20], "by the names of the ways, as count.json has them"
    assert drawn["chosen"] == [found.count] * 2
    assert " ".join(axis.get_title().split()) == count_sentence(found.to_json_dict())


SAME = {"silhouette": 5, "eigengap": 5, "communities": 5, "shared neighbours": 5}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "cannot tell how many kinds there are: four ways of counting say 4, 5, 9 and 20. 5 is a coarse answer. If a",
        ),
        (
            {"verdict": "agreed"},
            "Estimated: 5 kinds; four ways of counting say 4, 5, 9 and 20. If a class looks mixed, 9 is",
        ),
        ({"verdict": "agreed", "answers": SAME, "finer": None}, "5 kinds; four ways of counting say the same."),
        ({"verdict": "one kind", "count": 1, "finer": 3}, "1 kind, because the regions fall into groups no more than"),
        ({"verdict": "too few", "count": 1, "finer": None, "answers": {}}, "1 kind, because there are too few regions"),
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
