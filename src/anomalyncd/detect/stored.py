"""Detectors of this package on disk: settings and tensors in one file."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import RunError
from .base import Detector
from .settings import setting_names

FILE = "detector.safetensors"
D = TypeVar("D", bound="StoredDetector")


class StoredDetector(Detector):
    """A detector that keeps each keyword argument as an attribute of the same name, and what it learned as tensors."""

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments that make another one like this; where it runs, and how exactly, is no part of it."""
        names = setting_names(type(self))
        return {name: getattr(self, name) for name in names if name not in ("device", "precision")}

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What was learned; empty before."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`, which are not empty."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        meta = {"name": self.name, "settings": self.settings}
        # An empty file is no safetensors file, hence the one number.
        tensors = {"format": torch.ones(1), **{k: v.contiguous().cpu() for k, v in self.tensors().items()}}
        safetensors.torch.save_file(tensors, folder / FILE, metadata={"anomalyncd": json.dumps(meta)})

    @classmethod
    def load(cls: type[D], folder: Path, *, device: str = "auto") -> D:
        file = folder / FILE
        try:
            with safe_open(file, framework="pt") as stored:
                meta = json.loads(stored.metadata()["anomalyncd"])
                name, settings = meta["name"], meta["settings"]
                tensors = {key: stored.get_tensor(key) for key in stored.keys() if key != "format"}  # noqa: SIM118
        except Exception as error:  # damage shows in many ways
            raise RunError(f"{file}: missing, damaged or not a detector of anomalyncd ({error}).") from error
        expected = getattr(cls, "name", name)  # a model of anomalib has its name from its settings
        if name != expected:
            raise RunError(f"{file}: expected a detector {expected!r}, but found {name!r}.")
        try:
            detector = cls(device=device, **settings)  # type: ignore[call-arg]
        except TypeError as error:
            raise RunError(f"{file}: no {cls.__name__}, or one of another version of anomalyncd ({error}).") from error
        if tensors:
            try:
                detector.restore(tensors)
            except (RuntimeError, KeyError) as error:
                raise RunError(f"{file}: does not fit {detector.name} of the installed packages ({error}).") from error
        return detector
