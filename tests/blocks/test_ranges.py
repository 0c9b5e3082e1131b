"""The range of maps from blocks of them is that of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd.binarize import MEBin, Otsu
from anomalyncd.binarize.prepare import Figures, fit_binarizer
from anomalyncd.blocks.engine import Engine
from anomalyncd.blocks.ranges import BLOCK, ends, fit_range, map_ranges
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import DataError


def samples(folder: Path, count: int) -> list[Sample]:
    """Maps of several sizes; some with holes, infinity on either side or nothing else, some that cannot be read."""
    rng, found = np.random.default_rng(0), []
    for number in range(count):
        values = rng.normal(size=(4 + number % 3, 5)).astype(np.float32) * (1 + number)
        odd = {5: np.nan, 6: np.inf, 7: -np.inf}.get(number % 11)
        if odd is not None:
            values[0, :2] = odd
        if number == 8:
            values[:] = np.inf
        if number == 9:
            values[:] = -np.inf
        np.save(folder / f"{number}.npy", values)
        if number in (3, BLOCK + 3):
            (folder / f"{number}.npy").write_bytes(b"no map")
        found.append(Sample(str(number), np.zeros((2, 2, 3), np.uint8), folder / f"{number}.npy"))
    return [*found, Sample("bare", np.zeros((2, 2, 3), np.uint8))]


@pytest.mark.parametrize("kind", [MEBin, Otsu])
@pytest.mark.parametrize("count", [4, 12, 2 * BLOCK + 5])
def test_as_from_all_maps_at_once(kind: type, count: int, tmp_path: Path) -> None:
    given, steps = samples(tmp_path, count), list[int]()
    found, figures, reason = map_ranges(Engine(), given, 8, on_maps=steps.append)
    expected: list[Figures] = []
    whole = fit_binarizer(kind(), given, 8, figures=expected)
    assert fit_range(kind(), found, count, reason).get_state() == whole.get_state()
    assert figures == expected and len(figures) == count - 1 - (count > BLOCK + 3) and sum(steps) == count + 1
    assert "3.npy" in reason


def test_none_that_can_be_read_is_said_with_the_first_reason(tmp_path: Path) -> None:
    given = [samples(tmp_path, 4)[3]]
    found, figures, reason = map_ranges(Engine(), given, 0)
    assert found == figures == []
    with pytest.raises(DataError, match=r"none of the 1 anomaly maps could be read, the first because: .*3\.npy"):
        fit_range(MEBin(), found, 1, reason)


def test_parts_that_are_ignored_have_no_say() -> None:
    values = np.zeros((8, 8), np.float32)
    values[:, :4], values[:, 4:] = 9, 2
    values[0, 7] = 1
    given = [Sample("a", np.zeros((2, 2, 3), np.uint8), values)]
    left = [[[(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)]]]
    for ignore, expected in (((), [[1, 9]]), (left, [[1, 2]])):
        (own,), ((_, peak),), _ = map_ranges(Engine(), given, 0, ignore)
        assert own.tolist() == expected and peak == expected[0][1]
    assert ends(np.float32([[2]])).tolist() == [[2, 2]]
