"""Sort product defects into classes that nobody has named yet."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

FALLBACK_VERSION = "0.1.0"  # of a tree without tags, see tools/version.py
try:
    __version__ = version("anomalyncd")
except PackageNotFoundError:  # not installed
    __version__ = FALLBACK_VERSION

if TYPE_CHECKING:
    from .adapters.anomalib import from_anomalib
    from .binarize import MEBin, Otsu
    from .data import load_base, load_dataset
    from .discovery.classify import Prediction
    from .errors import AnomalyNCDError
    from .estimator import AnomalyNCD
    from .metrics import evaluate

__all__ = [
    "AnomalyNCD", "AnomalyNCDError", "MEBin", "Otsu", "Prediction", "evaluate", "from_anomalib", "load_base", "load_dataset",
]  # fmt: skip
# Loaded on first use: `anomalyncd --help` and the data readers need no torch.
_HOMES = {
    "AnomalyNCD": "estimator", "AnomalyNCDError": "errors", "MEBin": "binarize", "Otsu": "binarize", "evaluate": "metrics",
    "Prediction": "discovery.classify", "from_anomalib": "adapters.anomalib", "load_base": "data", "load_dataset": "data",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
