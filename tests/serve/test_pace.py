"""How long those who wait will wait."""

from __future__ import annotations

import pytest

from anomalyncd.serve.pace import Pace


def test_nothing_is_known_before_the_first_batch():
    pace = Pace()
    pace.begin(5.0)
    assert pace.wait(100) == 0


def test_the_last_batches_count_most_and_rest_does_not():
    pace = Pace()
    pace.begin(10.0)
    pace.end(4, 18.0)
    assert pace.wait(1) == 2 and pace.wait(16) == 32
    pace.end(2, 18.5)  # 0.25 s each
    assert pace.wait(1) == pytest.approx((2 + 0.25) / 2)
    pace.begin(1000.0)  # after a night without images
    pace.end(8, 1001.0)
    assert pace.wait(1) == pytest.approx(((2 + 0.25) / 2 + 0.125) / 2)
    for second in range(1, 60):
        pace.end(10, 1001.0 + second)
    assert pace.wait(10) == pytest.approx(1)
