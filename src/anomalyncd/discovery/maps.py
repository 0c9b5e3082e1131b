"""Maps for images that came without: fit a detector and run it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..binarize.ignore import Shapes, without
from ..data.dataset import Sample
from ..detect import Detector, Picture, build_detector
from ..errors import DataError, RunError
from ..grid import top_mean
from ..progress import Advance, Silent
from ..regions.extract import is_readable
from ..regions.network import share
from ..regions.records import ImageRecord, readable, report_files
from ..run.detector import CHECKSUMS, DETECTOR, is_whole, read_detector, save_detector
from ..run.folder import IMAGES_TABLE, MAPS, METRICS, NORMAL_MAPS, SCORES, SEEN, TRAINING, RunFolder
from ..run.stages import Stages, content_order
from ..run.store import file_stem, map_names
from ..run.tables import read_csv, to_csv

MAP_SCORES = f"{MAPS}/scores.csv"
NORMAL_TABLE = f"{NORMAL_MAPS}/maps.csv"
MOST_HELD_OUT = 100  # normal images, evenly spread, that tell how normal ones score
UNREADABLE = np.full((1, 1), np.nan, np.float32)  # map of such an image: every image has one, and this is never used


def make_maps(
    stages: Stages,
    samples: Sequence[Sample],
    *,
    normal: Sequence[Sample] = (),
    detector: Detector | None = None,
    fitted: Path | None = None,
    protected: bool = False,
) -> tuple[list[Sample], pd.DataFrame]:
    """The stage that ends in maps; what was finished from the same images and settings is read instead.

    Parameters
    ----------
    normal : images of normal products, for a detector that needs them
    detector : one made by the caller, instead of the configured one
    fitted : earlier run whose detector is used as it is
    protected : refuse to replace a finished run

    Returns
    -------
    The samples with their maps, and maps/scores.csv: image, score, height, width, and why a file could not be read.
    """
    folder, progress, names = stages.folder, stages.progress, map_names(samples)
    with_maps = [replace(sample, map=folder.place(name)) for sample, name in zip(samples, names, strict=True)]

    def make() -> pd.DataFrame:
        made = earlier or detector or build_detector(stages.config)
        if earlier is None and (made.needs_normal or normal):
            _warn_of_overlap(samples, normal, progress)
            if stages.seen is not None:
                share(made, stages.seen, stages.config, known=_chosen(len(normal)))
            with stages.timed("fitting"):
                fitted_on = _fit(made, normal, progress, folder.place(TRAINING))
            with stages.timed("normal images"):
                _write_held_out(folder, made, fitted_on, progress, stages.config.ignore)
        if stages.seen is not None:
            share(made, stages.seen, stages.config)
        # A detector that compares the images with each other may take some as references: not those of the first folder.
        order = None if made.needs_normal else content_order(samples)
        table = write_maps(folder, samples, names, made, progress, order, stages.config.ignore)
        folder.write_text(MAP_SCORES, to_csv(table))
        save_detector(made, folder)
        folder.remove(TRAINING)
        return table

    key = stages.maps_key(samples, normal, detector, fitted)
    known, earlier = _stored_scores(folder, with_maps) if folder.is_done("maps", key) else None, None
    if known is None:
        if protected and folder.place(IMAGES_TABLE).exists():
            raise RunError(
                f"{folder.path}: here is a finished run of other images or settings, which these maps would replace. "
                "Choose another folder."
            )
        earlier = None if fitted is None else read_detector(fitted, stages.config)  # before anything is taken away
        folder.drop_results()  # maps that are written anew are others to all that follows
    outputs = (MAPS, NORMAL_MAPS, DETECTOR, CHECKSUMS, SCORES, METRICS, TRAINING, SEEN)
    return with_maps, stages.once("maps", key, lambda: known, make, *outputs)


def write_maps(
    folder: RunFolder,
    samples: Sequence[Sample],
    names: Sequence[str],
    detector: Detector,
    progress: Silent,
    order: Sequence[int] | None = None,
    ignore: Shapes = (),
) -> pd.DataFrame:
    """Write one map for each image, under the names; returns its score, the image's size, or why it could not be read.

    order : places in which the detector sees the images, one after the other by default
    ignore : parts in which nothing is looked for; then the score is `top_mean` of the rest
    """
    records = [ImageRecord(index, sample.id, score=np.nan) for index, sample in enumerate(samples)]
    order = range(len(samples)) if order is None else order
    in_order = [records[index] for index in order]
    read: list[ImageRecord] = []
    n_maps = 0

    def pictures(advance: Advance) -> Iterator[Picture]:
        for place, image in readable([samples[index] for index in order], in_order, advance):
            in_order[place].height, in_order[place].width = image.shape[:2]
            read.append(in_order[place])
            yield image
        if not read:
            report_files(records, progress)  # raises, and says more than a detector without images would

    with progress.task("Anomaly maps", len(samples)) as advance:
        for anomaly_map, score in detector.detect(pictures(advance)):
            if n_maps < len(read):
                record = read[n_maps]
                seen = without(anomaly_map, ignore)
                record.score = top_mean(seen) if ignore else float(score)
                folder.write(names[record.index], _npy(seen))
            n_maps += 1
    if n_maps != len(read):
        raise DataError(
            f"the detector {detector.name!r} must give one map for each of {len(read)} images, not {n_maps}."
        )
    for record in records:
        if record.error:
            folder.write(names[record.index], _npy(UNREADABLE))
    columns = ["image", "score", "height", "width", "message"]
    return pd.DataFrame([(r.id, r.score, r.height, r.width, r.error) for r in records], columns=columns)


def normal_samples(folder: RunFolder, normal: Sequence[Sample]) -> list[Sample]:
    """Those of the normal images whose maps the detector made as if it had not seen them, with these maps."""
    if not folder.place(NORMAL_TABLE).is_file():
        return []
    table = read_csv(folder.place(NORMAL_TABLE))
    place_of = dict(zip(table["image"], table["map"], strict=True))
    return [replace(sample, map=folder.place(place_of[sample.id])) for sample in normal if sample.id in place_of]


def _write_held_out(
    folder: RunFolder, detector: Detector, fitted: Sequence[Sample], progress: Silent, ignore: Shapes
) -> None:
    """Maps of some of the images that a detector was fitted on, where it can tell what it would say of them unseen."""
    places = _chosen(len(fitted))
    chosen = [fitted[place] for place in places]
    with progress.task("Scores of normal images", len(chosen)) as advance:
        records = [ImageRecord(index, sample.id) for index, sample in enumerate(chosen)]
        found = detector.held_out((image for _, image in readable(chosen, records, advance)), places)
        if found is None:
            return
        rows = []
        for index, (sample, detection) in enumerate(zip(chosen, found, strict=True)):
            if detection is not None:
                rows.append((sample.id, f"{NORMAL_MAPS}/{file_stem(index, sample.id)}.npy"))
                folder.write(rows[-1][1], _npy(without(detection.map, ignore)))
    table = pd.DataFrame(rows, columns=["image", "map"])
    folder.write_text(NORMAL_TABLE, to_csv(table))


def _chosen(count: int) -> list[int]:
    """Places of the normal images that tell how normal ones score."""
    return sorted(set(np.linspace(0, count - 1, min(MOST_HELD_OUT, count)).round().astype(int).tolist()))


def _fit(detector: Detector, normal: Sequence[Sample], progress: Silent, workspace: Path) -> list[Sample]:
    """Fit, and return the images that could be read; workspace : where a killed call may have left what it learned."""
    if not detector.needs_normal:
        if normal:
            progress.warn(f"the detector {detector.name!r} needs no normal images: those of --normal are not used.")
        return []
    if not normal and detector.is_ready:
        return []
    if not normal:
        raise DataError(f"the detector {detector.name!r} needs images of normal products: give them with --normal.")
    records = [ImageRecord(index, sample.id) for index, sample in enumerate(normal)]
    with progress.task("Normal images", len(normal)) as advance:
        try:
            detector.progress, detector.workspace = progress, workspace
            detector.fit(image for _, image in readable(normal, records, advance))
        except DataError:
            report_files(records, progress)  # raises where none could be read, and says why
            raise
        finally:
            detector.progress, detector.workspace = Silent(), None
    report_files(records, progress)
    return [sample for sample, record in zip(normal, records, strict=True) if not record.error]


def _warn_of_overlap(samples: Sequence[Sample], normal: Sequence[Sample], progress: Silent) -> None:
    """Defects among the normal images would be learned as normal; some images in both sets are a user's choice."""
    known = {sample.image.absolute() for sample in normal if isinstance(sample.image, Path)}
    if known and all(isinstance(sample.image, Path) and sample.image.absolute() in known for sample in samples):
        progress.warn(
            "all images to look at are among the normal images (--normal), so that what is wrong with them is learned "
            "as normal."
        )


def _stored_scores(folder: RunFolder, samples: Sequence[Sample]) -> pd.DataFrame | None:
    """What an earlier call wrote; None where the detector or a map is gone, or a file can be read that could not be then."""
    try:
        table = read_csv(folder.place(MAP_SCORES)).fillna({"message": ""})
        failed = {name for name, why in zip(table["image"], table["message"], strict=True) if why}
    except (RunError, KeyError):
        return None
    for sample in samples:
        gone = not (isinstance(sample.map, Path) and sample.map.exists())
        if gone or (sample.id in failed and is_readable(replace(sample, map=None))):
            return None
    return table if is_whole(folder) else None


def _npy(values: npt.NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values.astype(np.float32, copy=False), allow_pickle=False)
    return buffer.getvalue()
