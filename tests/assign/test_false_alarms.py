"""Normal or defect: what scores and looks of normal images say about a finding."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from anomalyncd.assign import false_alarms as module
from anomalyncd.assign.false_alarms import (
    BEYOND_DOUBT,
    LEAST_NORMAL,
    FalseAlarms,
    Looks,
    NormalScores,
    add_looks,
    likeness,
    lowest_group,
    shifted,
    student_tail,
)

RATE = 0.02


@pytest.mark.parametrize("freedom", [4, 5, 8, 20, 99, 1000])
def test_the_tail_of_students_t_is_within_a_tenth(freedom: int) -> None:
    t = np.linspace(-6, 6, 121)
    tail = student_tail(t, freedom)
    assert np.allclose(tail, stats.t.sf(t, freedom), rtol=0.1, atol=0)
    assert (np.diff(tail) < 0).all() and student_tail(0.0, freedom) == pytest.approx(0.5)


@given(
    mean=st.floats(-1e3, 1e3), spread=st.floats(1e-3, 1e3), count=st.integers(LEAST_NORMAL, 500),
    rate=st.floats(1e-3, 0.5),
)  # fmt: skip
def test_the_level_of_a_rate_is_the_inverse_of_the_probability(
    mean: float, spread: float, count: int, rate: float
) -> None:
    known = NormalScores(mean, spread, count)
    level = known.level(rate)
    assert float(known.probability(level)) == pytest.approx(rate, rel=1e-6)
    assert float(known.probability(level + 1e-6 * spread)) < rate < float(known.probability(level - 1e-6 * spread))


@pytest.mark.parametrize(("rate", "count"), [(0.02, 100), (0.1, 100), (0.05, 20)])
def test_as_many_false_alarms_as_promised(rate: float, count: int) -> None:
    """Also with few normal images, whose mean and spread are uncertain: the wider tail of Student's t allows for it."""
    rng = np.random.default_rng(0)
    measured = []
    for _ in range(20):
        known = NormalScores.fit(rng.normal(0.3, 0.05, count))
        assert known is not None
        measured.append((known.probability(rng.normal(0.3, 0.05, 20_000)) <= rate).mean())
    assert np.mean(measured) == pytest.approx(rate, abs=0.01)


def test_defects_among_the_normal_images_hardly_matter() -> None:
    rng = np.random.default_rng(0)
    clean = rng.normal(0.3, 0.02, 90)
    one, other = NormalScores.fit(clean), NormalScores.fit([*clean, *rng.uniform(2, 9, 10)])
    assert one is not None and other is not None
    assert other.mean == pytest.approx(one.mean, abs=0.1 * one.spread)
    assert other.spread == pytest.approx(one.spread, rel=0.1) and other.count == 90


def test_a_normal_image_that_scores_somewhat_high_counts() -> None:
    values = [*np.random.default_rng(0).normal(0.3, 0.02, 40), 0.4]
    known = NormalScores.fit(values)
    assert known is not None and known.count == 41


@pytest.mark.parametrize(
    "scores", [[], [0.3], [0.1, 0.2, 0.3, 0.4], [np.nan] * 9, [0.1, 0.2, 0.3, 0.4, np.nan, np.inf]]
)
def test_fewer_than_five_normal_images_tell_nothing(scores: list[float]) -> None:
    assert NormalScores.fit(scores) is None


def test_holes_are_left_out() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert NormalScores.fit([*values, np.nan, np.inf, -np.inf]) == NormalScores.fit(values)


@pytest.mark.parametrize("value", [0.0, 0.4, -3.0])
def test_equal_scores_are_no_certainty(value: float) -> None:
    known = NormalScores.fit([value] * 8)
    assert known is not None and known.spread > 0
    assert float(known.probability(value)) == pytest.approx(0.5)
    assert float(known.probability(value + 0.02 * abs(value))) > 0.01 if value else True
    assert math.isfinite(known.level(RATE)) and known.level(RATE) > value


