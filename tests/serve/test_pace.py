"""How long those who wait will wait."""

from __future__ import annotations

from anomalyncd.serve.pace import AT_FIRST, Pace


def test_few_are_let_in_before_the_first_batch():
    pace = Pace()
    pace.begin(5.0)
    assert pace.room(60.0) == pace.room(1.0) == AT_FIRST == 16


def test_the_last_batches_count_most_and_rest_does_not():
    pace = Pace()
    pace.begin(10.0)
    pace.end(4, 18.0)  # 2 s each
    assert pace.room(60.0) == 15 and pace.room(1.0) == 0
    pace.end(2, 19.0)  # 0.5 s each, so 1.25 s
    assert pace.room(100.0) == 40
    pace.begin(1000.0)  # after a night without images
    pace.end(8, 1006.0)  # 0.75 s each, so 1 s
    assert pace.room(100.0) == 50
    for second in range(1, 60):
        pace.end(8, 1006.0 + second)
    assert pace.room(100.0) == 400
