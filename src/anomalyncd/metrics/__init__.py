"""Figures of merit: pure functions on arrays."""

from .clustering import (
    ClassScore,
    Evaluation,
    accuracy,
    ari,
    class_scores,
    confusion,
    evaluate,
    f1,
    hungarian_match,
    nmi,
    normal_precision_recall,
)
from .detection import BoxRates, PixelScores, aupro, box_rates, image_auroc, pixel_auroc

__all__ = [
    "BoxRates",
    "ClassScore",
    "Evaluation",
    "PixelScores",
    "accuracy",
    "ari",
    "aupro",
    "box_rates",
    "class_scores",
    "confusion",
    "evaluate",
    "f1",
    "hungarian_match",
    "image_auroc",
    "nmi",
    "normal_precision_recall",
    "pixel_auroc",
]
