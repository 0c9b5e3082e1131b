"""Maps for images that came without: fit a detector, run it, and keep both in the run folder."""

from __future__ import annotations

import io
import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import __version__
from ..checksums import sha256, stable_hash
from ..config import Config, make_config, read_config
from ..data.dataset import Sample
from ..data.images import read_image
from ..data.layouts import stem_of
from ..detect import Detector, Picture, build_detector, load_detector
from ..detect.tokens import TokenDetector
from ..errors import BadFileError, DataError, RunError
from ..model.backbone import resolve_name
from ..progress import Advance, Silent
from ..regions.extract import is_readable
from ..regions.records import ImageRecord, report_files
from ..run.folder import FORMAT, IMAGES_TABLE, PARTIAL, RunFolder
from ..run.store import content_order, file_identity, file_stem, fingerprint
from ..run.tables import read_csv, to_csv

DETECTOR = "detector"  # folder of the fitted detector inside a run
CHECKSUMS = "detector.json"  # of its files
MAPS = "maps"
MAP_SCORES = f"{MAPS}/scores.csv"
SCORES, METRICS = "scores.csv", "metrics.json"  # of `anomalyncd detect`: with labels, and against them
UNREADABLE = np.full((1, 1), np.nan, np.float32)  # map of such an image: every image has one, and this is never used
MAX_NAME = 200  # bytes; file systems take 255, and a file that is being written has a longer name


def pinned(config: Config) -> Config:
    """What another machine or working folder would read differently, made definite before it is stored."""
    weights = None if config.model.weights is None else config.model.weights.absolute()
    model = config.model.model_copy(update={"backbone": resolve_name(config.model.backbone), "weights": weights})
    return config.model_copy(update={"model": model})


def stored_config(run: Path) -> Config:
    """Settings of an earlier run that keeps a fitted detector."""
    RunFolder(run).recover()
    if not (run / DETECTOR).is_dir():
        raise RunError(
            f"{run}: expected a folder of `anomalyncd detect`, or a run whose maps a detector made, but it has no "
            f"{DETECTOR}/."
        )
    config = make_config(read_config(run / "config.yaml"))
    if not config.detect.name:
        raise RunError(f"{run / 'config.yaml'}: expected the name of the detector as detect.name, but there is none.")
    return config


def detect_again(run: Path, config: Config) -> Detector:
    """The detector of a finished run, for new images."""
    if not _is_whole(RunFolder(run)):
        raise RunError(
            f"{run / DETECTOR}: the stored detector is damaged, its checksums do not fit. Call the command that "
            "made it again."
        )
    detector = load_detector(config.detect.name or "", run / DETECTOR, device=config.device)
    if isinstance(detector, TokenDetector):
        detector.precision = config.precision
    return detector


def make_maps(
    folder: RunFolder,
    items: Sequence[Sample],
    config: Config,
    progress: Silent,
    *,
    normal: Sequence[Sample] = (),
    detector: Detector | None = None,
    fitted: Path | None = None,
    protected: bool = False,
    timed: Callable[[str, Callable[[], None]], None] = lambda _, work: work(),
) -> tuple[list[Sample], pd.DataFrame]:
    """The stage that ends in maps; what was finished from the same images and settings is read instead.

    Parameters
    ----------
    config : `pinned`, with the detector's name
    normal : images of normal products, for a detector that needs them
    detector : one made by the caller, instead of the configured one
    fitted : earlier run whose detector is used as it is
    protected : refuse to replace a finished run
    timed : called with the name of a step and the step itself, which it must call: fitting may take longer than the maps

    Returns
    -------
    The items with their maps, and maps/scores.csv: image, score, height, width, and why a file could not be read.
    """
    weights, own = config.model.weights, config.detect.settings.get("weights")
    key = stable_hash(
        FORMAT, __version__, config.detect.model_dump(), config.model.backbone, config.random_state, config.precision,
        None if weights is None else file_identity(weights), fingerprint(items), fingerprint(normal),
        [] if fitted is None else [file_identity(fitted / name) for name in RunFolder(fitted).files(DETECTOR)],
        *([file_identity(Path(own))] if isinstance(own, str) else []), *([] if detector is None else _state(detector)),
    )  # fmt: skip
    with_maps = [replace(item, map=folder.place(name)) for item, name in zip(items, map_names(items), strict=True)]
    if folder.is_done("maps", key) and _is_whole(folder) and (known := _stored_scores(folder, with_maps)) is not None:
        return with_maps, known
    if protected and folder.place(IMAGES_TABLE).exists():
        raise RunError(
            f"{folder.path}: here is a finished run of other images or settings, which these maps would replace. Choose "
            "another folder."
        )
    earlier = None if fitted is None else detect_again(fitted, config)  # before anything is taken away
    folder.start("maps", key, MAPS, DETECTOR, CHECKSUMS, SCORES, METRICS)
    if earlier is not None:
        detector = earlier
    else:
        new = detector = detector or build_detector(config)
        if new.needs_normal or normal:
            _warn_of_overlap(items, normal, progress)
            timed("fitting", lambda: _fit(new, normal, progress))
    table = write_maps(folder, items, detector, progress)
    folder.write_text(MAP_SCORES, to_csv(table))
    _save(detector, folder)
    folder.finish("maps", key)
    return with_maps, table


