"""Masks of regions as they are sent, against run lengths of the whole image."""

from __future__ import annotations

import numpy as np
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anomalyncd.config import CropConfig
from anomalyncd.data.run_lengths import run_lengths
from anomalyncd.serve.masks import image_run_lengths, region_masks


@given(shape=arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))), data=st.data())
def test_run_lengths_of_a_part_are_those_of_the_whole(shape, data):
    height, width = (side + data.draw(st.integers(0, 3)) for side in shape.shape)
    y, x = (data.draw(st.integers(0, whole - part)) for whole, part in zip((height, width), shape.shape, strict=True))
    whole = np.zeros((height, width), bool)
    whole[y : y + shape.shape[0], x : x + shape.shape[1]] = shape
    if shape.any():
        assert image_run_lengths(shape, (x, y), (height, width), most=100) == run_lengths(whole)


@given(shape=arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))), below=st.integers(0, 1))
def test_runs_are_counted_before_they_are_made(shape, below):
    if shape.any():
        size = (shape.shape[0] + below, shape.shape[1])
        lengths = image_run_lengths(shape, (0, 0), size, most=100)
        assert image_run_lengths(shape, (0, 0), size, most=len(lengths) + 1) == lengths, "the last run may be empty"
        with pytest.raises(HTTPException, match="too ragged"):
            image_run_lengths(shape, (0, 0), size, most=len(lengths) - 1)


def test_a_region_thinner_than_a_pixel_is_its_box():
    mask = np.zeros((100, 100), bool)
    mask[:, 51] = True
    (shape,) = region_masks(mask, (10, 10), CropConfig(), 1)
    assert shape.shape == (10, 1) and shape.all()
    assert [s.shape for s in region_masks(None, (4, 5), CropConfig(), 1)] == [(4, 5)], "the whole image"
