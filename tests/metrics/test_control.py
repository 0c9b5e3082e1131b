"""Control limits against a case of the textbooks, and the obvious formula."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.metrics.control import control_chart

# D. C. Montgomery, Introduction to Statistical Quality Control: cans of orange juice, 30 samples of 50, nonconforming ones.
CANS = [12, 15, 8, 10, 4, 7, 16, 9, 14, 10, 5, 6, 17, 12, 22, 8, 10, 5, 13, 11, 20, 18, 24, 15, 9, 12, 7, 13, 9, 6]


def test_the_textbook_case() -> None:
    chart = control_chart(CANS, [50] * 30)
    assert round(chart.centre, 4) == 0.2313
    assert (chart.low.round(4) == 0.0524).all() and (chart.high.round(4) == 0.4102).all()
    assert (np.flatnonzero(chart.outside) + 1).tolist() == [15, 23]
    rest = [count for sample, count in enumerate(CANS, start=1) if sample not in (15, 23)]
    chart = control_chart(rest, [50] * 28)
    assert (round(chart.centre, 4), round(chart.low[0], 4), round(chart.high[0], 4)) == (0.215, 0.0407, 0.3893)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20))
def test_groups_of_any_size(pairs: list[tuple[int, int]]) -> None:
    counts, sizes = [min(pair) for pair in pairs], [max(pair) for pair in pairs]
    chart = control_chart(counts, sizes)
    centre = sum(counts) / sum(sizes) if sum(sizes) else 0
    for place, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        if not size:
            assert math.isnan(chart.shares[place]) and not chart.outside[place]
            continue
        width = 3 * math.sqrt(centre * (1 - centre) / size)
        assert chart.shares[place] == count / size
        assert math.isclose(chart.low[place], max(0, centre - width), abs_tol=1e-12)
        assert math.isclose(chart.high[place], min(1, centre + width), abs_tol=1e-12)
