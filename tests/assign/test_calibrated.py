"""Which scores are those of normal images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anomalyncd.assign import calibrated as module
from anomalyncd.assign.false_alarms import NormalScores, lowest_group
from anomalyncd.progress import Silent

RNG = np.random.default_rng(0)
NORMAL, PEAKS = RNG.normal(0.5, 0.03, 40), RNG.normal(0.8, 0.05, 40)


class Heard(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []
        self.noted: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def note(self, text: str) -> None:
        self.noted.append(text)


def figures(scores: Any, normal: Any = (), *, peaks: Any = None, normal_peaks: Any = None) -> dict[str, Any]:
    given = {"scores": scores, "peaks": scores if peaks is None else peaks, "normal_scores": normal}
    given["normal_peaks"] = normal if normal_peaks is None else normal_peaks
    return {name: np.asarray(values, np.float64) for name, values in given.items()}


def test_normal_images_tell_how_normal_ones_score() -> None:
    heard = Heard()
    found = module.calibrated(figures(NORMAL + 0.001, NORMAL, normal_peaks=PEAKS), heard)
    assert found is not None and found.scores == NormalScores.fit(NORMAL) and found.peaks == NormalScores.fit(PEAKS)
    assert found.source == "normal images" and not found.moved and not heard.warned and not heard.noted


def test_normal_scores_that_moved_move_the_peaks_along(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, peaks = NormalScores.fit(NORMAL), NormalScores.fit(PEAKS)
    assert plain is not None and peaks is not None
    higher = NormalScores(plain.mean + 1.5 * plain.spread, plain.spread, plain.count)
    asked: list[Any] = []
    monkeypatch.setattr(module, "shifted", lambda known, scores: (asked.append((known, len(scores))), higher)[1])
    heard = Heard()
    found = module.calibrated(figures(np.ones(7), NORMAL, normal_peaks=PEAKS), heard)
    assert asked == [(plain, 7)] and found is not None and found.scores == higher and found.moved
    assert found.peaks.mean == pytest.approx(peaks.mean + 1.5 * peaks.spread) and found.peaks.spread == peaks.spread
    assert heard.noted == ["normal images of this run score 1.5 spreads higher than those of --normal"]


def test_the_runs_own_scores_decide_where_normal_images_are_too_few() -> None:
    heard = Heard()
    scores = np.concatenate([RNG.normal(0.2, 0.02, 30), RNG.normal(0.9, 0.05, 30)])
    peaks = scores + 0.1
    found = module.calibrated(figures(scores, NORMAL[:4], peaks=peaks), heard)
    group = lowest_group(scores)
    assert found is not None and group is not None and found.scores == group and found.source == "mixture"
    low = group.probability(scores) > 0.3
    assert found.peaks == NormalScores.fit(peaks[low]) and "4 normal images are too few" in heard.warned[0]
    assert not found.moved
    lonely = module.calibrated(figures(scores, peaks=np.full(60, np.nan)), Heard())
    assert lonely is not None and lonely.peaks == lonely.scores


def test_where_nothing_tells_it_is_said() -> None:
    heard = Heard()
    assert module.calibrated(figures(NORMAL), heard) is None
    assert len(heard.warned) == 1 and "show no two groups of images" in heard.warned[0]
