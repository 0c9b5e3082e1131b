"""Anomaly maps → masks: MEBin, and Otsu and fixed thresholds for comparison."""

from __future__ import annotations

from .base import Binarizer, BinarizeResult
from .fixed import FixedThreshold
from .mebin import MEBin
from .otsu import Otsu

__all__ = ["BinarizeResult", "Binarizer", "FixedThreshold", "MEBin", "Otsu"]
