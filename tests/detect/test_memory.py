"""What PatchCore, PNI and CPR share: scores, held-out scores, and the line about a detector that has learned nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anomalyncd.detect import CPR, PNI, PatchCore
from anomalyncd.detect.memory import MemoryDetector
from anomalyncd.errors import DataError
from anomalyncd.grid import TokenGrid, top_mean


class Known(nn.Module):
    def __init__(self, owner: list[int]) -> None:
        super().__init__()
        self.register_buffer("owner", torch.tensor(owner))


class Constant(MemoryDetector):
    """Scores that tell which image was left out: 1 + its number, or 0 for none."""

    name = "constant"
    highest = 0.5

    def fit(self, normal_images):
        self.restore({"owner": torch.arange(len(list(normal_images)))})
        return self

    def remember(self, tensors: dict[str, Tensor]) -> Known:
        return Known(tensors["owner"].tolist())

    def scores(self, memory: Known, grid: TokenGrid, without: int | None = None) -> Tensor:
        values = torch.zeros(grid.shape)
        values[0] = 0 if without is None else 1 + without
        return values


def pictures(count: int) -> list[np.ndarray]:
    return [np.full((32, 32, 3), 10 * number, np.uint8) for number in range(count)]


def made() -> Constant:
    return Constant(backbone="tiny", size=32, map_size=16, sigma=0)


def test_each_image_is_held_out_by_its_own_number():
    detector = made().fit(pictures(3))
    assert [found.map.max() for found in detector.detect(pictures(3))] == [0, 0, 0]
    held = list(detector.held_out(pictures(2), [2, 0]))
    assert [found.map.max() for found in held] == [3, 1]
    assert [found.score for found in held] == pytest.approx([top_mean(found.map, 0.5) for found in held])
    assert held[0].score < top_mean(held[0].map, 0.01)  # the class says how much of the map counts


def test_one_image_alone_has_nothing_to_be_compared_with():
    assert made().fit(pictures(1)).held_out(pictures(1), [0]) is None
    assert made().fit(pictures(2)).held_out(pictures(1), [0]) is not None


@pytest.mark.parametrize("kind", [PatchCore, PNI, CPR, Constant])
def test_a_detector_that_has_learned_nothing_says_so(kind):
    detector = kind(backbone="tiny", size=32)
    assert detector.needs_normal and not detector.is_ready
    for ask in (lambda: list(detector.detect(pictures(1))), lambda: detector.held_out(pictures(1), [0])):
        with pytest.raises(DataError, match=f"{kind.__name__} was not fitted: give it normal images first"):
            ask()
    assert made().fit(pictures(1)).is_ready