LEVELS = (0.10, 0.35, 0.90)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(30, 30, 30), (60, 15, 40), (20, 40, 40)])
def test_weak_defects_are_not_taken_for_normal(seed: int, sizes: tuple[int, ...]) -> None:
    """Three levels: the lowest is the normal one, and every image of the two others is a defect."""
    rng = np.random.default_rng(seed)
    groups = [rng.normal(level, 0.02, size) for level, size in zip(LEVELS, sizes, strict=True)]
    known = lowest_group(rng.permutation(np.concatenate(groups)))
    assert known is not None
    assert known.mean == pytest.approx(0.1, abs=0.02) and known.spread == pytest.approx(0.02, rel=0.5)
    assert known.count == pytest.approx(sizes[0], abs=3)
    assert (known.probability(np.concatenate(groups[1:])) < RATE).all()
    assert (known.probability(groups[0]) > RATE).mean() > 0.9


def test_bells_without_a_peak_of_their_own_are_one_group() -> None:
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.normal(0.1, 0.002, 200), rng.normal(0.103, 0.012, 200)])
    known = lowest_group(np.concatenate([low, rng.normal(0.2, 0.004, 100)]))
    assert known is not None and known.count == 400
    assert (known.mean, known.spread) == pytest.approx((low.mean(), low.std()), rel=0.1)


@pytest.mark.parametrize(("factor", "shift"), [(1000.0, 0.0), (1e-4, 0.0), (1.0, -5.0)])
def test_the_units_of_the_maps_do_not_matter(factor: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(level, 0.02, 30) for level in LEVELS])
    one, other = lowest_group(values), lowest_group(values * factor + shift)
    assert one is not None and other is not None and other.count == one.count
    assert (other.mean - shift, other.spread) == pytest.approx((one.mean * factor, one.spread * factor), rel=1e-3)


@pytest.mark.parametrize(
    "scores",
    [
        [], [0.5], [0.1] * 4 + [0.9] * 5, [0.3] * 40, [np.nan] * 40, [0.0] * 20,
        np.random.default_rng(0).normal(0.5, 0.1, 60), np.random.default_rng(1).uniform(0, 1, 60),
    ],
    ids=["none", "one", "too few", "equal", "nan", "zero", "one bell", "flat"],
)  # fmt: skip
def test_one_level_tells_nothing(scores: list[float]) -> None:
    assert lowest_group(scores) is None


def test_holes_do_not_disturb_the_groups() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(level, 0.02, 30) for level in LEVELS])
    assert lowest_group([*values, np.nan, np.inf]) == lowest_group(values)


# Looks: features near (1, 0, 0, …) are normal products, those near (0, 1, 0, …) defects.


def features(kind: int, count: int, rng: np.random.Generator, noise: float = 0.15) -> np.ndarray:
    """(count, 2, 16) as `image` parts."""
    out = rng.normal(0, noise, (count, 2, 16)).astype(np.float32)
    out[:, :, kind] += 1
    return out


@pytest.fixture(scope="module")
def known() -> FalseAlarms:
    rng = np.random.default_rng(0)
    normal = rng.normal(0.3, 0.05, 60)
    scores = np.concatenate([rng.uniform(0.8, 1, 30), rng.normal(0.3, 0.05, 30)])
    start = NormalScores.fit(normal)
    assert start is not None
    looks = np.concatenate([features(1, 30, rng), features(0, 30, rng)])
    out = add_looks(FalseAlarms(start, start), scores, looks, normal, features(0, 60, rng))
    assert out.looks is not None and out.both is not None
    return out


def near_the_line(known: FalseAlarms, count: int) -> np.ndarray:
    """Scores that 3 % of normal images reach: at a rate of 2 %, normal by themselves."""
    return np.full(count, known.scores.level(0.03))


def test_near_the_line_looks_decide(known: FalseAlarms) -> None:
    rng = np.random.default_rng(1)
    scores = near_the_line(known, 20)
    assert (known.of_images(scores, None, RATE) > RATE).all()
    assert (known.of_images(scores, features(1, 20, rng), RATE) <= RATE).all(), "looks like the defects"
    assert (known.of_images(scores, features(0, 20, rng, 0.1), RATE) > RATE).all(), "looks like normal"


