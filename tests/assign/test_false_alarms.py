"""Normal or defect: what scores and looks of normal images say about a finding."""

from __future__ import annotations

import math
from itertools import pairwise

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
