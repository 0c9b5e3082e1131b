"""Figures of merit: pure functions on arrays."""

from .clustering import Evaluation, ari, confusion, evaluate, f1, hungarian_match, nmi, normal_precision_recall
from .detection import BoxRates, PixelScores, box_rates, image_auroc

__all__ = [
    "BoxRates", "Evaluation", "PixelScores", "ari", "box_rates", "confusion", "evaluate", "f1", "hungarian_match",
    "image_auroc", "nmi", "normal_precision_recall",
]  # fmt: skip
