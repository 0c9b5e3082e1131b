"""What a detector is: images in, anomaly maps out. Subclass `Detector` to plug in one of your own."""

from __future__ import annotations

import difflib
import inspect
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import RunError, SettingsError
from ..grid import top_mean
from ..progress import Silent

FILE = "detector.safetensors"
D = TypeVar("D", bound="StoredDetector")
Picture = npt.NDArray[np.uint8]
AnomalyMap = npt.NDArray[np.float32]
# What a setting may be, by the type of its default; a default of another type says nothing.
_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    str: ((str,), "text"),
    tuple: ((tuple, list), "a list"),
}
ANOMALIB = "anomalib:"  # before the name of a model of anomalib


class Detection(NamedTuple):
    """What a detector says about one image: an (h, w) map, and one number that is higher the more abnormal it is."""

    map: AnomalyMap
    score: float


class Detector(ABC):
    """Finds where images are abnormal.

    Attributes
    ----------
    name : short name
    needs_normal : whether `fit` needs images of normal products; otherwise the images are compared with each other
    progress : where a `fit` that takes long shows how far it is
    workspace : folder where it may keep what a killed call has learned from the same images, for the next one; None: nowhere
    suspects : place of each image of the last `fit` that seems to show a defect and was left out, and how odd it is
    """

    name: ClassVar[str]
    needs_normal: ClassVar[bool]
    progress: Silent = Silent()
    workspace: Path | None = None
    suspects: Mapping[int, float] = MappingProxyType({})

    @property
    def is_ready(self) -> bool:
        """Whether `maps` can be called without `fit`: always where no normal images are needed."""
        return not self.needs_normal

    @property
    def compared(self) -> int | None:
        """How many of the first images that `detect` sees it compares with each other, so that they must come in one call:
        none where normal images tell; None where it is not known, which stands for all."""
        return 0 if self.needs_normal else None

    @abstractmethod
    def fit(self, normal_images: Iterable[Picture]) -> Detector:
        """Learn what is normal from (H, W, 3) uint8 RGB images. Does nothing where `needs_normal` is False."""

    @abstractmethod
    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """One (h, w) float32 map for each image, in order, high where it is abnormal, of the image's aspect.

        The values mean the same in every call, whatever other images are in it.
        """

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps with image scores: `top_mean` of the map, unless a detector has a better one."""
        for anomaly_map in self.maps(images):
            yield Detection(anomaly_map, top_mean(anomaly_map))

    def held_out(self, normal_images: Iterable[Picture], places: Sequence[int]) -> Iterator[Detection | None] | None:
        """Maps of some of the images that it was fitted on, each as if it had not been among them.

        So one learns what normal images score that the detector has not seen, without keeping any back.

        Parameters
        ----------
        normal_images : some of those that `fit` had
        places : where each stood there, from 0

        Returns
        -------
        one for each image, in order, None for those that it cannot tell; None where it can of none, as is the default
        """
        return None

    def learn_more(self, normal_images: Iterable[Picture]) -> None:
        """Take more (H, W, 3) uint8 RGB images for normal, beside those that `fit` had; most detectors cannot."""
        raise SettingsError(
            f"the detector {self.name!r} cannot learn more normal images. Put them into the folder of --normal and call "
            "`discover` again."
        )

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Store all that `maps` needs in an empty folder; numbers and JSON only, no pickles."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Detector:
        """The inverse of `save`."""


class StoredDetector(Detector):
    """One that keeps each keyword argument as an attribute of the same name, and what it learned as tensors, in one file."""

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments that make another one like this; where it runs, and how exactly, is no part of it."""
        names = setting_defaults(type(self)).keys() - {"device", "precision"}
        return {name: getattr(self, name) for name in sorted(names)}

    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        return (found.map for found in self.detect(images))

    @abstractmethod
    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps with the detector's own image scores."""

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


def setting_defaults(kind: type) -> dict[str, object]:
    """Keyword arguments of a class, and of the classes that it hands the rest on to, by name, with their defaults.

    Examples
    --------
    >>> from anomalyncd.detect import PatchCore
    >>> found = setting_defaults(PatchCore)
    >>> found["bank_size"], found["size"]
    (10000, 336)
    """
    defaults: dict[str, object] = {}
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY} | defaults
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return dict(sorted(defaults.items()))


def misfit(kind: type, settings: Mapping[str, object]) -> str | None:
    """The first setting whose value is of another type than its default, in words; None where all fit.

    Examples
    --------
    >>> from anomalyncd.detect import PatchCore
    >>> misfit(PatchCore, {"bank_size": 10.5})
    'bank_size must be a whole number, but got 10.5'
    """
    defaults = setting_defaults(kind)
    for name, value in settings.items():
        allowed, words = _TYPES.get(type(defaults.get(name)), ((), ""))
        if allowed and type(value) not in allowed:
            return f"{name} must be {words}, but got {reprlib.repr(value)}"
    return None


def check_settings(settings: Mapping[str, object], name: str, kind: type) -> None:
    """Refuse settings that the detector called `name`, of the class `kind`, does not have or that are of a wrong type."""
    names = list(setting_defaults(kind))
    for wrong in settings:
        if wrong not in names:
            near = difflib.get_close_matches(wrong, names, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"detect.settings.{wrong}: the detector {name!r} has no such setting. {hint}It has {', '.join(names)}."
            )
    if words := misfit(kind, settings):
        raise SettingsError(f"detect.settings.{words}.")


def check_least(least: int, **settings: int) -> None:
    """Refuse a setting that is too small."""
    for name, value in settings.items():
        if type(value) is not int:
            raise SettingsError(f"{name} must be a whole number, but got {value!r}.")
        if value < least:
            raise SettingsError(f"{name} must be at least {least}, but got {value}.")


def check_windows(name: str, sides: Sequence[int]) -> None:
    """Refuse windows without a centre."""
    if not sides or any(side < 1 or side % 2 == 0 for side in sides):
        raise SettingsError(f"{name} must be odd and at least 1, but got {tuple(sides)}.")
