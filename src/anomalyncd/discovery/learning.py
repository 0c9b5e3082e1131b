"""Training in a run: which regions are false alarms, how many classes there are, and how they are numbered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..config import Config
from ..learn.classifier import Parts
from ..learn.cluster import by_size, check_enough
from ..learn.distributed import team
from ..learn.fit import RegionSet, fit_classifier, is_banked
from ..regions.records import RegionRecord
from ..run.folder import COUNT, HISTORY, RunFolder
from ..run.log import RunLog
from ..run.store import RegionStore
from ..run.tables import to_csv
from .count import count_classes
from .model import DiscoveryModel, make_encoder
from .torchrun import Lesson, settings_for_helpers


class Training:
    """Gives a model its classes.

    Parameters
    ----------
    folder : of the run; the history of the losses and the estimated number of classes are written there
    config : its settings
    progress : where it is told how far the work is
    model : is changed
    threshold : score from which on a region is a defect rather than a false alarm
    """

    def __init__(
        self, folder: RunFolder, config: Config, progress: RunLog, model: DiscoveryModel, threshold: float
    ) -> None:
        self.folder, self.config, self.progress = folder, config, progress
        self.model, self.threshold = model, threshold

    def __call__(self, novel: RegionStore, base: RegionSet | None) -> Parts:
        """Train from the regions of a run and a base set; returns the features of `novel` as they are after it."""
        self._train(novel, base)
        parts: Parts = novel.parts
        if self.config.learn.train_last_block:
            parts = self._encode_again(novel)
        self._number_by_size(parts, novel)
        return parts

    def _train(self, novel: RegionStore, base: RegionSet | None) -> None:
        scores = np.array([region.score for region in novel.regions], dtype=np.float32)
        order = by_content(novel.regions)
        weak = self._false_alarms(scores)[order]
        learn = self.config.learn
        pinned = weak if learn.normal == "pinned" and weak.any() else None
        self.model.learns_normal |= pinned is not None
        used = order[~weak] if pinned is None else order
        if not len(self.model.classes):
            self._count(novel, used, order[~weak])
        count = self.model.n_region_classes
        check_enough(int((~weak).sum()), count - (pinned is not None))
        vit, together = self.model.vit(self.progress.say), team()
        device = next(vit.parameters()).device
        lesson = Lesson(
            str(self.folder.path.absolute()), settings_for_helpers(self.config, device.type), count,
            0 if self.model.learns_normal else None, used.tolist(), None if pinned is None else pinned.tolist(),
            None if base is None or base.labels is None else base.labels.tolist(),
        )  # fmt: skip
        n_views = len(used) + (0 if base is None else len(base)) if is_banked(learn, device) else 0
        if together.size > 1:
            self.progress.note(f"learning in {together.size} processes")
        with (
            self.progress.task("Views", -(-n_views // together.size)) as on_view,
            self.progress.task("Learning", learn.epochs) as on_epoch,
            together.work_on(lesson.to_json_dict()),
        ):
            self.model.classifier = fit_classifier(
                lesson.regions(novel), base, count, self.config, vit, workspace=self.folder.place(novel.tokens),
                normal=lesson.normal, on_view=lambda _: on_view(),
                on_epoch=lambda row: on_epoch(1, f"loss {row['loss']:.4f}"), team=together,
            )  # fmt: skip
        if learn.epochs:
            self.folder.write_text(HISTORY, to_csv(pd.DataFrame(self.model.classifier.history)))

    def _count(self, novel: RegionStore, used: npt.NDArray[np.int64], strong: npt.NDArray[np.int64]) -> None:
        found = count_classes(novel.parts, used, strong, self.config, self.progress)
        normal = int(self.config.has_normal and not (self.model.learns_normal and len(used) == len(strong)))
        self.model.set_count(max(found.count + normal, 1 + self.config.has_normal))
        self.folder.write_json(COUNT, {**found.to_json_dict(), "normal": normal})

    def _false_alarms(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Decide how false alarms are known in this run; returns (R,) bool, the regions that score too low to be defects.

        With masks every region is a defect. With maps the score tells false alarms, unless the normal class is learned
        without examples, as it is where images without a region are learned too.
        """
        self.model.learns_normal = self.config.has_normal and (
            self.config.crop.no_region == "learned"
            or (self.config.learn.normal == "class" and self.model.binarizer is not None)
        )
        if self.model.binarizer is None or not self.config.has_normal or self.model.learns_normal:
            return np.zeros(len(scores), dtype=bool)
        self.model.gate = self.threshold
        weak: npt.NDArray[np.bool_] = scores < self.model.gate
        count, n_strong = max(self.model.n_region_classes, 1), int((~weak).sum())
        if n_strong < count <= len(scores):
            self.progress.warn(
                f"only {n_strong} regions score clearly higher than the rest, fewer than the {count} classes asked for: "
                "weak regions are not taken for false alarms this time."
            )
            self.model.gate = 0.0
            weak = np.zeros(len(scores), dtype=bool)
        return weak

    def _encode_again(self, novel: RegionStore) -> dict[str, npt.NDArray[np.float16]]:
        """Class tokens of all regions with the trained last block; the other parts did not change."""
        encoder = make_encoder(self.model.vit(self.progress.say), self.config)
        tokens = []
        with self.progress.task("Class tokens", len(novel.regions)) as advance:
            for start in range(0, len(novel.regions), encoder.batch_size):
                pairs = [novel.crop(i) for i in range(start, min(start + encoder.batch_size, len(novel.regions)))]
                crops, masks = (np.stack(pictures) for pictures in zip(*pairs, strict=True))
                tokens.append(encoder.encode_crops(crops, masks)["class_token"])
                advance(len(pairs))
        return {**novel.parts, "class_token": np.concatenate(tokens)}

    def _number_by_size(self, parts: Parts, novel: RegionStore) -> None:
        """The defect class with the most regions becomes class 1, and so on."""
        assert self.model.classifier is not None
        classes = self.model.classes
        defects = np.flatnonzero(classes > 0)
        best = self.model.region_probabilities(parts, novel.regions).argmax(axis=1)[by_content(novel.regions)]
        found = np.searchsorted(defects, best[np.isin(best, defects)])
        rank = by_size(np.concatenate([found, np.arange(len(defects))]), len(defects))[-len(defects) :]
        order = np.argsort(rank)
        offset = self.model.n_region_classes - len(defects)
        self.model.classifier.renumber(np.concatenate([np.arange(offset), order + offset]))


def by_content(regions: Sequence[RegionRecord]) -> npt.NDArray[np.int64]:
    """Positions of the regions in an order that no file name has a say in: names of folders must not change a result."""
    return np.array(sorted(range(len(regions)), key=lambda index: regions[index].digest), dtype=np.int64)
