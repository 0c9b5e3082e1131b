"""Maps for images that came without: fit a detector and run it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data.dataset import Sample
from ..data.images import read_image
from ..data.layouts import stem_of
from ..detect import Detector, Picture, build_detector
from ..errors import BadFileError, DataError, RunError
from ..progress import Advance, Silent
from ..regions.extract import is_readable
from ..regions.records import ImageRecord, report_files
from ..run.detector import CHECKSUMS, DETECTOR, is_whole, read_detector, save_detector
from ..run.folder import IMAGES_TABLE, MAPS, METRICS, PARTIAL, SCORES, RunFolder
from ..run.stages import Stages, content_order
from ..run.store import file_stem
from ..run.tables import read_csv, to_csv

MAP_SCORES = f"{MAPS}/scores.csv"
UNREADABLE = np.full((1, 1), np.nan, np.float32)  # map of such an image: every image has one, and this is never used
MAX_NAME = 200  # bytes; file systems take 255, and a file that is being written has a longer name


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
            with stages.timed("fitting"):
                _fit(made, normal, progress)
        # A detector that compares the images with each other may take some as references: not those of the first folder.
        order = None if made.needs_normal else content_order(samples)
        table = write_maps(folder, samples, names, made, progress, order)
        folder.write_text(MAP_SCORES, to_csv(table))
        save_detector(made, folder)
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
    outputs = (MAPS, DETECTOR, CHECKSUMS, SCORES, METRICS)
    return with_maps, stages.once("maps", key, lambda: known, make, *outputs)


def write_maps(
    folder: RunFolder,
    samples: Sequence[Sample],
    names: Sequence[str],
    detector: Detector,
    progress: Silent,
    order: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Write one map for each image, under the names; returns its score, the image's size, or why it could not be read.

    order : places in which the detector sees the images, one after the other by default
    """
    records = [ImageRecord(index, sample.id, score=np.nan) for index, sample in enumerate(samples)]
    order = range(len(samples)) if order is None else order
    in_order = [records[index] for index in order]
    read: list[ImageRecord] = []
    n_maps = 0

    def pictures(advance: Advance) -> Iterator[Picture]:
        for place, image in _readable([samples[index] for index in order], in_order, advance):
            in_order[place].height, in_order[place].width = image.shape[:2]
            read.append(in_order[place])
            yield image
        if not read:
            report_files(records, progress)  # raises, and says more than a detector without images would

    with progress.task("Anomaly maps", len(samples)) as advance:
        for anomaly_map, score in detector.detect(pictures(advance)):
            if n_maps < len(read):
                record = read[n_maps]
                record.score = float(score)
                folder.write(names[record.index], _npy(anomaly_map))
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


def map_names(samples: Sequence[Sample]) -> list[str]:
    """Where the maps lie inside the run folder: as the images do, where their names allow it.

    Images with the same name, or names that lead out of the folder, give numbered maps.

    Examples
    --------
    >>> map_names([Sample("crack/000.png", Path("crack/000.png")), Sample("good/000.png", Path("good/000.png"))])
    ['maps/crack/000.npy', 'maps/good/000.npy']
    """
    if are_mirrored(samples):
        return [f"{MAPS}/{stem_of(sample.id)}.npy" for sample in samples]
    return numbered_maps(samples)


def numbered_maps(samples: Sequence[Sample], first: int = 0) -> list[str]:
    """Names of maps that no other image of a run has; first : number of the first image."""
    return [f"{MAPS}/{file_stem(index, sample.id)}.npy" for index, sample in enumerate(samples, start=first)]


def are_mirrored(samples: Sequence[Sample]) -> bool:
    """Whether maps can be called as their images."""
    stems = [PurePosixPath(stem_of(sample.id)) for sample in samples]
    return len(set(stems)) == len(stems) and all(_is_plain(part) for stem in stems for part in stem.parts)


def _is_plain(part: str) -> bool:
    odd = part == ".." or part.startswith("/") or part.endswith((":", PARTIAL))
    return not odd and len(part.encode("utf-8", "replace")) <= MAX_NAME


def _fit(detector: Detector, normal: Sequence[Sample], progress: Silent) -> None:
    if not detector.needs_normal:
        if normal:
            progress.warn(f"the detector {detector.name!r} needs no normal images: those of --normal are not used.")
        return
    if not normal and detector.is_ready:
        return
    if not normal:
        raise DataError(f"the detector {detector.name!r} needs images of normal products: give them with --normal.")
    records = [ImageRecord(index, sample.id) for index, sample in enumerate(normal)]
    with progress.task("Normal images", len(normal)) as advance:
        try:
            detector.fit(image for _, image in _readable(normal, records, advance))
        except DataError:
            report_files(records, progress)  # raises where none could be read, and says why
            raise
    report_files(records, progress)


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


def _readable(
    samples: Iterable[Sample], records: Sequence[ImageRecord], advance: Advance
) -> Iterator[tuple[int, Picture]]:
    """Images that can be read, with their places; the records of the others say why they cannot."""
    for index, sample in enumerate(samples):
        advance()
        try:
            yield index, read_image(sample.image)
        except BadFileError as error:
            records[index].error = str(error)
