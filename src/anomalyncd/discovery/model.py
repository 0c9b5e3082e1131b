"""A fitted model: all that is needed to class new images, in one file that holds numbers and JSON only."""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..assign.false_alarms import FalseAlarms
from ..assign.images import novel_probabilities, with_normal
from ..assign.product import Product, fit_product
from ..assign.unknown import UnknownScore, fit_unknown
from ..binarize.base import Binarizer
from ..binarize.prepare import restore_binarizer
from ..blocks.shards import Look
from ..checksums import from_json, seal, unseal
from ..config import Config, make_config
from ..data.dataset import Dataset
from ..data.gather import Sources, gather
from ..errors import DataError, MissingRunError, RunError
from ..labels import NORMAL, default_name
from ..large import at
from ..learn.classifier import Classifier, FeatureParts
from ..learn.features import TokenNetwork
from ..learn.rows import block_rows
from ..model.seen import Seen
from ..regions.extract import Extractor
from ..regions.find import Region, first_regions, strengths
from ..regions.network import Say, make_vit
from ..regions.records import ImageRecord
from ..run.folder import FORMAT, MODEL_FILE, RunFolder
from ..run.tables import read_names

if TYPE_CHECKING:  # a model is read, and its exported form runs, without torch
    from ..model.backbone import MaskGuidedViT


