"""Images → anomaly maps: detectors behind one small protocol."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import AnomalyNCDError, SettingsError
from .base import ANOMALIB, AnomalyMap, Detection, Detector, Picture, check_settings
from .cpr import CPR
from .efficientad import EfficientAD
from .musc import MuSc
from .patchcore import PatchCore
from .pni import PNI
from .rdpp import RDPlusPlus

KINDS = (PatchCore, MuSc, EfficientAD, RDPlusPlus, PNI, CPR)
DETECTORS: dict[str, type[Detector]] = {kind.name: kind for kind in KINDS}

__all__ = [
    "CPR",
    "DETECTORS",
    "PNI",
    "AnomalyMap",
    "Detection",
    "Detector",
    "EfficientAD",
    "MuSc",
    "PatchCore",
    "Picture",
    "RDPlusPlus",
    "build_detector",
    "load_detector",
    "make_detector",
]


def build_detector(config: Config) -> Detector:
    """The configured detector, not fitted yet; it shares what it can with the rest: backbone, device and seed."""
    name, settings = config.detect.name or "", config.detect.settings
    shared: dict[str, object] = {}
    if name in DETECTORS or name.startswith(ANOMALIB):
        check_settings(settings, name, _kind(name))
        shared = {"device": config.device, "seed": config.random_state}
    if name in DETECTORS:
        shared |= {"backbone": config.model.backbone, "precision": config.precision}
        if config.model.weights and "backbone" not in settings:  # they are those of the run's own
            shared["weights"] = str(config.model.weights)
    try:
        return make_detector(name, **{**shared, **settings})
    except AnomalyNCDError:
        raise
    except (TypeError, ValueError) as error:
        raise SettingsError(f"detect.settings do not fit the detector {name!r}: {error}.") from error


def make_detector(name: str, **settings: Any) -> Detector:
    """A built-in detector by its name, one of anomalib as `anomalib:Model`, or one of your own as `module:Class`."""
    if name.startswith(ANOMALIB):
        settings = {"model": name.removeprefix(ANOMALIB), **settings}
    return _kind(name)(**settings)


def load_detector(name: str, folder: Path, *, device: str = "auto") -> Detector:
    """A detector that was stored in a run folder."""
    return _kind(name).load(folder, device=device)


def _kind(name: str) -> type[Detector]:
    if name in DETECTORS:
        return DETECTORS[name]
    if name.startswith(ANOMALIB):
        from ..adapters.anomalib import AnomalibDetector  # which stands on this room's protocol

        return AnomalibDetector
    known = ", ".join([*DETECTORS, f"{ANOMALIB}Model"])
    expected = f"detector must be one of {known}, or module:Class of your own, but got {name!r}"
    module, colon, attribute = name.partition(":")
    if not colon:  # a misspelt name must not import, and so run, whatever file is called that
        raise SettingsError(f"{expected}.")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(f"{expected} ({error}).") from error
    if not (isinstance(found, type) and issubclass(found, Detector)) or inspect.isabstract(found):
        raise SettingsError(
            f"detector {name!r}: expected a subclass of anomalyncd.detect.Detector with all its methods."
        )
    return found