def test_far_from_the_line_scores_decide(known: FalseAlarms) -> None:
    rng = np.random.default_rng(1)
    high = np.array([known.scores.level(RATE / 2 - 1e-6), known.scores.level(1e-5)])
    assert (known.of_images(high, features(0, 2, rng), RATE) <= RATE / 2).all(), "a defect whatever it looks like"
    low = np.array([known.scores.mean, known.scores.mean - known.scores.spread])
    assert (known.of_images(low, features(1, 2, rng), RATE) > RATE).all(), "common among normal images"


def test_with_looks_as_many_false_alarms_as_promised(known: FalseAlarms) -> None:
    rng = np.random.default_rng(2)
    chance = known.of_images(rng.normal(0.3, 0.05, 4000), features(0, 4000, rng), RATE)
    assert (chance <= RATE).mean() == pytest.approx(RATE, abs=0.02)


def test_no_image_at_all(known: FalseAlarms) -> None:
    assert known.of_images([], np.zeros((0, 2, 16), np.float32), RATE).shape == (0,)
    assert known.of_regions([]).shape == (0,)


def test_a_higher_rate_never_makes_a_defect_normal(known: FalseAlarms) -> None:
    rng = np.random.default_rng(3)
    scores, looks = rng.uniform(0.2, 0.6, 300), features(0, 300, rng)
    rates = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3)
    defects = [known.of_images(scores, looks, rate) <= rate for rate in rates]
    for fewer, more in pairwise(defects):
        assert (more | ~fewer).all()


def test_defects_among_normal_images_are_no_examples(known: FalseAlarms) -> None:
    rng = np.random.default_rng(4)
    normal = np.append(rng.normal(0.3, 0.05, 60), 5.0)
    assert known.scores.probability(5.0) < BEYOND_DOUBT
    scores, looks = rng.uniform(0.8, 1, 30), features(1, 30, rng)
    out = add_looks(FalseAlarms(known.scores, known.peaks), scores, looks, normal, features(0, 61, rng))
    assert out.looks is not None and len(out.looks.normal) == 60


@pytest.mark.parametrize(("n_clear", "n_normal"), [(LEAST_NORMAL - 1, 60), (30, LEAST_NORMAL - 1), (0, 60), (30, 0)])
def test_too_few_examples_have_no_looks(known: FalseAlarms, n_clear: int, n_normal: int) -> None:
    rng = np.random.default_rng(5)
    plain = FalseAlarms(known.scores, known.peaks)
    scores, normal = np.full(n_clear, 0.9), np.full(n_normal, 0.3)
    assert add_looks(plain, scores, features(1, n_clear, rng), normal, features(0, n_normal, rng)) is plain


