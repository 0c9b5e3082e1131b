"""Maps for images that came without: fit a detector, run it, and keep both in the run folder."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..config import Config
from ..data.images import read_image
from ..data.layouts import find_images
from ..detect import DETECTORS, Detector, Picture, load_detector, make_detector
from ..errors import BadFileError, DataError, SettingsError
from ..progress import Advance, Silent
from .folder import RunFolder
from .records import Item
from .store import file_stem

DETECTOR = "detector"  # folder of the fitted detector inside a run
MAPS = "maps"


def build(config: Config) -> Detector:
    """The configured detector, not fitted yet; built-in ones share backbone, device and seed with the rest."""
    name = config.detect.name or ""
    settings = dict(config.detect.settings)
    if name in DETECTORS:
        shared = {"backbone": config.model.backbone, "device": config.device, "seed": config.random_state}
        weights = {"weights": str(config.model.weights)} if config.model.weights else {}
        settings = {**shared, **weights, **settings}
    try:
        return make_detector(name, **settings)
    except TypeError as error:
        raise SettingsError(f"detect.settings do not fit the detector {name!r}: {error}.") from error


def normal_items(folder: Path) -> list[Item]:
    """Images of normal products, in any folder structure."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of normal images (--normal).")
    items = [Item(name, folder / name) for name, _ in find_images(folder)]
    if not items:
        raise DataError(f"{folder}: expected normal images (--normal), none found.")
    return items


def write_maps(
    folder: RunFolder, items: Sequence[Item], normal: Sequence[Item], detector: Detector, progress: Silent
) -> None:
    """Fit the detector, write one map for each image that can be read, and store the detector."""
    if detector.needs_normal:
        if not normal:
            raise DataError(f"the detector {detector.name!r} needs images of normal products: give them with --normal.")
        with progress.task("Normal images", len(normal)) as advance:
            detector.fit(image for _, image in _readable(normal, advance))
    read: list[int] = []

    def pictures(advance: Advance) -> Iterator[Picture]:
        for index, image in _readable(items, advance):
            read.append(index)
            yield image

    with progress.task("Anomaly maps", len(items)) as advance:
        for place, anomaly_map in enumerate(detector.maps(pictures(advance))):
            buffer = io.BytesIO()
            np.save(buffer, anomaly_map.astype(np.float32, copy=False), allow_pickle=False)
            index = read[place]
            folder.write(map_name(index, items[index].id), buffer.getvalue())
    detector.save(folder.path / DETECTOR)


def with_maps(folder: RunFolder, items: Sequence[Item]) -> list[Item]:
    """The items with the maps that `write_maps` wrote; an image that could not be read has none."""
    paths = [folder.path / map_name(index, item.id) for index, item in enumerate(items)]
    return [replace(item, map=path if path.exists() else None) for item, path in zip(items, paths, strict=True)]


def detect_again(run: Path, config: Config) -> Detector:
    """The detector of a finished run, for new images."""
    return load_detector(config.detect.name or "", run / DETECTOR, device=config.device)


def detected(items: Sequence[Item], detector: Detector) -> list[Item]:
    """A few items with images and maps in memory; one that cannot be read stays as it is."""
    pictures = dict(_readable(items))
    maps = dict(zip(pictures, detector.maps(pictures.values()), strict=True))
    return [
        replace(item, image=pictures[index], map=maps[index]) if index in pictures else item
        for index, item in enumerate(items)
    ]


def map_name(index: int, image: str) -> str:
    """Where an image's map lies inside the run folder."""
    return f"{MAPS}/{file_stem(index, image)}.npy"


def _readable(items: Iterable[Item], advance: Advance | None = None) -> Iterator[tuple[int, Picture]]:
    for index, item in enumerate(items):
        if advance is not None:
            advance()
        try:
            yield index, read_image(item.image)
        except BadFileError:
            continue  # reported when its regions are looked for
