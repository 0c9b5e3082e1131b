"""Files that have come whole → what is written down of them, by the model that the run has now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ..checksums import sha256
from ..data.dataset import Sample
from ..data.images import IMAGE_SUFFIXES, read_image
from ..data.maps import MAP_SUFFIXES, read_map, read_mask
from ..discovery.classify import Prediction, Predictor
from ..errors import AnomalyNCDError, BadFileError
from ..labels import NORMAL
from ..regions.extract import Extracted
from ..run.folder import CLASS_NAMES, MODEL_FILE
from ..run.tables import DIGITS
from .arrivals import Arrival, ends_whole, marks_of, read_settled
from .columns import OK, UNREADABLE, Entry, Row, stamp
from .ledger import content_id

SHORT = 12  # digits of a model's checksum that tell it from others
MASK_SUFFIXES = IMAGE_SUFFIXES | {".npy"}


class CurrentModel:
    """The model of a run, loaded anew when `review`, `update` or `discover` has changed it.

    Parameters
    ----------
    run : its folder, or that of an export
    load : makes a predictor of it

    Attributes
    ----------
    id : of the model at work, for the table
    """

    def __init__(self, run: Path, load: Callable[[], Predictor]) -> None:
        self.run, self._load = run, load
        self._signature: object = None
        self.refresh()

    def refresh(self) -> bool:
        """Take up a new model if there is one; whether there was. An error of a run that is being written is raised."""
        signature = tuple(marks_of(self.run / name) for name in (MODEL_FILE, CLASS_NAMES))
        if signature == self._signature:
            return False
        predictor = self._load()
        id = sha256(self.run / MODEL_FILE)[:SHORT]
        self.predictor, self.id, self._signature = predictor, id, signature
        return True


@dataclass
class Read:
    """A file as it was read.

    sha256 : of its content
    sample : decoded; None where it is no image that can be read
    error : why
    """

    arrival: Arrival
    sha256: str
    n_bytes: int
    sample: Sample | None = None
    error: str = ""

    @property
    def id(self) -> str:
        return content_id(self.arrival.name, self.sha256)


class Reader:
    """Reads files whole, with the map or the mask that belongs to each.

    Parameters
    ----------
    beside : folder of maps (`what` = "map") or masks ("mask"), in the same subfolders and under the images' names
    """

    def __init__(self, folder: Path, what: str = "image", beside: Path | None = None) -> None:
        self.folder, self.what, self.beside = folder, what, beside

    def content(self, arrival: Arrival, patience: float = 0.0) -> tuple[Read, bytes] | None:
        """None where it is not whole after all, or is there no more, or too large before `patience` is over."""
        if self.beside is not None and self.companion(arrival.name) is None:
            return None
        try:
            content = read_settled(self.folder / arrival.name, arrival.marks)
        except BadFileError as error:
            return self._unread(arrival, str(error)) if arrival.seconds >= patience else None
        return None if content is None else (Read(arrival, sha256(content), len(content)), content)

    def decode(self, read: Read, content: bytes, patience: float = 0.0) -> Read | None:
        """With the picture, or why there is none; None where its end, its map or its mask has not come yet.

        patience : seconds after which a file without an end is taken as it is
        """
        if read.error:
            return read
        if not ends_whole(content) and read.arrival.seconds < patience:
            return None
        extra: dict[str, Any] = {}
        try:
            read.sample = Sample(read.arrival.name, read_image(content))
            if self.beside is not None:
                path = self.companion(read.arrival.name)
                marks = None if path is None else marks_of(path)
                own = None if path is None or marks is None else read_settled(path, marks)
                if own is None:
                    return None
                extra = {self.what: read_map(own) if self.what == "map" else read_mask(own)}
                read.sample = Sample(read.arrival.name, read.sample.image, **extra)
        except BadFileError as error:
            read.sample, read.error = None, str(error).removeprefix("data: ")
        except MemoryError:
            read.sample, read.error = None, "takes more memory to read than there is"
        return read

    def _unread(self, arrival: Arrival, why: str) -> tuple[Read, bytes] | None:
        """A file that no memory has to hold, known by its content all the same."""
        path = self.folder / arrival.name
        try:
            digest = sha256(path)
        except OSError:
            return None
        return (Read(arrival, digest, arrival.n_bytes, error=why), b"") if marks_of(path) == arrival.marks else None

    def companion(self, name: str) -> Path | None:
        """The map or mask of an image, if it has come."""
        assert self.beside is not None
        stem = (self.beside / name).with_suffix("")
        for ending in ("", f"_{self.what}"):
            for suffix in sorted(MAP_SUFFIXES if self.what == "map" else MASK_SUFFIXES):
                path = stem.with_name(f"{stem.name}{ending}{suffix}")
                if path.is_file():
                    return path
        return None


def class_images(reads: Sequence[Read], model: CurrentModel, folder: Path) -> list[Entry]:
    """What to write down of images, of those that could not be read too; one that the network chokes on is one of these."""
    readable = [read for read in reads if read.sample is not None]
    entries: dict[str, Entry] = {}
    try:
        if readable:
            entries = _classed(readable, model, folder)
    except (AnomalyNCDError, ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        if len(readable) > 1:
            for read in readable:
                entries |= {entry.id: entry for entry in class_images([read], model, folder)}
        else:
            readable[0].error = f"could not be classed ({type(error).__name__}: {error})"
    for read in reads:
        if read.id not in entries:
            entries[read.id] = Entry(
                _row(read, model, folder) | {"status": UNREADABLE, "message": read.error}, read.arrival.marks
            )
    return [entries[read.id] for read in reads]


def _classed(reads: Sequence[Read], model: CurrentModel, folder: Path) -> dict[str, Entry]:
    predictor = model.predictor
    found: dict[str, Entry] = {}
    by_name = {read.arrival.name: read for read in reads}
    for extracted in predictor.extract([read.sample for read in reads if read.sample is not None]):
        prediction = predictor.classify(extracted)
        regions = _by_image(prediction)
        scores = {record.id: record.score for record in extracted.images}
        for row in prediction.images.to_dict("records"):
            read = by_name[str(row["image"])]
            own = regions.get(read.arrival.name, [])
            found[read.id] = Entry(
                _row(read, model, folder, row, own, scores[read.arrival.name]), read.arrival.marks, own
            )
        for record in _failed(extracted):
            by_name[record].error = prediction.skipped[record]
    return found


def _failed(extracted: Extracted) -> list[str]:
    return [record.id for record in extracted.images if record.error]


def _by_image(prediction: Prediction) -> dict[str, list[Row]]:
    regions: dict[str, list[Row]] = {}
    for region in prediction.regions.to_dict("records"):
        regions.setdefault(str(region["image"]), []).append({name: _plain(value) for name, value in region.items()})
    return regions


def _row(
    read: Read,
    model: CurrentModel,
    folder: Path,
    found: Row | None = None,
    regions: Sequence[Row] = (),
    score: float = math.nan,
) -> Row:
    """A row of `IMAGE_COLUMNS`; found : as in images.csv"""
    row: Row = {
        "id": read.id,
        "time": stamp(),
        "image": read.arrival.name,
        "file": str((folder / read.arrival.name).absolute()),
        "status": OK,
        "message": "",
        "sha256": read.sha256,
        "n_bytes": read.n_bytes,
        "modified": stamp(read.arrival.modified / 1e9),
        "model": model.id,
    }
    if found is None or read.sample is None:
        return row
    image = np.asarray(read.sample.image, np.uint8)
    height, width = image.shape[:2]
    covered = sum(float(region["area"]) for region in regions if region["label"] != NORMAL)
    brightness, contrast = light(image)
    row |= {name: _plain(value) for name, value in found.items() if not str(name).startswith(("p_", "true_"))}
    return row | {
        "width": width,
        "height": height,
        "score": _plain(round(score, DIGITS)),
        "area": round(min(1.0, covered / (height * width)), DIGITS),
        "brightness": round(brightness, 3),
        "contrast": round(contrast, 3),
    }


def light(image: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and deviation of the grey values of an image (H, W, 3), 0 … 255.

    Examples
    --------
    >>> light(np.stack([np.full((2, 4, 3), 100, np.uint8), np.full((2, 4, 3), 120, np.uint8)], axis=1).reshape(4, 4, 3))
    (110.0, 10.0)
    """
    mean, deviation = cv2.meanStdDev(image.mean(axis=2, dtype=np.float32))
    return float(mean[0, 0]), float(deviation[0, 0])


def _plain(value: Any) -> Any:
    """For JSON and SQLite, which know no numbers of NumPy and no infinite ones."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