def test_many_examples_are_thinned_out(known: FalseAlarms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EXAMPLES", 12)
    rng = np.random.default_rng(6)
    scores, normal = rng.uniform(0.8, 1, 30), rng.normal(0.3, 0.05, 60)
    out = add_looks(FalseAlarms(known.scores, known.peaks), scores, features(1, 30, rng), normal, features(0, 60, rng))
    assert out.looks is not None and (len(out.looks.normal), len(out.looks.defects)) == (12, 12)


def test_likeness_leaves_the_image_itself_out() -> None:
    normal = np.eye(4, dtype=np.float32)[:2]
    defects = np.eye(4, dtype=np.float32)[2:]
    # Its own copy counts as −1 among two: (0 + 0) / 2 − (−1 + 0) / 2.
    assert likeness(normal[:1], normal, defects).tolist() == [0.5]
    assert likeness(normal[:1] * 0.9, normal, defects)[0] == pytest.approx(-0.45)


def test_empty_features_are_no_unit_vectors_but_no_error() -> None:
    out = Looks.project(np.zeros((3, 2, 4), np.float32), np.zeros((2, 4), np.float32))
    assert out.shape == (3, 8) and not out.any()


@pytest.mark.parametrize("with_looks", [True, False])
def test_round_trip(known: FalseAlarms, with_looks: bool) -> None:
    model = known if with_looks else FalseAlarms(known.scores, known.peaks, source="mixture")
    tensors = {name: value.astype(np.float16) for name, value in model.tensors().items()}
    back = FalseAlarms.restore(tensors, model.settings())  # type: ignore[arg-type]
    assert back.settings() == model.settings() and set(back.tensors()) == set(model.tensors())
    rng = np.random.default_rng(7)
    scores, looks = rng.uniform(0.2, 0.6, 50), features(1, 50, rng)
    assert np.array_equal(back.of_images(scores, looks, RATE), model.of_images(scores, looks, RATE))
    assert np.array_equal(back.of_images(scores, None, RATE), model.of_images(scores, None, RATE))


NORMAL = NormalScores(0.5, 0.03, 100)


@pytest.mark.parametrize(
    ("lowest", "moves"),
    [(0.54, True), (0.47, False), (0.62, False)],  # a little higher; lower; four spreads higher, which is a weak kind
)
def test_normal_scores_move_to_a_lowest_group_that_is_clearly_apart_and_near(lowest, moves):
    rng = np.random.default_rng(0)
    run = np.concatenate([rng.normal(lowest, 0.02, 40), rng.normal(0.95, 0.04, 60)])
    found = shifted(NORMAL, run)
    assert found.mean == pytest.approx(lowest if moves else NORMAL.mean, abs=0.01)
    assert found.spread >= NORMAL.spread
    assert (found.probability(run[40:]) < 1e-4).all()  # defects stay what they are


def test_normal_scores_stay_where_groups_of_the_run_overlap():
    rng = np.random.default_rng(0)
    run = np.concatenate([rng.normal(0.54, 0.03, 40), rng.normal(0.7, 0.08, 60)])
    assert shifted(NORMAL, run) == NORMAL
    assert shifted(NORMAL, rng.normal(0.54, 0.03, 40)) == NORMAL
    assert shifted(NORMAL, []) == NORMAL


def test_scores_that_happen_to_be_equal_have_a_hundredth_of_their_mean_as_spread() -> None:
    known = NormalScores.fit([-4.0] * 10)
    assert known is not None and (known.mean, known.spread) == (-4.0, pytest.approx(0.04))


def test_the_bell_curve_of_normal_scores_by_hand() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]  # median 3, absolute deviations 2, 1, 0, 1, 2: 1.4826
    assert (found := NormalScores.fit(values)) is not None
    assert (found.mean, found.count) == (3, 5) and found.spread == pytest.approx(np.std(values, ddof=1))
    middle = 3.5  # with a sixth of it, the median and its deviation are 3.5 and 1.5
    for score, kept in ((middle + 10 * 1.4826 * 1.5 - 0.01, 6), (middle + 10 * 1.4826 * 1.5 + 0.01, 5)):
        found = NormalScores.fit([*values, score])
        assert found is not None and found.count == kept
    assert NormalScores.fit([np.nan, *values[:4], np.inf]) is None
    flat = NormalScores.fit([-2.0] * 5)
    assert flat is not None and flat.spread == pytest.approx(0.02)
    nothing = NormalScores.fit([0.0] * 5)
    assert nothing is not None and nothing.spread == 1e-12
    deep = NormalScores.fit([-2.0, -2.0, -2.0, -2.0, 5.0])  # without a deviation, nothing is left out
    assert deep is not None and deep.count == 5


def test_probability_and_deviations_by_hand() -> None:
    known = NormalScores(2.0, 0.5, 10)
    assert known.deviations([2.0, 3.0]).tolist() == [0, 2]
    t, n = 2 / math.sqrt(1.1), 9
    z = math.sqrt(n * math.log(1 + t * t / n)) * (8 * n + 1) / (8 * n + 3)
    assert known.probability([3.0])[0] == pytest.approx(math.erfc(z / math.sqrt(2)) / 2)
    assert known.probability([1.0])[0] == pytest.approx(1 - math.erfc(z / math.sqrt(2)) / 2)
    assert float(known.probability(known.level(0.03))) == pytest.approx(0.03, rel=1e-6)


