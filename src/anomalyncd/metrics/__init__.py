"""Figures of merit: pure functions on arrays."""

from .calibration import expected_calibration_error
from .clustering import Evaluation, evaluate
from .detection import BoxRates, PixelScores, box_rates, image_auroc

__all__ = [
    "BoxRates",
    "Evaluation",
    "PixelScores",
    "box_rates",
    "evaluate",
    "expected_calibration_error",
    "image_auroc",
]
