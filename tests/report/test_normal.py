"""The picture of how normal images score and where the line is, as a file and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from anomalyncd.report.html import write_report
from anomalyncd.report.normal import HEIGHT, TITLE, WIDTH, draw_normal, read_scores, score_chart
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder

NOTED: dict[str, Any] = {
    "source": "normal images",
    "rate": 0.02,
    "line": 1.5,
    "normal_scores": [1.0, 1.1, 1.2, 1.4],
    "scores": [1.0, 1.3, 2.0, 3.0, 1.5],
    "labels": [0, 0, 1, 2, -1],
}


@pytest.fixture
def run(make_run: Any) -> Path:
    path, _ = make_run(10)
    images = pd.read_csv(path / "images.csv").assign(classes="", unknown=0.0)  # which a page wants too
    images.to_csv(path / "images.csv", index=False)
    return path


def noted(run: Path, **changes: Any) -> FinishedRun:
    RunFolder(run).write_json("normal.json", {**NOTED, **changes})
    return FinishedRun(run)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    saved: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (saved.append(self), real(self, *a, **o))[1])
    return saved


def test_the_line_is_drawn_where_it_is(run: Path, figures: list[Figure]) -> None:
    path = draw_normal(noted(run))
    assert path == run / "pictures" / "normal.png"
    picture = cv2.imread(str(path))
    assert picture is not None and min(picture.shape[:2]) > 300 and picture.std() > 10
    (axes,) = figures[0].axes
    assert [float(line.get_xdata()[0]) for line in axes.lines] == [1.5]
    assert [text.get_text() for text in axes.texts] == ["2 % of normal images score higher"]
    assert axes.get_title() == TITLE and len(axes.containers) == 2
    for bars in axes.containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_bars_and_line_of_the_page(run: Path) -> None:
    chart = score_chart(noted(run))
    assert chart is not None
    (normal, _, learned), (own, _, found) = chart["groups"]
    assert normal == "normal images that the detector learned from" and own == "images of this run"
    assert chart["line"] == 0.25 and (chart["low"], chart["high"]) == ("1", "3")
    assert len(learned) == 4 and len(found) == 5
    for x, y, width, height, _ in [*learned, *found]:
        assert x >= 0 and x + width <= WIDTH and y + height == pytest.approx(HEIGHT)
    assert max(height for *_, height, _ in learned) == HEIGHT  # a quarter of four is more than a fifth of five
    assert found[-1][-1] == "2.95 to 3: 20.0 % of images of this run"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "An image to the right of the line scores higher than 98 % of the normal images do and is called a defect: "
            "3 of the 5 images of this run.",
        ),
        (
            {"source": "mixture", "normal_scores": []},
            "No normal images were given, so the lowest group of scores was taken as normal. An image to the right of the "
            "line is called a defect: 3 of the 5 images of this run.",
        ),
        (
            {"source": "looks", "normal_scores": [], "line": None},
            "The scores show no two groups, so there is no line: a kind of region that scores like images without one was "
            "taken as normal, and every other one as a defect: 3 of the 5 images of this run.",
        ),
        (
            {"source": "none", "normal_scores": [], "line": 0.0},
            "The scores show no two groups, so every image with a region was taken as a defect: 3 of the 5 images of this "
            "run.",
        ),
    ],
)
def test_words_say_where_the_line_comes_from(run: Path, changes: Any, sentence: str, figures: list[Figure]) -> None:
    finished = noted(run, **changes)
    chart = score_chart(finished)
    assert chart is not None and chart["about"] == sentence
    assert (chart["line"] is None) == (changes.get("source") in ("none", "looks"))
    assert draw_normal(finished) is not None
    assert " ".join(figures[0].axes[0].get_xlabel().split()) == f"score of an image {sentence}"
    page = write_report(finished, attention=False).read_text()
    assert TITLE in page and sentence in page and 'href="#line"' in page
    assert ("score higher</p>" in page) == (changes.get("source") not in ("none", "looks"))


def test_too_few_normal_images(run: Path) -> None:
    chart = score_chart(noted(run, source="mixture"))
    assert chart is not None and chart["about"].startswith("Too few normal images were given, so the lowest group")


def test_no_line_where_normal_is_a_class_like_all_others(run: Path) -> None:
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "learn:\n  normal: class\n")
    assert draw_normal(noted(run)) is None


def test_nothing_is_drawn_where_nothing_was_noted(run: Path) -> None:
    finished = FinishedRun(run)
    assert read_scores(finished) is None and score_chart(finished) is None and draw_normal(finished) is None
    assert TITLE not in write_report(finished, attention=False).read_text()


@pytest.mark.parametrize(
    "changes", [{"scores": []}, {"scores": None}, {"scores": ["high"]}, {"line": "far"}, {"labels": 3}, {"rate": None}]
)
def test_what_cannot_be_read_is_left_out(run: Path, changes: Any) -> None:
    assert draw_normal(noted(run, **changes)) is None


def test_scores_that_are_all_alike_or_not_finite(run: Path) -> None:
    finished = noted(run, scores=[1.0, 1.0], normal_scores=[1.0], line=1.0, labels=[0, 0])
    chart = score_chart(finished)
    assert chart is not None and 0 <= chart["line"] <= 1 and draw_normal(finished) is not None
    (run / "normal.json").write_text(str({**NOTED, "scores": [1.0, 2.0]}).replace("'", '"').replace("2.0]", "NaN]"))
    found = read_scores(FinishedRun(run))
    assert found is not None and np.array_equal(found.own, [1.0])


def test_an_infinite_score_is_right_of_the_line(run: Path) -> None:
    found = read_scores(noted(run, scores=[1.0, None, 1.3, None]))
    assert found is not None and found.own.tolist() == [1.0, 1.5, 1.3, 1.5]
    assert "2 of the 4 images" in found.sentence
    assert read_scores(noted(run, scores=[None, None])) is None
