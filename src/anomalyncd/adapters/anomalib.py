"""Models of anomalib as detectors (`anomalib:Patchcore`), and what its `Engine.predict` returned as our input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..detect.base import ANOMALIB, AnomalyMap, Detection, Picture, StoredDetector, check_least
from ..errors import DataError, SettingsError, WeightsError
from ..grid import to_map
from ..model.device import choose_device
from ..model.registry import REGISTRY
from ..model.weights import fetch
from .anomalib_model import OURS, backbones, inside_anomalib, model_class, needs_normal, whole_image


class AnomalibDetector(StoredDetector):
    """An image model of anomalib, trained by anomalib's own engine. Needs `pip install 'anomalyncd[anomalib]'`.

    The maps are what the model itself returns, before anomalib scales them to [0, 1]. The whole image is looked at, also by
    models that crop its centre by default. One image at a time: some models scale a map by the others of its batch.

    Parameters
    ----------
    model : class name in `anomalib.models`, for example `Patchcore`, `Padim`, `Stfpm`
    model_settings : arguments of that class, for example `{"backbone": "resnet18", "layers": ["layer2", "layer3"]}`;
        `pre_trained: False` is understood for every model whose backbone comes from timm
    max_epochs : passes over the normal images, for models that do not fix it themselves
    weights : local file with the weights of the backbone, by timm's names: .safetensors, or .pt/.pth with tensors only
    image_size : side, or (height, width), that images are scaled to; None is the model's own
    map_size : pixels of a map's longer side; a map has the aspect of its image
    batch_size : images of a training step
    """

    def __init__(
        self,
        model: str,
        *,
        model_settings: Mapping[str, Any] | None = None,
        max_epochs: int = 50,
        weights: str | Path | None = None,
        image_size: int | Sequence[int] | None = None,
        map_size: int = 256,
        batch_size: int = 8,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        check_least(1, max_epochs=max_epochs, map_size=map_size, batch_size=batch_size)
        self.name = ANOMALIB + model  # type: ignore[misc]
        self.model_settings = dict(model_settings or {})
        self._kind = model_class(model)
        self.needs_normal = needs_normal(self._kind, self.model_settings)  # type: ignore[misc]
        self.max_epochs, self.map_size, self.batch_size, self.seed = max_epochs, map_size, batch_size, seed
        self.weights = None if weights is None else str(weights)
        self.image_size = _pair(image_size)
        self.device = choose_device(device)
        self._module: Any = None

    @property
    def settings(self) -> dict[str, Any]:
        """As everywhere, with the name of the model."""
        return {"model": self.name.removeprefix(ANOMALIB), **super().settings}

    def fit(self, normal_images: Iterable[Picture]) -> AnomalibDetector:
        """Train on normal images, which are written to a temporary folder for it. Nothing to do for zero-shot models."""
        if not self.needs_normal:
            return self
        module = self._build()
        with TemporaryDirectory(prefix="anomalyncd-") as folder:
            normal = Path(folder) / "normal"
            normal.mkdir()
            for place, image in enumerate(normal_images):
                Image.fromarray(image).save(normal / f"{place:06d}.png", compress_level=1)
            if not any(normal.iterdir()):
                raise DataError(f"{self.name} needs normal images to learn from, and there is none that can be read.")
            self._train(module, Path(folder))
        self._module = module.eval().to(self.device)
        return self

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """The model's own anomaly maps and image scores, not scaled."""
        if self._module is None and self.needs_normal:
            raise DataError(f"{self.name} was not fitted: give it normal images first.")
        if self._module is None:
            self._module = self._build().eval().to(self.device)
            self._module.setup("predict")  # WinClip reads its prompts here
        return map(self._look, images)

    def tensors(self) -> dict[str, Tensor]:
        learned = self._module.model.state_dict() if self._module is not None and self.needs_normal else {}
        return {name: value.clone() for name, value in learned.items()}  # models share tensors, which no file can

    def restore(self, tensors: dict[str, Tensor]) -> None:
        module = self._build(blank=True)
        module.model.load_state_dict(tensors)
        self._module = module.eval().to(self.device)

    def _build(self, *, blank: bool = False) -> Any:
        """The model of anomalib; `blank` leaves its backbone untrained, because all weights are loaded afterwards."""
        settings = {key: value for key, value in self.model_settings.items() if key != "pre_trained"}
        untrained = not self.model_settings.get("pre_trained", True)
        offline = (
            f"{self.name} loads its weights by itself, and they are out of reach. Load them once where there is a network, "
            "or take a model with a backbone of timm, whose weights may be a local file"
        )
        refused = f"{self.name} cannot be built with the model_settings {self.model_settings}"
        weights = None if blank or untrained else self._weights_of
        with inside_anomalib(self.seed, offline, refused), backbones(weights) as asked:
            ours = {**dict.fromkeys(OURS, False), "pre_processor": whole_image(self._kind, self.image_size)}
            module = self._kind(**ours, **settings)
        if not asked and not blank and (untrained or self.weights):
            raise SettingsError(
                f"{self.name} takes no backbone from timm, so it heeds neither `weights` nor `pre_trained`: leave them out."
            )
        return module

    def _weights_of(self, architecture: str) -> Path:
        if self.weights:
            return Path(self.weights)
        wanted = (architecture, {"num_classes": 0})
        known = [entry.name for entry in REGISTRY.values() if (entry.architecture, entry.model_kwargs) == wanted]
        try:
            return fetch([*known, architecture][0])
        except WeightsError as error:
            raise WeightsError(
                f"{self.name} needs the weights of {architecture}. Give a local file as `weights`, or take untrained "
                f"ones with `model_settings.pre_trained=false`. {error}"
            ) from error

    def _train(self, module: Any, folder: Path) -> None:
        data, engine = import_module("anomalib.data"), import_module("anomalib.engine")
        on_gpu = self.device.type == "cuda"
        place = {
            "accelerator": "gpu" if on_gpu else self.device.type,
            "devices": [self.device.index or 0] if on_gpu else 1,
        }
        # EfficientAd learns in validation: the scale of its two maps, from normal images. Others only lose time there.
        splits: dict[str, Any]
        if "on_validation_start" in vars(self._kind):
            splits = {"normal_test_dir": "normal", "test_split_mode": "from_dir", "val_split_mode": "same_as_test"}
            validation = {"check_val_every_n_epoch": self.max_epochs}
        else:
            splits = {"test_split_mode": "none", "val_split_mode": "none"}
            validation = {"limit_val_batches": 0}
        splits |= {"train_batch_size": self.batch_size, "eval_batch_size": self.batch_size}
        training = {"max_epochs": self.max_epochs, "barebones": True, **place, **validation}
        offline = f"{self.name} loads files when it is trained, and they are out of reach"
        with inside_anomalib(self.seed, offline, f"{self.name} could not be trained"):
            images = data.Folder(name="normal", root=folder, normal_dir="normal", num_workers=0, **splits)
            engine.Engine(default_root_dir=folder / "results", **training).fit(module, datamodule=images)

    @torch.inference_mode()
    def _look(self, image: Picture) -> Detection:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].to(self.device) / 255
        batch = import_module("anomalib.data").ImageBatch(image=self._module.pre_processor.transform(pixels))
        found = self._module.predict_step(batch, 0)
        if found.anomaly_map is None:
            raise SettingsError(f"{self.name} gives no anomaly maps with the model_settings {self.model_settings}.")
        grid = found.anomaly_map.reshape(found.anomaly_map.shape[-2:])
        anomaly_map = to_map(grid.float().cpu().numpy(), (image.shape[0], image.shape[1]), map_size=self.map_size)
        return Detection(anomaly_map, float(grid.max() if found.pred_score is None else found.pred_score.max()))


