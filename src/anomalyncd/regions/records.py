"""What became of each image. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..data.images import read_image
from ..errors import BadFileError, DataError
from ..progress import Advance, Silent

MOST_REGIONS = 64  # of one image
MOST_WARNINGS = 20  # about single files; the manifest lists them all


@dataclass
class ImageRecord:
    """What became of an image; `error` is set when a file of it could not be read, and then it is left out.

    score : of its map, `top_mean` in the map's units; without a map 1 where there is a defect, else 0
    threshold : of its mask, in the map's units
    note : what is odd about its map
    n_bytes, modified, sha256 : of the image's file, in which the next `update` sees whether it is another; empty for arrays
    """

    index: int
    id: str
    height: int = 0
    width: int = 0
    n_regions: int = 0
    score: float = 1.0
    threshold: float = math.nan
    error: str = ""
    note: str = ""
    n_bytes: str = ""
    modified: str = ""
    sha256: str = ""


def report_files(images: Sequence[ImageRecord], progress: Silent) -> dict[str, str]:
    """Warn of files that were skipped or are odd, fail when nothing is left, and return id → why it was skipped."""
    skipped = {record.id: record.error for record in images if record.error}
    reasons = list(skipped.values())
    if images and all(record.error for record in images):
        raise DataError(f"none of the {len(images)} images could be read, the first because: {reasons[0]}")
    for reason in reasons[:MOST_WARNINGS]:
        progress.warn(f"skipped {reason}")
    if len(reasons) > MOST_WARNINGS:
        progress.warn(f"skipped {len(reasons) - MOST_WARNINGS} more files")
    if odd := [record for record in images if record.note]:
        progress.warn(f"{odd[0].id}: {odd[0].note}{and_more(odd)}")
    return skipped


def and_more(images: Sized) -> str:
    """What follows a sentence about the first of some images.

    Examples
    --------
    >>> and_more(["a", "b", "c"]), and_more(["a"])
    (' (and so for 2 more images)', '')
    """
    return f" (and so for {len(images) - 1} more images)" if len(images) > 1 else ""


def readable(
    samples: Iterable[Sample], records: Sequence[ImageRecord], advance: Advance
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Images that can be read, with their places; the records of the others say why they cannot."""
    for index, sample in enumerate(samples):
        advance()
        try:
            yield index, read_image(sample.image)
        except BadFileError as error:
            records[index].error = str(error)
