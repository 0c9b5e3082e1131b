"""Anomaly maps → masks: MEBin, and Otsu and fixed thresholds for comparison."""

from __future__ import annotations

from ..errors import SettingsError
from .base import Binarizer, BinarizeResult
from .fixed import FixedThreshold
from .mebin import MEBin
from .otsu import Otsu

__all__ = ["BINARIZERS", "BinarizeResult", "Binarizer", "FixedThreshold", "MEBin", "Otsu", "make_binarizer"]

BINARIZERS: dict[str, type[Binarizer]] = {"mebin": MEBin, "otsu": Otsu, "fixed": FixedThreshold}


def make_binarizer(name: str, **settings: object) -> Binarizer:
    """A binarizer by name, with the settings of its constructor.

    Examples:
        >>> make_binarizer("mebin", erosion=0).erosion
        0
    """
    if name not in BINARIZERS:
        raise SettingsError(f"The binarizer must be one of {', '.join(BINARIZERS)}, but got {name!r}.")
    try:
        return BINARIZERS[name](**settings)
    except TypeError as error:
        raise SettingsError(f"Settings of the binarizer {name!r}: {error}") from error
