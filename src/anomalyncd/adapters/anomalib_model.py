"""How a model of anomalib is built: its settings, its view of the image, its backbone, and the noise around it."""

from __future__ import annotations

import inspect
import json
import logging
import random
import socket
import ssl
import urllib.error
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import timm
import torch
from timm.models import vision_transformer

from ..detect.base import ANOMALIB
from ..errors import AnomalyNCDError, SettingsError, WeightsError
from ..model.checkpoint import load_state_dict

WITHOUT_MAPS = {"CFM", "Dfkde", "Ganomaly", "VlmAd"}  # 3D scans, or image scores only
OURS = {"pre_processor", "post_processor", "evaluator", "visualizer"}  # arguments of a model that are not the user's
NETWORK = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, urllib.error.URLError)


def model_class(name: str) -> Any:
    try:
        with quiet():
            models = import_module("anomalib.models.image")
    except ImportError as error:
        raise SettingsError(
            f"the detector {ANOMALIB + name!r} needs anomalib: pip install 'anomalyncd[anomalib]' ({error})."
        ) from error
    names = sorted(set(models.__all__) - WITHOUT_MAPS)
    if name not in names:
        raise SettingsError(f"a model of anomalib that gives maps must be one of {', '.join(names)}, but got {name!r}.")
    return getattr(models, name)


def needs_normal(kind: Any, settings: Mapping[str, Any]) -> bool:
    """Whether the model learns from images at all; checks the names of the settings on the way."""
    parameters = inspect.signature(kind).parameters
    allowed = {*parameters, "pre_trained"} - OURS
    if unknown := settings.keys() - allowed:
        raise SettingsError(
            f"model_settings of {ANOMALIB}{kind.__name__} must be among {', '.join(sorted(allowed))}, "
            f"but got {', '.join(sorted(unknown))}."
        )
    try:
        json.dumps(settings)
    except TypeError as error:
        raise SettingsError(f"model_settings must be plain numbers, texts and lists, but: {error}.") from error
    # Asked of a stand-in: to build the model itself would need its weights.
    stand_in = SimpleNamespace(**{**{key: value.default for key, value in parameters.items()}, **settings})
    learning = kind.learning_type.fget(stand_in)
    if learning == "few_shot":
        raise SettingsError(f"{ANOMALIB}{kind.__name__} with k_shot is not supported: use k_shot=0, or another model.")
    return bool(learning != "zero_shot")


def whole_image(kind: Any, size: tuple[int, int] | None) -> Any:
    """The model's own pre-processing without its crop of the centre, which would hide defects near the border."""
    from torchvision.transforms import v2

    transform = kind.configure_pre_processor().transform
    steps = list(transform.transforms) if isinstance(transform, v2.Compose) else [transform]
    crops = [tuple(step.size) for step in steps if isinstance(step, v2.CenterCrop)]
    size = size or (crops[-1] if crops else None)
    kept = [step for step in steps if not isinstance(step, v2.CenterCrop)]
    for place, step in enumerate(kept):
        if size and isinstance(step, v2.Resize):
            kept[place] = v2.Resize(size, interpolation=step.interpolation, antialias=step.antialias)
    return import_module("anomalib.pre_processing").PreProcessor(transform=v2.Compose(kept))


@contextmanager
def backbones(weights: Callable[[str], Path] | None) -> Iterator[list[str]]:
    """While anomalib builds a model, backbones of timm take the file `weights(architecture)`, or stay untrained.

    Gives the list of architectures that were asked for. Half of anomalib's models have no other way around the hub.
    """
    library: Any = timm
    vit: Any = vision_transformer
    create, resample = library.create_model, vit.resample_abs_pos_embed
    asked: list[str] = []

    def create_local(model_name: str, pretrained: bool = False, **kwargs: Any) -> Any:
        if not pretrained:
            return create(model_name, pretrained=False, **kwargs)
        asked.append(model_name)
        kwargs = {"num_classes": 0, **kwargs}  # nobody uses the classifier, and files may lack it
        if weights is None:
            return create(model_name, pretrained=False, **kwargs)
        library.create_model = create  # which `weights` may need
        try:
            file = weights(model_name)
            plain, state = create(model_name, pretrained=False, num_classes=0), load_state_dict(file)
        finally:
            library.create_model = create_local
        if missing := [key for key, _ in plain.named_parameters() if key not in state]:  # timm would pass over them
            raise WeightsError(
                f"{file}: expected the weights of {model_name}, but {len(missing)} tensors are missing, for example "
                f"{missing[0]}."
            )
        overlay = {"state_dict": {key: state[key] for key in plain.state_dict() if key in state}, "num_classes": 0}
        try:
            return create(model_name, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)
        except RuntimeError as error:
            raise WeightsError(f"{file}: expected the weights of {model_name}, but {error}") from error

    library.create_model = create_local
    try:
        yield asked
    finally:
        library.create_model = create
        # anomalib replaces it for the whole process, which would change the tokens of our own backbone.
        vit.resample_abs_pos_embed = resample


@contextmanager
def inside_anomalib(seed: int, offline: str, refused: str) -> Iterator[None]:
    """Around code of anomalib: quiet, and with random numbers of the seed, but none of it is left behind.

    Each model, its hub and its packages raise errors of their own; they become ours, which begin with `offline` where a
    connection failed and with `refused` otherwise.
    """
    try:
        with quiet(), import_module("lightning.pytorch.utilities.seed").isolate_rng():
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    except AnomalyNCDError:
        raise
    except Exception as error:
        if is_network(error):
            raise WeightsError(f"{offline} ({error}).") from error
        raise SettingsError(f"{refused} ({type(error).__name__}: {error}).") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without what Lightning says about itself."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def is_network(error: BaseException | None) -> bool:
    """Whether a failed connection is among the causes."""
    while error is not None:
        if isinstance(error, NETWORK) or type(error).__module__.startswith("huggingface_hub"):
            return True
        error = error.__cause__ or error.__context__
    return False
