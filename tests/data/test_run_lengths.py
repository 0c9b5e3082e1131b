"""Run lengths: the real pycocotools must read every mask back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as coco_mask

from anomalyncd.data.run_lengths import run_lengths


@pytest.mark.parametrize("fill", [False, True])
def test_one_value_throughout(fill: bool) -> None:
    mask = np.full((3, 5), fill)
    packed = coco_mask.frPyObjects({"size": [3, 5], "counts": run_lengths(mask)}, 3, 5)
    np.testing.assert_array_equal(coco_mask.decode(packed), mask)


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=20)))
@settings(deadline=None)
def test_run_lengths_of_any_mask(mask: Any) -> None:
    counts = run_lengths(mask)
    assert sum(counts) == mask.size and 0 not in counts[1:]
    packed = coco_mask.frPyObjects({"size": list(mask.shape), "counts": counts}, *mask.shape)
    np.testing.assert_array_equal(coco_mask.decode(packed), mask)
