"""Classes of regions: which regions are false alarms, how many classes there are, how they are learned and numbered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import large
from ..assign.count import CountEstimate, estimate_count
from ..assign.false_alarms import add_looks
from ..assign.normal_kind import normal_kind
from ..config import Config
from ..errors import SettingsError
from ..known.seeded import Marked, count_with_known, robust_clusters
from ..learn.classifier import Classifier, FeatureParts
from ..learn.cluster import by_size, centres, check_enough, stable_temperature, ward_kmeans
from ..learn.distributed import process_group
from ..learn.fit import RegionSet, fit_classifier, is_banked
from ..learn.rows import fit_space, vectors
from ..progress import Silent
from ..regions.find import by_content, first_regions, strengths
from ..regions.network import make_encoder
from ..run.store import RegionStore
from .model import DiscoveryModel
from .torchrun import Lesson, settings_for_helpers

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]
LEARNED_RATE = 0.02  # of false alarms: what is learned from does not depend on where a user moves the line later


def learn_classes(
    model: DiscoveryModel,
    novel: RegionStore,
    base: RegionSet | None,
    normal: tuple[Floats, Floats] | None,
    progress: Silent,
    known: Marked | None = None,
) -> tuple[FeatureParts, dict[str, Any] | None]:
    """Give a model its classes, from the regions of a run and a base set.

    Parameters
    ----------
    model : is changed
    novel : at least one region
    normal : scores (N,) and looks (N, L, C) of normal images, or None
    known : labels that were given, see `learn_known`

    Returns
    -------
    The features of `novel` as they are after training, and how the number of classes was estimated where it was not given:
    the content of count.json, `normal` being 1 where the normal class comes on top.
    """
    config = model.config
    model.learns_normal = config.has_normal and (
        config.crop.no_region == "learned" or (config.learn.normal == "class" and model.binarizer is not None)
    )
    _add_looks(model, novel, normal)
    used = _witnesses(model, novel, progress)
    if known is not None and (known.names or known.normal.any()):
        return novel.parts, _learn_known(model, novel, used, known, progress)
    found = None if len(model.classes) else count_classes(novel.parts, used, config, progress)
    unclear = _is_unclear(model)
    if unclear:  # is one of the kinds no defect?
        n_kinds = min(len(model.classes) if found is None else found.count, len(used))
        kinds = ward_kmeans(_features(novel.parts, used, config), n_kinds, config.random_state)
        model.learns_normal = _normal_kind(novel, used, kinds) is not None
    count = None
    if found is not None:
        comes_on_top = int(config.has_normal and not model.learns_normal)
        model.set_count(max(found.count + comes_on_top, 1 + config.has_normal))
        count = {**found.to_json_dict(), "normal": comes_on_top}
    check_enough(len(used), model.n_region_classes)
    _train(model, novel, base, used, progress, normal=0 if model.learns_normal and not unclear else None)
    if unclear and model.learns_normal:
        _put_normal_first(model, novel, used)
    features = _encode_again(model, novel, progress) if config.learn.train_last_block else novel.parts
    _number_by_size(model, features, novel)
    return features, count


def _learn_known(
    model: DiscoveryModel, novel: RegionStore, used: Rows, known: Marked, progress: Silent
) -> dict[str, Any] | None:
    """Classes around what is known: the known kinds are classes 1 … in the order of their names, behind them the new ones.

    Regions that are known to be normal are no witnesses of defects; where nothing else tells normal from defective, they
    make the normal class that the others are compared with.
    """
    config, learn = model.config, model.config.learn
    if learn.epochs or learn.train_last_block or model.learns_normal:
        raise SettingsError(
            "known kinds (--known) go with classes that are clusters of frozen features: leave learn.epochs, learn.normal, "
            "crop.no_region and the preset as they are by default."
        )
    model.learns_normal = _is_unclear(model) and bool(known.normal.any())
    kinds = known.kinds + model.learns_normal * (known.kinds >= 0)
    kinds[known.normal] = 0 if model.learns_normal else -1
    order = by_content(novel.regions)
    used = order[(np.isin(order, used) & ~known.normal[order]) | (kinds[order] >= 0)]
    own = {name: novel.parts[name][used] for name in config.features.weights()}
    space = fit_space(config.features.weights(), own, center=config.features.center)
    features, count = vectors(space, own), None
    if not len(model.classes):
        found = count_classes(novel.parts, used, config, progress)
        total = count_with_known(features, kinds[used], found.count, config.random_state)
        model.set_count(max(total + (config.has_normal and not model.learns_normal), 1 + config.has_normal))
        low, high = min(found.low, total), max(found.high, total)
        count = {**found.to_json_dict(), "count": total, "low": low, "high": high, "known": len(known.names)}
        count["normal"] = int(config.has_normal and not model.learns_normal)
    n_classes = model.n_region_classes
    if n_classes < len(known.names) + model.learns_normal:
        raise SettingsError(
            f"--classes counts all kinds, normal and known ones too: at least {len(known.names) + config.has_normal} for "
            f"{', '.join(known.names)}, but got {len(model.classes)}."
        )
    check_enough(len(used), n_classes)
    labels, doubtful = robust_clusters(features, kinds[used], n_classes, config.random_state)
    weight = centres(features, labels, n_classes)
    weight[~weight.any(axis=1)] = -features[:1][0]  # alike regions make fewer clusters than asked for
    weight /= np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12)
    model.classifier = Classifier(space, weight, 0, stable_temperature(features, weight, config.random_state))
    model.names |= dict(enumerate(known.names, start=1))
    known.suspects.update({int(row): int(seems) for row, seems in zip(used, doubtful, strict=True) if seems >= 0})
    return count


def _add_looks(model: DiscoveryModel, novel: RegionStore, normal: tuple[Floats, Floats] | None) -> None:
    """Let looks have a say near the line between normal and defect."""
    if model.false_alarms is None or normal is None:
        return
    first = first_regions(novel.regions)
    looks = novel.parts["image"][list(first.values())].astype(np.float32).mean(axis=1)
    scores = np.array([novel.images[index].score for index in first])
    model.false_alarms = add_looks(model.false_alarms, scores, looks, *normal)


def _witnesses(model: DiscoveryModel, novel: RegionStore, progress: Silent) -> Rows:
    """The regions to learn from, in an order that no file name has a say in.

    Of each image that has a defect the strongest one, by √area times score: a defect that covers the product breaks into
    regions that differ between images, and weaker ones may be false alarms. With masks, and where the normal class is
    learned like the others, all of them.
    """
    order = by_content(novel.regions)
    if model.binarizer is None or model.learns_normal:
        return order
    index = np.array([region.index for region in novel.regions])
    strength = strengths(novel.regions)
    strongest = order[np.argsort(-strength[order], kind="stable")]
    _, first = np.unique(index[strongest], return_index=True)
    chosen = np.zeros(len(order), bool)
    chosen[strongest[first]] = True
    of_image = model.false_alarm_probability(novel.parts, novel.regions, novel.images, rate=LEARNED_RATE)
    clear = chosen & (of_image <= LEARNED_RATE)
    wanted = max(model.n_region_classes, 1)
    if clear.sum() < wanted <= chosen.sum():
        progress.warn(
            f"only {int(clear.sum())} images score clearly higher than normal ones, fewer than the {wanted} kinds of defect "
            "asked for: classes are learned from all images with a region this time."
        )
        clear = chosen
    return order[clear[order]]


def _is_unclear(model: DiscoveryModel) -> bool:
    """Whether there are maps, and neither normal images nor the scores of all images tell normal from defective."""
    config = model.config
    calibrated = config.has_normal and config.learn.normal == "calibrated" and model.binarizer is not None
    return calibrated and model.false_alarms is None and not model.learns_normal


def _normal_kind(novel: RegionStore, used: Rows, kinds: npt.NDArray[np.int64]) -> int | None:
    """See `normal_kind`; kinds : (U,) of the used regions."""
    scores = np.array([novel.images[novel.regions[row].index].score for row in used])
    quiet = [record.score for record in novel.images if not record.error and not record.n_regions]
    return normal_kind(kinds, scores, np.array(quiet))


def _put_normal_first(model: DiscoveryModel, novel: RegionStore, used: Rows) -> None:
    """Make the kind that scores like images without a region the normal class."""
    assert model.classifier is not None
    own = {name: values[used] for name, values in novel.parts.items()}
    kinds = model.classifier.cosines(own)[:, model.classifier.n_base :].argmax(axis=1)
    normal = _normal_kind(novel, used, kinds)
    if normal is None:  # training has moved it: the weakest one is still it
        scores = np.array([novel.regions[row].score for row in used])
        normal = min(np.unique(kinds).tolist(), key=lambda kind: scores[kinds == kind].mean())
    order = np.arange(model.n_region_classes)
    order[[0, normal]] = [normal, 0]
    model.classifier.renumber(order)


def _features(parts: FeatureParts, used: Rows, config: Config) -> large.Rows:
    """Unit vectors (U, D) of the used regions, in the space of frozen features that is fitted to them."""
    weights = config.features.weights()
    own = {name: parts[name][used] for name in weights}
    return vectors(fit_space(weights, own, center=config.features.center), own)


def count_classes(parts: FeatureParts, used: Rows, config: Config, progress: Silent) -> CountEstimate:
    """Estimate the number of classes from the regions that are learned from, on the frozen features of all regions."""
    with progress.task("Number of classes", 1) as advance:
        found = estimate_count(_features(parts, used, config), config.most_classes, seed=config.random_state)
        advance()
    return found


def _train(
    model: DiscoveryModel,
    novel: RegionStore,
    base: RegionSet | None,
    used: Rows,
    progress: Silent,
    normal: int | None,
) -> None:
    """Train on the `used` regions, `normal` being the place of the normal class; every process learns the same lesson."""
    config, vit, together = model.config, model.vit(progress.say), process_group()
    device = next(vit.parameters()).device
    lesson = Lesson(
        str(novel.run.path.absolute()), settings_for_helpers(config, device.type), model.n_region_classes,
        normal, used.tolist(),
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


def _number_by_size(model: DiscoveryModel, features: FeatureParts, novel: RegionStore) -> None:
    """The defect class with the most regions becomes class 1, and so on."""
    assert model.classifier is not None
    defects = np.flatnonzero(model.classes > 0)
    probabilities = model.region_probabilities(features, novel.regions, novel.images, rate=LEARNED_RATE)
    best = probabilities.argmax(axis=1)[by_content(novel.regions)]
    found = np.searchsorted(defects, best[np.isin(best, defects)])
    rank = by_size(np.concatenate([found, np.arange(len(defects))]), len(defects))[-len(defects) :]
    order = np.argsort(rank)
    offset = model.n_region_classes - len(defects)
    model.classifier.renumber(np.concatenate([np.arange(offset), order + offset]))
