"""Classes of regions: which regions are false alarms, how many classes there are, how they are learned and numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..assign.count import CountEstimate, estimate_count, n_steps
from ..config import Config
from ..learn.classifier import FeatureParts
from ..learn.cluster import by_size, check_enough
from ..learn.distributed import process_group
from ..learn.features import CROP_PARTS, FeatureSpace
from ..learn.fit import RegionSet, fit_classifier, is_banked
from ..progress import Silent
from ..regions.find import Region
from ..run.store import RegionStore
from .model import DiscoveryModel, make_encoder
from .torchrun import Lesson, settings_for_helpers

Rows = npt.NDArray[np.int64]


def learn_classes(
    model: DiscoveryModel, novel: RegionStore, base: RegionSet | None, threshold: float, progress: Silent
) -> tuple[FeatureParts, dict[str, Any] | None]:
    """Give a model its classes, from the regions of a run and a base set.

    Parameters
    ----------
    model : is changed
    novel : at least one region
    threshold : score from which on a region is a defect rather than a false alarm

    Returns
    -------
    The features of `novel` as they are after training, and how the number of classes was estimated where it was not given:
    the content of count.json, `normal` being 1 where the normal class comes on top.
    """
    weak = _false_alarms(model, novel.regions, threshold, progress)
    order = by_content(novel.regions)
    weak = weak[order]
    examples = weak if model.config.learn.normal == "pinned" and weak.any() else None
    model.learns_normal |= examples is not None
    used = order if examples is not None else order[~weak]
    count = None
    if not len(model.classes):
        found = count_classes(novel.parts, used, order[~weak], model.config, progress)
        normal = int(model.config.has_normal and not (model.learns_normal and not weak.any()))
        model.set_count(max(found.count + normal, 1 + model.config.has_normal))
        count = {**found.to_json_dict(), "normal": normal}
    check_enough(int((~weak).sum()), model.n_region_classes - (examples is not None))
    _train(model, novel, base, used, examples, progress)
    features = _encode_again(model, novel, progress) if model.config.learn.train_last_block else novel.parts
    _number_by_size(model, features, novel.regions)
    return features, count


def count_classes(parts: FeatureParts, used: Rows, strong: Rows, config: Config, progress: Silent) -> CountEstimate:
    """Estimate the number of classes from the regions that may be defects, on frozen features.

    Parameters
    ----------
    parts : name → (R, V, C) features of all regions
    used : regions that are learned from, by which features are centred; strong : those that may be defects
    """
    weights = config.features.weights()
    space = FeatureSpace(weights).fit({name: parts[name][used] for name in weights}, center=config.features.center)
    own = {name: parts[name][strong] for name in weights}
    near = {name: weight for name, weight in weights.items() if name in CROP_PARTS}
    far = {name: weight for name, weight in weights.items() if name not in CROP_PARTS}
    kinds = [FeatureSpace(some, space.means).transform(own) for some in (near, far) if some]
    with progress.task("Number of classes", n_steps(len(kinds))) as advance:
        return estimate_count(
            space.transform(own), config.most_classes, kinds=kinds, seed=config.random_state, on_step=advance
        )


def by_content(regions: Sequence[Region]) -> Rows:
    """Positions of the regions in an order that no file name has a say in: names of folders must not change a result."""
    return np.array(sorted(range(len(regions)), key=lambda index: regions[index].digest), dtype=np.int64)


def _false_alarms(
    model: DiscoveryModel, regions: Sequence[Region], threshold: float, progress: Silent
) -> npt.NDArray[np.bool_]:
    """Decide how false alarms are known in this run; returns (R,) bool, the regions that score too low to be defects.

    With masks every region is a defect. With maps the score tells false alarms, unless the normal class is learned
    without examples, as it is where images without a region are learned too.
    """
    config, scores = model.config, np.array([region.score for region in regions], dtype=np.float32)
    model.learns_normal = config.has_normal and (
        config.crop.no_region == "learned" or (config.learn.normal == "class" and model.binarizer is not None)
    )
    if model.binarizer is None or not config.has_normal or model.learns_normal:
        return np.zeros(len(scores), dtype=bool)
    model.least_score = threshold
    weak: npt.NDArray[np.bool_] = scores < threshold
    count, n_strong = max(model.n_region_classes, 1), int((~weak).sum())
    if n_strong < count <= len(scores):
        progress.warn(
            f"only {n_strong} regions score clearly higher than the rest, fewer than the {count} classes asked for: "
            "weak regions are not taken for false alarms this time."
        )
        model.least_score = 0.0
        weak = np.zeros(len(scores), dtype=bool)
    return weak


def _train(
    model: DiscoveryModel,
    novel: RegionStore,
    base: RegionSet | None,
    used: Rows,
    examples: npt.NDArray[np.bool_] | None,
    progress: Silent,
) -> None:
    """Train on the `used` regions, of which `examples` (bool) are normal for sure; every process learns the same lesson."""
    config, vit, together = model.config, model.vit(progress.say), process_group()
    device = next(vit.parameters()).device
    lesson = Lesson(
        str(novel.run.path.absolute()), settings_for_helpers(config, device.type), model.n_region_classes,
        0 if model.learns_normal else None, used.tolist(), None if examples is None else examples.tolist(),
        None if base is None or base.labels is None else base.labels.tolist(),
    )  # fmt: skip
    n_views = len(used) + (0 if base is None else len(base)) if is_banked(config.learn, device) else 0
    if together.size > 1:
        progress.note(f"learning in {together.size} processes")
    with (
        progress.task("Views", -(-n_views // together.size)) as on_view,
        progress.task("Learning", config.learn.epochs) as on_epoch,
        together.work_on(lesson.to_json_dict()),
    ):
        model.classifier = fit_classifier(
            lesson.regions(novel), base, lesson.n_classes, config, vit, workspace=novel.run.place(novel.tokens),
            normal=lesson.normal, on_view=lambda _: on_view(),
            on_epoch=lambda row: on_epoch(1, f"loss {row['loss']:.4f}"), group=together,
        )  # fmt: skip


def _encode_again(model: DiscoveryModel, novel: RegionStore, progress: Silent) -> dict[str, npt.NDArray[np.float16]]:
    """Class tokens of all regions with the trained last block; the other parts did not change."""
    encoder = make_encoder(model.vit(progress.say), model.config)
    tokens = []
    with progress.task("Class tokens", len(novel.regions)) as advance:
        for start in range(0, len(novel.regions), encoder.batch_size):
            pairs = [novel.crop(i) for i in range(start, min(start + encoder.batch_size, len(novel.regions)))]
            crops, masks = (np.stack(pictures) for pictures in zip(*pairs, strict=True))
            tokens.append(encoder.encode_crops(crops, masks)["class_token"])
            advance(len(pairs))
    return {**novel.parts, "class_token": np.concatenate(tokens)}


def _number_by_size(model: DiscoveryModel, features: FeatureParts, regions: Sequence[Region]) -> None:
    """The defect class with the most regions becomes class 1, and so on."""
    assert model.classifier is not None
    defects = np.flatnonzero(model.classes > 0)
    best = model.region_probabilities(features, regions).argmax(axis=1)[by_content(regions)]
    found = np.searchsorted(defects, best[np.isin(best, defects)])
    rank = by_size(np.concatenate([found, np.arange(len(defects))]), len(defects))[-len(defects) :]
    order = np.argsort(rank)
    offset = model.n_region_classes - len(defects)
    model.classifier.renumber(np.concatenate([np.arange(offset), order + offset]))