def bells(
    monkeypatch: pytest.MonkeyPatch, weights: list[float], means: list[float], spreads: list[float], gain: float = 99
) -> list[Any]:
    """A mixture that finds these bell curves in scores of 0 … 1, with so much more evidence than one curve."""
    made: list[Any] = []

    class Mixture:
        def __init__(self, k: int, **settings: Any) -> None:
            made.append((k, settings))
            self.k = k
            self.weights_, self.means_ = np.array(weights), np.array(means)[:, None]
            self.covariances_ = (np.array(spreads) ** 2)[:, None, None]

        def fit(self, values: np.ndarray) -> Mixture:
            return self

        def bic(self, values: np.ndarray) -> float:
            return {1: 100.0, len(weights): 100.0 - gain}.get(self.k, 101.0)

    monkeypatch.setattr("sklearn.mixture.GaussianMixture", Mixture)
    return made


SPAN = np.linspace(0, 1, 100)


def test_two_curves_that_lie_apart_are_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bells(monkeypatch, [0.7, 0.3], [0.8, 0.1], [0.1, 0.02])  # in any order
    found = lowest_group(2 + 3 * SPAN)
    assert found is not None and found.mean == pytest.approx(2 + 3 * 0.1) and found.spread == pytest.approx(3 * 0.02)
    assert found.count == 30
    assert [k for k, _ in made] == [1, 2, 3, 4, 5]
    assert all(settings == {"reg_covar": 1e-4, "n_init": 5, "random_state": 0} for _, settings in made)
    made.clear()
    lowest_group(SPAN[:14])
    assert [k for k, _ in made] == [1, 2]
    assert lowest_group(SPAN[:9]) is None and lowest_group(np.ones(20)) is None


