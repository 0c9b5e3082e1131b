"""AnomalyNCD: unlabelled product images in, defect classes out."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .config import Config, make_config
from .data.dataset import Dataset
from .data.gather import Base, Sources, gather, gather_base, gather_normal
from .detect.base import Detector
from .discovery.classify import Prediction, Predictor
from .discovery.fit import Discover
from .discovery.maps import detect_again
from .discovery.model import DiscoveryModel
from .discovery.update import Update, update_run
from .errors import RunError, SettingsError
from .model.device import choose_device
from .progress import Silent
from .run.folder import IMAGES_TABLE, LOG, REGIONS_TABLE, RunFolder
from .run.log import logging_to
from .run.tables import Assignment, read_csv, read_history, read_results


class AnomalyNCD:
    """Discover defect classes in unlabelled images.

    Parameters
    ----------
    n_classes : how many classes to find, the normal one counted (unless `has_normal` is False), or "auto"
    preset : `fast` (default) or `paper`
    has_normal : whether images without a defect are expected; they get label 0
    random_state : seed of every random choice
    backbone : `auto`, `tiny`, a name of `anomalyncd weights list`, or any ViT of timm
    device : `auto`, `cpu`, `cuda`, …
    progress : how work is shown, silent by default
    settings : sections of the configuration, for example `learn={"epochs": 10}`; see `anomalyncd.config`

    Attributes
    ----------
    labels_ : (N,) int, class of each image that could be read: 0 normal, 1 … defects
    probabilities_ : (N, K) float, columns in the order of `classes_`
    classes_ : (K,) int
    regions_, images_ : tables with the columns of regions.csv and images.csv
    history_ : loss of each epoch
    seconds_ : stage → time that it took in this call; empty after `load`
    skipped_ : id → reason, for files that could not be read

    Examples
    --------
    >>> images = np.random.default_rng(0).integers(0, 80, (6, 64, 64, 3), dtype=np.uint8)
    >>> masks = np.zeros((6, 64, 64), bool)
    >>> images[1:4, 20:40, 20:40], masks[1:4, 20:40, 20:40] = 255, True
    >>> images[4:, 10:14, 5:60], masks[4:, 10:14, 5:60] = [200, 0, 0], True
    >>> model = AnomalyNCD(n_classes=3, backbone="tiny").fit(list(images), masks=list(masks))
    >>> model.labels_.tolist()
    [0, 1, 1, 1, 2, 2]
    """

    def __init__(
        self,
        n_classes: int | str = "auto",
        *,
        preset: str | None = None,
        has_normal: bool = True,
        random_state: int = 0,
        backbone: str | None = None,
        device: str = "auto",
        progress: Silent | None = None,
        **settings: Any,
    ) -> None:
        self.n_classes = n_classes
        self.preset = preset
        self.has_normal = has_normal
        self.random_state = random_state
        self.backbone = backbone
        self.device = device
        self.progress = progress or Silent()
        self.settings = settings

    def fit(
        self,
        images: Sources | Dataset,
        y: object = None,
        *,
        maps: Sources | None = None,
        masks: Sources | None = None,
        base: Base | None = None,
        detector: str | Detector | None = None,
        normal: Sources | None = None,
        run: str | Path | None = None,
    ) -> AnomalyNCD:
        """Find the regions of all images, learn classes of regions, and merge them into classes of images.

        Parameters
        ----------
        images : paths or (H, W, 3) uint8 RGB arrays; or a folder or CSV as `load_dataset` takes
        y : not used, as in scikit-learn
        maps : one anomaly map for each image, paths or (H, W) float arrays; or a folder
        masks : instead of maps: one mask for each image, None where there is no defect; or a folder
        base : labelled defects of other products: (images, masks, labels), or a folder as `load_base` takes
        detector : instead of maps: `musc`, `patchcore`, `module:Class`, or a detector of your own; by default, where there
            are neither maps nor masks, `patchcore` with normal images, else `musc`
        normal : images of normal products for a detector that needs them: a folder, paths or arrays
        run : folder that keeps every stage, so that a second call goes on where the first one ended
        """
        made = detector if isinstance(detector, Detector) else None
        name = f"{type(made).__module__}:{type(made).__qualname__}" if made else detector
        given = maps is not None or masks is not None
        name = name or (None if given else self._set_detector)
        dataset = gather(images, maps, masks, bare=name is not None or normal is not None)
        if dataset.is_bare:
            name = name or ("musc" if normal is None else "patchcore")
        config = self._config({"detect": {"name": name}})  # maps that are given outweigh a detector of the settings
        normal_images, labelled = gather_normal(normal), gather_base(base)
        workspace = None
        if run is None:
            workspace = tempfile.TemporaryDirectory(prefix="anomalyncd-")  # goes with the estimator; `save` copies it
            run = workspace.name
        path = Path(run)
        dataset.check_outside(path, *normal_images.folders)
        with (
            RunFolder(path).writing() as folder,
            logging_to(folder.place(LOG), self.progress, "AnomalyNCD.fit") as progress,
        ):
            found = Discover(folder, config, progress)(dataset, labelled, normal_images.samples, made)
        self._workspace, self._folder = workspace, path.absolute()
        self.skipped_, self.history_, self.seconds_ = found.skipped, found.history, found.seconds
        return self._set(found.model, found.result)

    @property
    def _set_detector(self) -> str | None:
        detect = self.settings.get("detect")
        return detect.get("name") if isinstance(detect, Mapping) else None

    def predict(
        self, images: Sources | Dataset, *, maps: Sources | None = None, masks: Sources | None = None
    ) -> Prediction:
        """Classes of images that need not have been there when the model was fitted; arguments as in `fit`."""
        dataset = self.gather(images, maps, masks)
        return self.predictor(bare=dataset.is_bare)(dataset, self.progress)

    def gather(
        self,
        images: Sources | Dataset,
        maps: Sources | None = None,
        masks: Sources | None = None,
        exclude: Collection[str] = (),
    ) -> Dataset:
        """New images as this run needs them: with maps or masks, or bare where its detector makes maps."""
        self._check_fitted()
        return self.model_.gather(images, maps, masks, exclude)

    @property
    def detector_name(self) -> str | None:
        """Of the detector that is stored with the run; None where maps or masks were given."""
        self._check_fitted()
        return self.model_.config.detect.name

    def predictor(self, *, bare: bool = True) -> Predictor:
        """For callers that take the results of images a few at a time; bare : images come without maps and masks."""
        self._check_fitted()
        model = self.model_
        detector = detect_again(self._folder, model.config) if bare and model.config.detect.name else None
        return Predictor(model, model.extractor(self.progress.say), detector)

    def update(self, images: Sources | Dataset, *, maps: Sources | None = None, masks: Sources | None = None) -> Update:
        """Take new images in: known classes keep their numbers, unknown regions that are alike become new classes.

        Arguments as in `predict`. Afterwards `labels_` and all else are those of the old and the new images.
        """
        dataset = self.gather(images, maps, masks)
        dataset.check_outside(self._folder)
        with logging_to(RunFolder(self._folder).place(LOG), self.progress, "AnomalyNCD.update") as progress:
            found = update_run(self._folder, dataset, progress, device=self.device)
        fresh = type(self).load(self._folder, device=self.device, progress=self.progress)
        self.skipped_ = fresh.skipped_
        self._set(
            fresh.model_, Assignment(fresh.labels_, fresh.probabilities_, fresh.classes_, fresh.images_, fresh.regions_)
        )
        return found

    def save(self, path: str | Path) -> None:
        """Write the whole run to a folder, in the place of a run that may be there."""
        self._check_fitted()
        target, source = Path(path), self._folder.resolve()
        if target.resolve() == source:
            return
        if target.resolve().is_relative_to(source) or source.is_relative_to(target.resolve()):
            raise RunError(f"{target}: a run cannot be saved inside itself or around itself. Choose another folder.")
        with RunFolder(target).writing() as folder:
            folder.replace_by(source)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", progress: Silent | None = None) -> AnomalyNCD:
        """Read a folder that `save` or `discover` wrote."""
        folder = Path(path)
        choose_device(device)
        model = DiscoveryModel.read(folder, device=device)
        images, manifest = read_results(folder)
        regions = read_csv(folder / REGIONS_TABLE)
        failed = manifest[manifest["status"] == "skipped"]
        self = cls.from_config(model.config, progress=progress)
        self._folder = folder.absolute()
        self.skipped_ = dict(zip(failed["image"], failed["message"], strict=True))
        self.history_, self.seconds_ = read_history(folder), {}
        try:
            probabilities = images[[f"p_{k}" for k in model.classes.tolist()]].to_numpy(np.float64)
            labels = images["label"].to_numpy(np.int64)
        except (KeyError, ValueError) as error:
            raise RunError(f"{folder / IMAGES_TABLE}: does not fit the model beside it ({error}).") from error
        return self._set(model, Assignment(labels, probabilities, model.classes, images, regions))

    @classmethod
    def from_config(cls, config: Config, *, progress: Silent | None = None) -> AnomalyNCD:
        """An estimator with all settings of a configuration."""
        own = ("n_classes", "preset", "has_normal", "random_state", "device")
        settings = config.model_dump(mode="json", exclude=set(own))
        return cls(progress=progress, **{name: getattr(config, name) for name in own}, **settings)

    def _set(self, model: DiscoveryModel, result: Assignment) -> AnomalyNCD:
        self.model_ = model
        self.labels_, self.probabilities_, self.classes_ = result.labels, result.probabilities, model.classes
        self.images_, self.regions_ = result.images, result.regions
        return self

    def _config(self, chosen: Mapping[str, Any]) -> Config:
        number = isinstance(self.n_classes, int | np.integer) and not isinstance(self.n_classes, bool)
        if not number and self.n_classes != "auto":
            raise SettingsError(
                f'n_classes must be a whole number, the normal class counted, or "auto", but got {self.n_classes!r}.'
            )
        given: dict[str, Any] = {
            "n_classes": int(self.n_classes) if number else "auto", "has_normal": self.has_normal,
            "random_state": self.random_state, "device": self.device,
        }  # fmt: skip
        backbone = {"model": {"backbone": self.backbone}} if self.backbone else {}
        return make_config(self.settings, given, backbone, chosen, preset=self.preset)

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise SettingsError("this model is not fitted yet: call fit(images, maps=…) or load(folder) first.")