def write_maps(folder: RunFolder, items: Sequence[Sample], detector: Detector, progress: Silent) -> pd.DataFrame:
    """Write one map for each image; returns its score, the image's size, or why it could not be read."""
    names = map_names(items)
    records = [ImageRecord(index, item.id, score=np.nan) for index, item in enumerate(items)]
    # A detector that compares the images with each other may take some as references: not those of the first folder.
    order = range(len(items)) if detector.needs_normal else content_order(items)
    in_order = [records[index] for index in order]
    read: list[ImageRecord] = []
    n_maps = 0

    def pictures(advance: Advance) -> Iterator[Picture]:
        for place, image in _readable([items[index] for index in order], in_order, advance):
            in_order[place].height, in_order[place].width = image.shape[:2]
            read.append(in_order[place])
            yield image
        if not read:
            report_files(records, progress)  # raises, and says more than a detector without images would

    with progress.task("Anomaly maps", len(items)) as advance:
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


def detected(items: Sequence[Sample], detector: Detector) -> list[Sample]:
    """A few items with images and maps in memory; one that cannot be read stays as it is."""
    pictures = dict(_readable(items))
    maps = dict(zip(pictures, detector.maps(pictures.values()), strict=True))
    return [
        replace(item, image=pictures[index], map=maps[index]) if index in pictures else item
        for index, item in enumerate(items)
    ]


def map_names(items: Sequence[Sample]) -> list[str]:
    """Where the maps lie inside the run folder: as the images do, where their names allow it.

    Images with the same name, or names that lead out of the folder, give numbered maps.

    Examples
    --------
    >>> map_names([Sample("crack/000.png", Path("crack/000.png")), Sample("good/000.png", Path("good/000.png"))])
    ['maps/crack/000.npy', 'maps/good/000.npy']
    """
    if are_mirrored(items):
        return [f"{MAPS}/{stem_of(item.id)}.npy" for item in items]
    return [f"{MAPS}/{file_stem(index, item.id)}.npy" for index, item in enumerate(items)]


def are_mirrored(items: Sequence[Sample]) -> bool:
    """Whether maps can be called as their images."""
    stems = [PurePosixPath(stem_of(item.id)) for item in items]
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
    records = [ImageRecord(index, item.id) for index, item in enumerate(normal)]
    with progress.task("Normal images", len(normal)) as advance:
        try:
            detector.fit(image for _, image in _readable(normal, records, advance))
        except DataError:
            report_files(records, progress)  # raises where none could be read, and says why
            raise
    report_files(records, progress)


def _warn_of_overlap(items: Sequence[Sample], normal: Sequence[Sample], progress: Silent) -> None:
    """Defects among the normal images would be learned as normal; some images in both sets are a user's choice."""
    known = {item.image.absolute() for item in normal if isinstance(item.image, Path)}
    if known and all(isinstance(item.image, Path) and item.image.absolute() in known for item in items):
        progress.warn(
            "all images to look at are among the normal images (--normal), so that what is wrong with them is learned "
            "as normal."
        )


def _save(detector: Detector, folder: RunFolder) -> None:
    """Into an empty folder, whatever a killed call may have left."""
    partial = folder.place(DETECTOR + PARTIAL)
    detector.save(partial)
    folder.remove(DETECTOR)
    partial.rename(folder.place(DETECTOR))
    folder.write_json(CHECKSUMS, _checksums(folder))


def _state(detector: Detector) -> Sequence[object]:
    """Identity of a detector that the caller has made: what it would store."""
    with tempfile.TemporaryDirectory(prefix="anomalyncd-") as place:
        try:
            detector.save(Path(place) / DETECTOR)
            return sorted(_checksums(RunFolder(Path(place))).items())
        except Exception:  # a user's own code may raise anything; then nothing is known to be the same
            return [uuid.uuid4().hex]


def _is_whole(folder: RunFolder) -> bool:
    """Whether the stored detector is there as it was written."""
    try:
        return bool(json.loads(folder.place(CHECKSUMS).read_text(encoding="utf-8")) == _checksums(folder))
    except (OSError, ValueError, RecursionError):
        return False


def _checksums(folder: RunFolder) -> dict[str, str]:
    """SHA-256 of each file of the detector, by its name inside its folder."""
    return {name.removeprefix(f"{DETECTOR}/"): sha256(folder.path / name) for name in folder.files(DETECTOR)}


def _stored_scores(folder: RunFolder, items: Sequence[Sample]) -> pd.DataFrame | None:
    """What an earlier call wrote; None where a map is gone, or a file can be read that could not be read then."""
    try:
        table = read_csv(folder.place(MAP_SCORES)).fillna({"message": ""})
        failed = {name for name, why in zip(table["image"], table["message"], strict=True) if why}
    except (RunError, KeyError):
        return None
    for item in items:
        gone = not (isinstance(item.map, Path) and item.map.exists())
        if gone or (item.id in failed and is_readable(replace(item, map=None))):
            return None
    return table


def _npy(values: npt.NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values.astype(np.float32, copy=False), allow_pickle=False)
    return buffer.getvalue()


def _readable(
    items: Iterable[Sample], records: Sequence[ImageRecord] = (), advance: Advance | None = None
) -> Iterator[tuple[int, Picture]]:
    """Images that can be read, with their places; the records of the others say why they cannot."""
    for index, item in enumerate(items):
        if advance is not None:
            advance()
        try:
            yield index, read_image(item.image)
        except BadFileError as error:
            if records:
                records[index].error = str(error)
