"""AnomalyNCD: unlabelled product images in, defect classes out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import NotFittedError

from .config import Config, make_config
from .data.dataset import Dataset
from .data.gather import Base, Sources, gather, gather_base, gather_normal
from .discovery.classify import Prediction, Predictor
from .discovery.model import DiscoveryModel
from .errors import DataError, RunError, SettingsError, WrongTypeError
from .paths import path_of, resolved
from .progress import Silent
from .run.finished import FinishedRun, Key
from .run.folder import IMAGES_TABLE, LOG, RunFolder
from .run.log import logging_to

if TYPE_CHECKING:  # imported where they are called: torch is needed to learn and to predict, not to import this
    from .blocks.engine import Engine
    from .detect.base import Detector
    from .discovery.relearn import Move
    from .discovery.update import Update
    from .guide.suggest import Suggestions
    from .known.given import KnownKinds


class NotFitted(SettingsError, NotFittedError):  # type: ignore[misc]
    """A model was asked for classes before it was fitted or loaded."""


class AnomalyNCD(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Discover defect classes in unlabelled images; an estimator as scikit-learn has them.

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
    probabilities_, classes_ : (N, K) float, with columns in the order of the latter, (K,) int
    regions_, images_ : tables with the columns of regions.csv and images.csv
    history_ : loss of each epoch
    seconds_ : stage → time that it took in this call; empty after `load`
    skipped_ : id → reason, for files that could not be read
    run_ : the finished run, see `FinishedRun`; model_ : what it has learned

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

    engine: Engine | None = None  # where `fit` and `update` do what they do image by image; None: in this process

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
        self.progress = progress
        self.settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All arguments of the constructor; with `deep` also single settings of sections, as `learn__epochs`."""
        params = {name: getattr(self, name) for name in self._get_param_names()} | self.settings
        sections = {name: value for name, value in self.settings.items() if deep and isinstance(value, Mapping)}
        return params | {
            f"{name}__{key}": value for name, section in sections.items() for key, value in section.items()
        }

    def set_params(self, **params: Any) -> AnomalyNCD:
        """Change arguments of the constructor, or single settings, as `learn__epochs=5`; `fit` checks them."""
        for name, value in params.items():
            section, _, key = name.partition("__")
            if key:
                known = self.settings.get(section, {})
                if not isinstance(known, Mapping):
                    raise SettingsError(f"{section} must be a section of settings, but it is {known!r}.")
                self.settings = self.settings | {section: {**known, key: value}}
            elif name in self._get_param_names():
                setattr(self, name, value)
            else:
                self.settings = self.settings | {name: value}
        return self

    def fit(
        self,
        images: Sources | Dataset,
        y: object = None,
        *,
        maps: Sources | None = None,
        masks: Sources | None = None,
        base: Base | None = None,
        detector: str | Detector | None = None,
        normal: Sources | Dataset | None = None,
        normal_maps: Sources | None = None,
        known: KnownKinds | None = None,
        run: str | Path | None = None,
        force: bool = False,
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
        normal_maps : with `maps`, how the same detector sees normal products: one map for each image of `normal`, or maps
            alone. They tell how normal images score, and so how likely a finding is a false alarm
        known : labels of some images of the product: a folder of class folders, a table with the columns `image` and
            `label`, a reviewed run, or image id → class. These classes keep their names, and others are found beside them;
            "good", "normal" and "ok" are examples of false alarms
        run : folder that keeps every stage, so that a second call goes on where the first one ended
        force : learn classes anew even where people named or corrected those of the run; a copy of that is kept in it
        """
        from .detect.base import Detector
        from .discovery.fit import discover
        from .known.given import gather_known
        from .run.stages import Stages

        made = detector if isinstance(detector, Detector) else None
        if made is None and not isinstance(detector, str | None):
            raise WrongTypeError(f"detector: expected a name or a detector, but got {type(detector).__name__}.")
        name = f"{type(made).__module__}:{type(made).__qualname__}" if made else detector
        if maps is None and masks is None and not (isinstance(images, Dataset) and not images.is_bare):
            name = name or self._config().detect.name
        normal_images, labelled = gather_normal(normal, normal_maps), gather_base(base)
        with_maps = normal_images.has_maps
        to_fit = normal is not None and not with_maps  # a detector
        dataset = gather(images, maps, masks, bare=name is not None or (to_fit and maps is None and masks is None))
        if dataset.is_bare:
            name = name or ("musc" if normal is None else "patchcore")
        elif name or to_fit:
            raise DataError(
                "give maps, masks or a detector, only one of them; normal images need maps too (normal_maps)."
            )
        if with_maps and not dataset.has_maps:
            raise DataError(
                "normal_maps say how the detector of `maps` sees normal products, so they go with maps only."
            )
        config, workspace = self._config({"detect": {"name": name}}), None  # maps that are given outweigh its detector
        if run is None:
            workspace = tempfile.TemporaryDirectory(prefix="anomalyncd-")  # goes with the estimator; `save` copies it
            run = workspace.name
        path, progress = path_of(run, "run").absolute(), self._progress
        dataset.check_outside(path, *normal_images.folders)
        with (
            RunFolder(path, force=force).writing() as folder,
            logging_to(folder.place(LOG), progress, "AnomalyNCD.fit") as log,
        ):
            found = discover(
                Stages(folder, config, log, self.engine),
                dataset,
                base=labelled,
                normal=normal_images.samples,
                detector=made,
                known=gather_known(known, dataset),
            )
            if folder.kept:
                log.warn(f"classes were learned anew. What people had done to those of before is kept in {folder.kept}")
        self._workspace = workspace
        self._set(FinishedRun(path, device=config.device), found.model)
        self.images_, self.regions_, self.skipped_ = found.result.images, found.result.regions, found.skipped
        self.probabilities_, self.seconds_ = found.result.probabilities, found.seconds  # exact, six digits in the table
        return self

    def predict(
        self, images: Sources | Dataset, *, maps: Sources | None = None, masks: Sources | None = None
    ) -> Prediction:
        """Classes of images that need not have been there when the model was fitted; arguments as in `fit`."""
        dataset = self._fitted.gather(images, maps, masks)
        return self.predictor(bare=dataset.is_bare)(dataset, self._progress)

    def fit_predict(self, images: Sources | Dataset, y: object = None, **inputs: Any) -> npt.NDArray[np.int64]:
        """Fit, and return `labels_`; arguments as in `fit`."""
        return self.fit(images, y, **inputs).labels_

    def predict_proba(
        self, images: Sources | Dataset, *, maps: Sources | None = None, masks: Sources | None = None
    ) -> npt.NDArray[np.float64]:
        """(N, K) probabilities of new images, columns in the order of `classes_`; arguments as in `predict`.

        A row is all 0 where the image is unknown. Files that cannot be read have no row: `predict` lists them.
        """
        return self.predict(images, maps=maps, masks=masks).probabilities

    def region_features(self) -> pd.DataFrame:
        """What the classes were made from: a unit vector for each row of `regions_`, in its order; empty if nothing was."""
        run, classifier = self._fitted, self._fitted.model.classifier
        vectors = np.empty((len(run.regions), 0)) if classifier is None else classifier.space.transform(run.features)
        index = pd.MultiIndex.from_frame(run.regions[["image", "region"]])
        return pd.DataFrame(vectors, index=index, columns=[f"f_{k}" for k in range(vectors.shape[1])])

    def predictor(self, *, bare: bool = True) -> Predictor:
        """For callers that take the results of images a few at a time; bare : images come without maps and masks."""
        return self._fitted.predictor(bare=bare, progress=self._progress)

    def update(
        self,
        images: Sources | Dataset,
        *,
        maps: Sources | None = None,
        masks: Sources | None = None,
        known: KnownKinds | None = None,
    ) -> Update:
        """Take new images in: known classes keep their numbers, unknown regions that are alike become new classes.

        Arguments as in `predict`, and labels of new images, or of those of the run, as in `fit`. Afterwards `labels_`
        and all else are those of the old and the new images.
        """
        from .discovery.update import update_run

        run = self._fitted
        dataset = run.gather(images, maps, masks)
        dataset.check_outside(run.path)
        with logging_to(run.folder.place(LOG), self._progress, "AnomalyNCD.update") as progress:
            found = update_run(run.path, dataset, progress, known=known, device=self.device, engine=self.engine)
        self._set(FinishedRun(run.path, device=self.device))
        return found

    def correct(
        self, regions: Mapping[Key, int] | None = None, *, names: Mapping[int, str] | None = None
    ) -> list[Move]:
        """Name classes, and learn again from regions that a person placed, as Apply of the review; returns what moved.

        regions : (image, region) → class, 0 a false alarm, a number that is not there yet a new class; names : of classes
        """
        from .steps.correct import correct_run

        moved = correct_run(self._fitted, regions or {}, names or {}, self._progress)
        self._set(FinishedRun(self.run_.path, device=self.device))
        return moved

    def suggest(self, n: int = 5) -> Suggestions:
        """What a person should look at next: n regions (rows of `regions_`), and classes that may be one or two."""
        from .guide.suggest import suggest

        return suggest(self._fitted, n)

    def copies(self) -> list[list[str]]:
        """Groups of images that are copies of each other, or shots of the same part; empty where the run cannot tell."""
        from .guide.copies import copies

        store = self._fitted.store
        groups = [] if store.scenes is None else copies(store.scenes)
        return [[store.images[place].id for place in group] for group in groups]

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the whole run to a folder, in the place of a run that may be there.

        force : even where people named or corrected the classes of that run; a copy of that is kept in it
        """
        target, source = path_of(path, "path"), resolved(self._fitted.path)
        if resolved(target) == source:
            return
        if resolved(target).is_relative_to(source) or source.is_relative_to(resolved(target)):
            raise RunError(f"{target}: a run cannot be saved inside itself or around itself. Choose another folder.")
        with RunFolder(target, force=force).writing() as folder:
            folder.replace_by(source)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", progress: Silent | None = None) -> AnomalyNCD:
        """Read a folder that `save` or `discover` wrote."""
        from .model.device import choose_device

        choose_device(device)
        run = FinishedRun(path_of(path, "path").absolute(), device=device)
        self = cls(progress=progress, **run.model.config.differences())
        return self._set(run)

    def _set(self, run: FinishedRun, model: DiscoveryModel | None = None) -> AnomalyNCD:
        """Be fitted as the run is; model : what the run has learned, where it is at hand."""
        if model is not None:
            run.model = model
        self.run_, self.model_, self.classes_, self.seconds_ = run, run.model, run.model.classes, {}
        self.images_, self.regions_, self.skipped_, self.history_ = run.images, run.regions, run.skipped, run.history
        try:
            found = run.images[[f"p_{k}" for k in self.classes_.tolist()]]
            self.probabilities_ = found.to_numpy(np.float64)
            self.labels_: npt.NDArray[np.int64] = run.images["label"].to_numpy(np.int64)
        except (KeyError, ValueError) as error:
            raise RunError(f"{run.path / IMAGES_TABLE}: does not fit the model beside it ({error}).") from error
        return self

    def _config(self, *chosen: Mapping[str, Any]) -> Config:
        number = isinstance(self.n_classes, int | np.integer) and not isinstance(self.n_classes, bool)
        if not number and not (isinstance(self.n_classes, str) and self.n_classes == "auto"):
            raise SettingsError(
                f'n_classes must be a whole number, the normal class counted, or "auto", but got {self.n_classes!r}.'
            )
        own: dict[str, Any] = {
            "n_classes": int(self.n_classes) if number else "auto",
            **{name: getattr(self, name) for name in ("has_normal", "random_state", "device")},
        }
        named = self.backbone is not None and not (isinstance(self.backbone, str) and not self.backbone)
        backbone = {"model": {"backbone": self.backbone}} if named else {}
        return make_config(self.settings, own, backbone, *chosen, preset=self.preset)

    @property
    def _progress(self) -> Silent:
        if self.progress is not None and not isinstance(self.progress, Silent):
            raise WrongTypeError(f"progress: expected a Silent or a Terminal, but got {type(self.progress).__name__}.")
        return self.progress or Silent()

    @property
    def _fitted(self) -> FinishedRun:
        if not hasattr(self, "run_"):
            raise NotFitted("this model is not fitted yet: call fit(images, maps=…) or load(folder) first.")
        return self.run_
