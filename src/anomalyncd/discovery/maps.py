"""Maps for images that came without: fit a detector and run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from ..blocks.engine import Block, Engine, blocks_of
from ..blocks.maps import HeldOutWork, Looks, MapWork, NothingRead, Reading
from ..blocks.shards import file_stem
from ..config import Config
from ..data.dataset import Sample
from ..detect import Detector, build_detector
from ..detect.memory import MemoryDetector
from ..detect.tokens import TokenDetector
from ..errors import AnomalyNCDError, DataError, RunError
from ..known.normal_images import suspects_table, warn_of_overlap
from ..progress import Advance, Silent
from ..regions.extract import is_readable
from ..regions.network import share
from ..regions.records import ImageRecord, report_files
from ..run.detector import CHECKSUMS, DETECTOR, is_whole, read_detector, save_detector
from ..run.folder import IMAGES_TABLE, MAPS, METRICS, NORMAL_MAPS, SCORES, SEEN, SUSPECTS, TRAINING, RunFolder
from ..run.map_files import MapFiles
from ..run.stages import Stages, content_order
from ..run.store import SHARD, map_names
from ..run.tables import read_csv, to_csv
from ..whole import settle

MAP_SCORES = f"{MAPS}/scores.csv"
NORMAL_TABLE = f"{NORMAL_MAPS}/maps.csv"
MOST_HELD_OUT = 100  # normal images, evenly spread, that tell how normal ones score


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
    folder, config, engine, names = stages.folder, stages.config, stages.engine, map_names(samples)
    with_maps = [replace(sample, map=folder.place(name)) for sample, name in zip(samples, names, strict=True)]

    def make() -> pd.DataFrame:
        made = earlier or detector or build_detector(config)
        if earlier is not None:
            save_detector(made, folder)
        elif made.needs_normal or normal:
            warn_of_overlap(samples, normal, stages.progress)
            if stages.seen is not None:
                share(made, stages.seen, config, known=_chosen(range(len(normal))))
            made = stages.once("detector", key, lambda: _stored(folder, config), lambda: _fit(stages, made, normal))
        if stages.seen is not None:
            share(made, stages.seen, config)
        # A detector that compares the images with each other may take some as references: not those of the first folder.
        order = None if made.needs_normal else content_order(samples)
        table = write_maps(MapFiles(folder, samples, names, key, engine), made, config, stages.progress, order)
        folder.write_text(MAP_SCORES, to_csv(table))
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
    outputs = (MAPS, NORMAL_MAPS, SUSPECTS, DETECTOR, CHECKSUMS, SCORES, METRICS, TRAINING, SEEN)
    return with_maps, stages.once("maps", key, lambda: known, make, *outputs)


def write_maps(
    files: MapFiles, detector: Detector, config: Config, progress: Silent, order: Sequence[int] | None = None
) -> pd.DataFrame:
    """Write one map for each image; returns its score, the image's size, or why it could not be read.

    Parameters
    ----------
    files : where they go; of blocks that are there already no map is made again
    detector : as it is stored in the run, or one that compares the first images that it sees, and is stored then
    order : places in which it sees the images, one after the other by default
    """
    samples, folder = files.samples, files.folder
    places = list(range(len(samples)) if order is None else order)
    n_first = len(places) if detector.compared is None else min(detector.compared, len(places))
    with progress.task("Anomaly maps", len(places)) as advance:
        if n_first:
            first = blocks_of(samples, n_first, places[:n_first])[0]
            stored = _stored(folder, config) if files.is_kept(first) else None
            if stored is None:
                files.keep(first, _compared(files, detector, first, config, advance))
            else:
                detector = stored
                advance(n_first)
        blocks = blocks_of(samples, SHARD, places[n_first:])
        todo = [block for block in blocks if not files.is_kept(block)]
        advance(len(places) - n_first - sum(map(len, todo)))
        work = MapWork(partial(read_detector, folder.path.absolute(), config), config.ignore, detector)
        for place, made in files.engine.each(work, todo):
            files.keep(todo[place], made, advance)
    settle()
    if all(record.error for record in files.records.values()):
        report_files(list(files.records.values()), progress)  # raises
    return files.table()


def _compared(
    files: MapFiles, detector: Detector, block: Block, config: Config, advance: Advance
) -> Iterator[tuple[ImageRecord, bytes]]:
    """Maps of images that a detector compares with each other; then it is stored, for those that come later."""
    work = MapWork(lambda: detector, config.ignore, detector)
    if isinstance(detector, TokenDetector) and detector.from_tokens:
        seen = Looks(files.engine, detector, block, advance)
        yield from work.maps(seen, detector.detect_tokens(seen))
    else:
        for made in work(block):
            yield made
            advance()
    save_detector(detector, files.folder)


def normal_samples(folder: RunFolder, normal: Sequence[Sample]) -> list[Sample]:
    """Those of the normal images whose maps the detector made as if it had not seen them, with these maps."""
    if not folder.place(NORMAL_TABLE).is_file():
        return []
    table = read_csv(folder.place(NORMAL_TABLE))
    place_of = dict(zip(table["image"], table["map"], strict=True))
    return [replace(sample, map=folder.place(place_of[sample.id])) for sample in normal if sample.id in place_of]


def _fit(stages: Stages, detector: Detector, normal: Sequence[Sample]) -> Detector:
    """Fit a detector and store it, with maps of some of the normal images."""
    folder, config, progress = stages.folder, stages.config, stages.progress
    with stages.timed("fitting"):
        readable = _fitted_on(stages, detector, normal)
    if (odd := suspects_table(detector.suspects, readable, progress)) is not None:
        folder.write_text(SUSPECTS, to_csv(odd))
    save_detector(detector, folder)
    places = _chosen([place for place in range(len(readable)) if place not in detector.suspects])
    # Others than those with a memory may know no more, once they were stored, what they had learned from.
    engine, size = (stages.engine, SHARD) if isinstance(detector, MemoryDetector) else (Engine(), MOST_HELD_OUT)
    with stages.timed("normal images"), progress.task("Scores of normal images", len(places)) as advance:
        work = HeldOutWork(partial(read_detector, folder.path.absolute(), config), config.ignore, detector)
        maps: dict[int, str] = {}
        blocks = blocks_of(readable, size, places)
        for place, found in engine.each(work, blocks):
            for number, content in found:
                maps[number] = f"{NORMAL_MAPS}/{file_stem(places.index(number), readable[number].id)}.npy"
                folder.write(maps[number], content)
            advance(len(blocks[place]))
    if maps:
        rows = [(readable[number].id, name) for number, name in sorted(maps.items())]
        folder.write_text(NORMAL_TABLE, to_csv(pd.DataFrame(rows, columns=["image", "map"])))
    return detector


def _chosen(places: Sequence[int]) -> list[int]:
    """Those of the normal images that tell how normal ones score: evenly spread."""
    found = np.linspace(0, len(places) - 1, min(MOST_HELD_OUT, len(places))).round().astype(int)
    return [places[place] for place in np.unique(found).tolist()]


def _fitted_on(stages: Stages, detector: Detector, normal: Sequence[Sample]) -> list[Sample]:
    """Fit, and return the images that could be read; a killed call may have left what it learned."""
    progress = stages.progress
    if not detector.needs_normal:
        progress.warn(f"the detector {detector.name!r} needs no normal images: those of --normal are not used.")
        return []
    if not normal and detector.is_ready:
        return []
    if not normal:
        raise DataError(f"the detector {detector.name!r} needs images of normal products: give them with --normal.")
    block = list(enumerate(normal))
    with progress.task("Normal images", len(normal)) as advance:
        images = Reading(block, advance)
        read: Reading | Looks = images
        try:
            if isinstance(detector, TokenDetector) and detector.from_tokens:
                read = Looks(stages.engine, detector, block, advance)
                detector.fit_tokens(read)
            else:
                detector.progress, detector.workspace = progress, stages.folder.place(TRAINING)
                detector.fit(images)
        except (DataError, NothingRead):
            report_files(read.records, progress)  # raises where none could be read, and says why
            raise
        finally:
            detector.progress, detector.workspace = Silent(), None
    records = sorted(read.records, key=lambda record: record.index)
    report_files(records, progress)
    return [normal[record.index] for record in records if not record.error]


def _stored(folder: RunFolder, config: Config) -> Detector | None:
    """The detector of a run as it was stored; None where it is damaged."""
    try:
        return read_detector(folder.path, config)
    except AnomalyNCDError:
        return None


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
