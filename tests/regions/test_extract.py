"""Regions of large maps are shrunk as if the whole map was, but in less time.

Covers prefetch, records.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from anomalyncd.config import CropConfig
from anomalyncd.regions import extract
from anomalyncd.regions.find import find_regions


@pytest.mark.parametrize("shape", [(600, 448), (224, 300), (517, 1021), (1009, 701), (150, 900), (100, 90)])
@pytest.mark.parametrize(("image_size", "merge"), [((320, 320), 0.01), ((61, 97), 0.0), ((1500, 1203), 0.01)])
def test_shrinking_only_where_the_region_is(
    shape: tuple[int, int], image_size: tuple[int, int], merge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = cv2.GaussianBlur(np.random.default_rng(sum(shape)).random(shape, np.float32), (0, 0), 3)
    mask = noise > np.quantile(noise, 0.98)
    mask[0, 0] = mask[-1, -1] = True
    regions, components = find_regions(mask, image_size, CropConfig(merge_distance=merge))
    small = regions[-40:]
    expected = [extract._shrink_mask(np.isin(components, region.labels), 224) for region in small]
    if min(shape) >= 224:
        monkeypatch.delattr(extract, "_shrink_mask")  # slow: none of these needs it
    assert len(regions) > 1
    for region, mean in zip(small, expected, strict=True):
        found = extract._shrink_region(components, region, image_size, 224)
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-6)
        assert found.dtype == np.float32
