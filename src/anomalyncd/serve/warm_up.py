"""One image before any client comes: the first takes longest, because compilers and libraries start with it."""

from __future__ import annotations

import numpy as np

from ..data.dataset import Sample
from ..discovery.classify import Predictor

SIDE = 256


def warm_up(predictor: Predictor) -> None:
    """Class an image with a region in it; what comes out is of no interest."""
    image = np.full((SIDE, SIDE, 3), 128, np.uint8)
    place = (slice(SIDE // 4, SIDE // 2),) * 2
    image[place] = 255
    marks = np.zeros((SIDE, SIDE), np.float32)
    binarizer = predictor.model.binarizer
    if binarizer is not None:
        marks += binarizer.low_
        marks[place] = binarizer.high_
        item = Sample("warm", image, map=None if predictor.detector is not None else marks)
    else:
        marks[place] = 1
        item = Sample("warm", image, mask=marks)
    for found in predictor.extract([item]):
        predictor.classify(found)
