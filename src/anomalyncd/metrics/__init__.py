"""Figures of merit: pure functions on arrays."""

from anomalyncd.metrics.clustering import (
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

__all__ = [
    "ClassScore",
    "Evaluation",
    "accuracy",
    "ari",
    "class_scores",
    "confusion",
    "evaluate",
    "f1",
    "hungarian_match",
    "nmi",
    "normal_precision_recall",
]