@dataclass(frozen=True)
class AnomalibPredictions:
    """Predictions of anomalib as `AnomalyNCD.fit(images, maps=maps)` takes them, one of each an image.

    images : paths; maps : (h, w) float32 each, over the whole image; scores : `pred_score`, nan where there is none
    """

    images: list[Path] = field(default_factory=list)
    maps: list[AnomalyMap] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def from_anomalib(predictions: Iterable[Any] | Any, *, shown: float = 1.0) -> AnomalibPredictions:
    """Take what `Engine.predict` returned: batches, items, or lists of them.

    Parameters
    ----------
    shown : share of each side that the model saw, for those that cut the centre out of an image: 392 / 448 where it was
        made 448 px large and 392 px were kept (Dinomaly's default). The border then counts as normal

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> item = SimpleNamespace(image_path="crack/000.png", anomaly_map=torch.zeros(1, 4, 6), pred_score=torch.tensor(0.5))
    >>> found = from_anomalib([item])
    >>> found.images[0].name, found.maps[0].shape, found.scores
    ('000.png', (4, 6), [0.5])
    """
    if not 0 < shown <= 1:
        raise SettingsError(f"shown must be a share above 0 and at most 1, but got {shown!r}.")
    found = AnomalibPredictions()
    for item in _items(predictions):
        if item.anomaly_map is None or item.image_path is None:
            raise DataError(
                f"anomalib's prediction for {item.image_path or 'an image'} must have an image_path and an anomaly_map, "
                f"but one is None. Models that only score images give no maps."
            )
        anomaly_map = _array(item.anomaly_map)
        found.images.append(Path(item.image_path))
        found.maps.append(_framed(anomaly_map.reshape(anomaly_map.shape[-2:]), shown))
        found.scores.append(float("nan") if item.pred_score is None else float(_array(item.pred_score).max()))
    return found


def _framed(anomaly_map: AnomalyMap, shown: float) -> AnomalyMap:
    """The map of the centre, with a border of its lowest value."""
    missing = [round(side / shown) - side for side in anomaly_map.shape]
    return np.pad(anomaly_map, [(m // 2, m - m // 2) for m in missing], constant_values=anomaly_map.min())


def _items(predictions: Any) -> Iterator[Any]:
    if isinstance(getattr(predictions, "image_path", ()), str | Path | None) and hasattr(predictions, "anomaly_map"):
        yield predictions
    elif isinstance(predictions, Iterable) and not isinstance(predictions, str | Mapping | Tensor | np.ndarray):
        for part in predictions:  # a batch of anomalib gives its items
            yield from _items(part)
    else:
        raise DataError(f"expected predictions of anomalib's Engine.predict, but got {type(predictions).__name__}.")


def _array(value: Any) -> AnomalyMap:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value).astype(np.float32)


def _pair(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = [size, size] if isinstance(size, int) else list(size)
    if len(sides) != 2 or min(sides) < 1:
        raise SettingsError(f"image_size must be a side of at least 1, or height and width, but got {size}.")
    return sides[0], sides[1]