@dataclass
class DiscoveryModel:
    """What a run has learned.

    config : the settings it was fitted with
    classifier : None when there was no region to learn from
    binarizer : fitted on the maps, None when masks were given
    false_alarms : how likely a finding is one; None with masks, or where nothing tells
    learns_normal : whether the classifier's first class is the normal one
    names : label → name of the class
    classes : (K,) int, labels in the order of the columns of all probabilities; empty until their number is known
    unknown : how far regions lie from all that was fitted; None when there was no region
    highest : label that any class ever had, so that no number is used for two kinds
    product : what the images of the run look like; None where they are too few, or nobody wants to know
    """

    config: Config
    classifier: Classifier | None = None
    binarizer: Binarizer | None = None
    false_alarms: FalseAlarms | None = None
    learns_normal: bool = False
    names: dict[int, str] = field(default_factory=dict)
    classes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    unknown: UnknownScore | None = None
    highest: int = 0
    product: Product | None = None

    def __post_init__(self) -> None:
        self._vit: MaskGuidedViT | None = None
        self._asked: tuple[object, ...] = (None,) * 5  # what the unknown score was fitted to last, and
        self._scores = np.empty(0)  # what it said
        self.seen: Seen | None = None  # where the run's own detector leaves what it saw in whole images
        if not len(self.classes) and self.config.n_classes != "auto":
            self.set_count(self.config.n_classes)

    def set_count(self, count: int) -> None:
        """Number the classes: 0 … count − 1, or 1 … count where no image is normal."""
        self.classes = np.arange(count) if self.config.has_normal else np.arange(1, count + 1)
        self.names = {k: self.names.get(k, default_name(k)) for k in self.classes.tolist()}
        self.highest = max(self.highest, *self.classes.tolist(), 0)

    def gather(
        self,
        images: Sources | Dataset,
        maps: Sources | None = None,
        masks: Sources | None = None,
        exclude: Collection[str] = (),
    ) -> Dataset:
        """New images as this model needs them: with maps or masks, or bare where the run's own detector makes maps."""
        bare = maps is None and masks is None and self.config.detect.name is not None
        dataset = gather(images, maps, masks, exclude=exclude, bare=bare)
        if dataset.is_bare and self.config.detect.name is None:
            raise DataError(
                "give either maps (--maps) or masks (--masks), one for each image; the run has no detector."
            )
        return dataset

    def check_maps(self, dataset: Dataset) -> None:
        """Refuse maps whose values do not mean what those of the run meant."""
        if all(sample.map is None for sample in dataset):
            return
        if self.binarizer is None:
            raise DataError(
                "this model was fitted on masks, so it has no fitted range for anomaly maps. Give masks (--masks), or fit "
                "a model on maps."
            )
        if self.config.detect.name:
            raise DataError(
                f"the maps of this run were made by its own detector, {self.config.detect.name}, and the values of other "
                "maps mean something else. Leave --maps out: the detector is stored with the run."
            )

    @property
    def learned_classes(self) -> npt.NDArray[np.int64]:
        """Labels of the classes that the classifier tells apart, in its order: all, or all but normal."""
        return self.classes if self.learns_normal else self.classes[self.classes > 0]

    @property
    def is_retrained(self) -> bool:
        """Whether the network's last block was trained, so that its features are others than the frozen ones."""
        return self.classifier is not None and bool(self.classifier.last_block)

    @property
    def n_region_classes(self) -> int:
        """Classes that regions fall into."""
        return len(self.learned_classes)

    def false_alarm_probability(
        self, parts: FeatureParts, regions: Sequence[Region], images: Sequence[ImageRecord], rate: float | None = None
    ) -> npt.NDArray[np.float64]:
        """(R,) chance that a normal image has something as suspicious; up to `rate` it is a defect.

        The strongest region of an image stands for the image: its score, and looks where they have a say. The others have
        their own peak on top, and no region is more certain than its image. All 0 where nothing tells.

        rate : instead of the setting `detect.false_alarms`
        """
        if self.false_alarms is None or self.binarizer is None or not regions:
            return np.zeros(len(regions))
        rate = self.config.detect.false_alarms if rate is None else rate
        score_of = {record.index: record.score for record in images}
        first = first_regions(regions)
        places = {index: place for place, index in enumerate(first)}
        looks = None
        if "image" in parts and self.false_alarms.looks is not None:
            looks = parts["image"][list(first.values())].astype(np.float32).mean(axis=1)
        of_images = self.false_alarms.of_images([score_of[index] for index in first], looks, rate)
        of_image = np.array([places[region.index] for region in regions])
        low, high = self.binarizer.low_, self.binarizer.high_
        peaks = low + np.array([region.score for region in regions]) * (high - low)
        chance: npt.NDArray[np.float64] = np.maximum(of_images[of_image], self.false_alarms.of_regions(peaks))
        strongest = np.lexsort((-strengths(regions), of_image))  # of equals the first one
        _, one_each = np.unique(of_image[strongest], return_index=True)
        chance[strongest[one_each]] = of_images
        return chance

    def region_probabilities(
        self, parts: FeatureParts, regions: Sequence[Region], images: Sequence[ImageRecord], rate: float | None = None
    ) -> npt.NDArray[np.float64]:
        """(R, K) over `classes`; rows of NaN where nothing was learned. rate : as in `false_alarm_probability`."""
        out = np.zeros((len(regions), len(self.classes)))
        if not regions:
            return out
        if self.classifier is None:
            return np.full_like(out, np.nan)
        classifier = self.classifier
        novel = novel_probabilities(classifier.cosines(parts), classifier.n_base, classifier.temperature)
        out[:, len(self.classes) - self.n_region_classes :] = novel
        if self.false_alarms is not None and NORMAL in self.classes:
            rate = self.config.detect.false_alarms if rate is None else rate
            out = with_normal(out, self.false_alarm_probability(parts, regions, images, rate), rate)
        return out

    def fit_unknown(
        self, parts: FeatureParts, regions: Sequence[Region], known: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.float64]:
        """Fit the unknown score to the run's own regions; returns (R,), how far each of them lies from the others.

        known : (R,) bool, regions that have a class; the others are no references, or more like them would seem known
        """
        if self.classifier is None or not regions:
            self.unknown = None
            return np.zeros(len(regions))
        asked = (parts, regions, known, self.classifier.space, self.config)
        if all(map(operator.is_, asked, self._asked)):
            return self._scores.copy()
        known = np.ones(len(regions), bool) if known is None else known
        images, scores = np.array([region.index for region in regions]), np.zeros(len(regions))
        blocks, weights = block_rows(self.classifier.space, parts)
        self.unknown, scores[known] = fit_unknown(
            at(blocks, known), weights, images[known], self.config.unknown.false_rate,
            center=self.config.features.center, seed=self.config.random_state,
        )  # fmt: skip
        scores[~known] = self.unknown(at(blocks, ~known))
        self._asked, self._scores = asked, scores.copy()
        return scores

    def fit_product(
        self, scenes: npt.NDArray[np.float16] | None, known: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.float64] | None:
        """Fit what the product looks like to scenes (N, C + 2) of the run's own images, None where they were not wanted.

        known : (N,) bool, images that do show the product
        Returns (N,), how far each image lies from the others.
        """
        self.product, scores = None, None
        if scenes is not None:
            rate, seed = self.config.unknown.foreign_rate, self.config.random_state
            self.product, scores = fit_product(scenes.astype(np.float32), rate, known, seed)
        return scores

    def foreign(self, scenes: npt.NDArray[np.float16] | None) -> npt.NDArray[np.float64] | None:
        """(N,) in 0 … 1, how far new images lie from those of the run, where that is known; above 0.5 = another product."""
        return None if self.product is None or scenes is None else self.product(scenes.astype(np.float32))

    def recognize(
        self, parts: FeatureParts, regions: Sequence[Region], images: Sequence[ImageRecord]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """As `region_probabilities`, with rows of NaN for regions of an unknown kind; the unknown score (R,) of each; and
        its `false_alarm_probability` (R,)."""
        probabilities, scores = self.region_probabilities(parts, regions, images), np.zeros(len(regions))
        chance = self.false_alarm_probability(parts, regions, images)
        if self.unknown is not None and self.classifier is not None and regions:
            alarms = chance <= self.config.detect.false_alarms
            scores = np.where(alarms, self.unknown(block_rows(self.classifier.space, parts)[0]), 0.0)
            probabilities[scores > 0.5] = np.nan
        return probabilities, scores, chance

    def try_out(self) -> None:
        """Send a made-up region through all that was learned: arrays that do not fit each other, as a stranger's file may
        have them, raise here and not in the middle of a run."""
        if self.classifier is None:
            return
        space, weight = self.classifier.space, self.classifier.weight
        parts = {name: np.ones((1, 1, *mean.shape), np.float16) for name, mean in space.means.items()}
        right = weight.ndim == 2 and self.classifier.n_classes == self.n_region_classes
        if not right or any(part.ndim != 4 for part in parts.values()):
            raise ValueError("its arrays have wrong shapes")
        if parts.keys() != space.weights.keys():  # a network that was trained takes nothing off
            return
        region = Region(box=(0, 0, 1, 1), square=(0, 0, 1), area=1.0, score=1.0)
        self.recognize(parts, [region], [ImageRecord(0, "")])
        if self.product is not None:
            self.product(np.zeros((1, next(iter(parts.values())).shape[-1] + 2), np.float32))

    def vit(self, say: Say | None = None) -> MaskGuidedViT:
        """The backbone on its device, with the trained last block; loaded once."""
        if self._vit is None:
            self._vit = make_vit(self.config, say)
            if self.classifier is not None:
                from ..learn.fit import install

                install(self.classifier, self._vit)
        return self._vit

    def look(self, say: Say | None = None, network: TokenNetwork | None = None) -> Look:
        """For new images: the same range, crops and features as when it was fitted; network : instead of the backbone."""
        return Look(
            self.config, self.binarizer, None if self.false_alarms is None else self.false_alarms.scores,
            scenes=self.config.unknown.foreign_rate > 0, seen=self.seen, network=lambda: network or self.vit(say),
        )  # fmt: skip

    def extractor(self, say: Say | None = None, network: TokenNetwork | None = None) -> Extractor:
        """What `look` gives, here."""
        return self.look(say, network)()

    def pack(self) -> bytes:
        """The file's content."""
        tensors: dict[str, Any] = (
            self.classifier.tensors() if self.classifier else {"weight": np.zeros((0, 1), np.float32)}
        )
        for known in (self.unknown, self.product):
            tensors |= known.tensors() if known is not None else {}
        if self.false_alarms is not None:
            tensors |= {name: value.astype(np.float16) for name, value in self.false_alarms.tensors().items()}
        meta = {
            "format": FORMAT,
            "version": __version__,
            "config": self.config.model_dump(mode="json"),
            "classifier": self.classifier.settings() if self.classifier else None,
            "binarizer": self.binarizer.get_state() if self.binarizer else None,
            "false_alarms": self.false_alarms.settings() if self.false_alarms else None,
            "learns_normal": self.learns_normal,
            "names": {str(k): name for k, name in self.names.items()},
            "classes": self.classes.tolist(),
            "highest": self.highest,
            "unknown": self.unknown.settings() if self.unknown else None,
            "product": self.product.settings() if self.product else None,
        }
        return seal(tensors, {"anomalyncd": json.dumps(meta)})

    @classmethod
    def read(cls, folder: Path, *, device: str = "auto", names: bool = True) -> DiscoveryModel:
        """The model of a run folder, with the names that people gave to its classes unless `names` is False."""
        RunFolder(folder).recover()
        path = RunFolder(folder).place(MODEL_FILE)
        if not path.is_file():
            raise MissingRunError(
                f"{folder}: expected a finished run with {MODEL_FILE}, none found. Make or finish one with "
                "`anomalyncd discover`."
            )
        try:
            tensors, notes = unseal(path)
            meta = from_json(notes["anomalyncd"])
            if meta["format"] != FORMAT:
                raise RunError(f"{path}: written by anomalyncd {meta['version']}, which this version cannot read.")
            config = make_config({**meta["config"], "device": device})
            classifier = Classifier.restore(tensors, meta["classifier"]) if meta["classifier"] else None
            binarizer = restore_binarizer(config, meta["binarizer"]) if meta["binarizer"] else None
            own_names = {int(k): str(name) for k, name in meta["names"].items()}
            classes = np.array(meta["classes"], np.int64)
            unknown = UnknownScore.restore(tensors, meta["unknown"]) if meta["unknown"] else None
            product = Product.restore(tensors, meta["product"]) if meta["product"] else None
            false_alarms = FalseAlarms.restore(tensors, meta["false_alarms"]) if meta["false_alarms"] else None
            model = cls(
                config, classifier, binarizer, false_alarms, meta["learns_normal"] is True, own_names, classes, unknown,
                int(np.int32(meta["highest"])), product,
            )  # fmt: skip
            model.try_out()
        except RunError:
            raise
        except Exception as error:  # damage shows in many ways, and all mean the same to the user
            raise RunError(
                f"{path}: damaged, or not a model of anomalyncd ({error}). Call the `discover` that made it again."
            ) from error
        if names:
            model.names |= {k: name for k, name in read_names(folder).items() if k in model.names}
        return model
