"""Figures of merit: pure functions on arrays."""

from .clustering import Evaluation, evaluate
from .detection import BoxRates, PixelScores, box_rates, image_auroc

__all__ = ["BoxRates", "Evaluation", "PixelScores", "box_rates", "evaluate", "image_auroc"]
