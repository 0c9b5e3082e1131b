"""What the growing tables hold: columns that stay, whichever model is at work."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..run.tables import REGION_COLUMNS

Row = dict[Hashable, Any]
TEXT = ("id", "time", "image", "file", "status", "message", "class_name", "classes", "sha256", "modified", "model")
WHOLE = ("seq", "width", "height", "label", "n_regions", "n_bytes")
IMAGE_COLUMNS = (
    "seq", "id", "time", "image", "file", "status", "message", "width", "height", "label", "class_name", "probability",
    "classes", "n_regions", "unknown", "foreign", "false_alarm", "score", "area", "brightness", "contrast", "sha256",
    "n_bytes", "modified", "model",
)  # fmt: skip
WATCHED_REGIONS = ("seq", *REGION_COLUMNS)
OK, UNREADABLE = "ok", "unreadable"


@dataclass
class Entry:
    """What is written down of one image.

    image : a row of `IMAGE_COLUMNS`, without `seq` until it is committed
    regions : rows of `REGION_COLUMNS`
    marks : of the file as it was read
    """

    image: Row
    marks: str
    regions: list[Row] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.image["id"])


def stamp(seconds: float | None = None) -> str:
    """A time as text, local with its offset, now by default.

    Examples
    --------
    >>> len(stamp(0.0))
    29
    """
    moment = datetime.now() if seconds is None else datetime.fromtimestamp(seconds)
    return moment.astimezone().isoformat(timespec="milliseconds")