@pytest.mark.parametrize(("gain", "found"), [(9.9, False), (10.1, True)])
def test_only_strong_evidence_makes_groups(gain: float, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bells(monkeypatch, [0.3, 0.7], [0.1, 0.8], [0.02, 0.1], gain)
    assert (lowest_group(SPAN) is not None) is found


@pytest.mark.parametrize(
    ("low", "high", "distance", "found"),
    [
        (0.04, 0.1, 2.1, True),
        (0.04, 0.1, 1.9, False),
        (0.06, 0.1, 2.1, False),
        (0.06, 0.1, 3.1, True),
        (0.05, 0.1, 2.1, True),
    ],
)
def test_a_wide_lowest_group_must_lie_farther_apart(
    low: float, high: float, distance: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ashman's D; from half as wide as the next on it must be 3 instead of 2."""
    mean = 0.1 + distance * math.sqrt((low**2 + high**2) / 2)
    bells(monkeypatch, [0.5, 0.5], [0.1, mean], [low, high])
    assert (lowest_group(SPAN) is not None) is found


def test_curves_without_a_peak_of_their_own_belong_to_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    bells(monkeypatch, [0.2, 0.1, 0.7], [0.1, 0.13, 0.9], [0.02, 0.03, 0.05])
    found = lowest_group(SPAN)
    mean = (0.2 * 0.1 + 0.1 * 0.13) / 0.3
    variance = (0.2 * (0.02**2 + (0.1 - mean) ** 2) + 0.1 * (0.03**2 + (0.13 - mean) ** 2)) / 0.3
    assert found is not None and found.mean == pytest.approx(mean) and found.spread == pytest.approx(variance**0.5)
    assert found.count == 30
    bells(monkeypatch, [0.01, 0.99], [0.1, 0.9], [0.02, 0.05])
    few = lowest_group(SPAN)
    assert few is not None and few.count == 5


@pytest.mark.parametrize(
    ("spreads", "moves"), [(0.49, False), (0.51, True), (1.99, True), (2.01, False), (-0.6, False)]
)
def test_scores_move_with_the_run_within_half_a_spread_and_two(
    spreads: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = NormalScores(0.5, 0.1, 40)
    asked: list[float] = []
    for spread in (0.05, 0.2):
        group = NormalScores(0.5 + 0.1 * spreads, spread, 12)
        monkeypatch.setattr(module, "lowest_group", lambda scores, apart, group=group: (asked.append(apart), group)[1])
        found = module.shifted(known, [1.0])
        expected = NormalScores(group.mean, max(spread, 0.1), 40) if moves else known
        assert found == expected
    assert asked == [4.0, 4.0]
    monkeypatch.setattr(module, "lowest_group", lambda *given: None)
    assert module.shifted(known, [1.0]) is known


def test_likeness_by_loops() -> None:
    rng = np.random.default_rng(0)

    def unit(count: int) -> np.ndarray:
        x = rng.normal(size=(count, 6))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    normal, defects = unit(9), unit(3)
    features = np.concatenate([unit(4), normal[:1]])
    found = likeness(features, normal, defects)
    for row, one in enumerate(features):
        means = []
        for examples in (defects, normal):
            cosines = sorted((float(one @ other) for other in examples), reverse=True)
            cosines = sorted((-1.0 if cosine > 0.999 else cosine for cosine in cosines), reverse=True)[:5]
            means.append(sum(cosines) / len(cosines))
        assert found[row] == pytest.approx(means[0] - means[1], abs=1e-5)


def test_where_looks_have_a_say_by_hand(known: FalseAlarms) -> None:
    assert known.looks is not None and known.both is not None
    rate = 0.1
    levels = {p: known.scores.level(p) for p in (0.01, 0.04, 0.06, 0.2, 0.29, 0.31, 0.6)}
    features = np.random.default_rng(0).normal(size=(len(levels), *known.looks.mean.shape)).astype(np.float32)
    found = known.of_images(list(levels.values()), features, rate)
    together = known.scores.deviations(list(levels.values())) + 0.5 * known.looks(features)
    expected = np.maximum(known.both.probability(together), rate / 2)
    for place, chance in enumerate(levels):
        near = rate / 2 < chance < 0.3
        assert found[place] == pytest.approx(expected[place] if near else chance, rel=1e-4)
    np.testing.assert_allclose(known.of_images(list(levels.values()), None, rate), list(levels), rtol=1e-4)
    np.testing.assert_allclose(known.of_regions([0.5]), known.peaks.probability([0.5]))


def test_looks_are_of_clear_defects_and_clean_normal_images() -> None:
    rng = np.random.default_rng(0)
    line = NormalScores(0.5, 0.1, 30)
    plain = FalseAlarms(line, line, source="mixture")
    scores = np.concatenate([np.full(7, 2.0), np.full(5, 0.6)])
    normal_scores = np.concatenate([rng.normal(0.5, 0.05, 9), [3.0]])
    features, normal = rng.normal(size=(12, 2, 3)).astype(np.float32), rng.normal(size=(10, 2, 3)).astype(np.float32)
    found = add_looks(plain, scores, features, normal_scores, normal)
    assert found.looks is not None and found.both is not None and found.source == "mixture" and found.scores is line

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    mean = unit(np.concatenate([normal[:9], features])).mean(axis=0)
    np.testing.assert_allclose(found.looks.mean, mean, atol=1e-3)
    np.testing.assert_allclose(found.looks.normal, (unit(unit(normal[:9]) - mean) / 2**0.5).reshape(9, 6), atol=2e-3)
    np.testing.assert_allclose(found.looks.defects, (unit(unit(features[:7]) - mean) / 2**0.5).reshape(7, 6), atol=2e-3)
    usual = NormalScores.fit(likeness(found.looks.normal, found.looks.normal, found.looks.defects))
    assert usual is not None and found.looks.usual.mean == pytest.approx(usual.mean, abs=1e-2)
    together = NormalScores.fit(line.deviations(normal_scores[:9]) + 0.5 * found.looks(normal[:9]))
    assert found.both == together
    assert add_looks(plain, scores[3:], features[3:], normal_scores, normal) is plain, "four clear defects are too few"
