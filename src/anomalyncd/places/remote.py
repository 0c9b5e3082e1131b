"""Object stores by fsspec: each request patient, credentials only by the store's own ways."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from ..errors import SettingsError, StoreError
from .headers import LATEST
from .patience import patiently
from .stored import Status, Store

PACKAGES = {  # scheme → its package, and how to get it
    "s3": ("s3fs", "pip install 'anomalyncd[s3]'"),
    "gs": ("gcsfs", "pip install gcsfs"),
    "az": ("adlfs", "pip install adlfs"),
    "memory": ("fsspec", "pip install fsspec"),
}
_TIMES = ("mtime", "lastmodified", "last_modified", "updated", "created")
_TAGS = ("etag", "md5hash", "content_md5")
_SECOND = 1_000_000_000


class Remote(Store):
    """A bucket.

    Parameters
    ----------
    scheme : one of `PACKAGES`
    bucket : its name
    files : file system of fsspec to use instead of the scheme's own

    Examples
    --------
    >>> store = Remote("memory", "line")
    >>> store.files.pipe_file("line/day/a.png", b"some bytes")
    >>> store.find("day"), store.read("day/a.png", 5, 99), store.is_dir("day")
    (['a.png'], b'bytes', True)
    """

    def __init__(self, scheme: str, bucket: str, files: Any = None) -> None:
        self.name, self.bucket, self._scheme = f"{scheme}://{bucket}", bucket, scheme
        self._seen: dict[str, Status] = {}  # by the last listing
        if files is not None:
            self.files = files

    @cached_property
    def files(self) -> Any:
        """The file system, which finds its credentials by itself."""
        package, advice = PACKAGES[self._scheme]
        try:
            import fsspec

            # Answers of a moment ago are no use: `update` asks what has changed.
            return fsspec.filesystem(self._scheme, skip_instance_cache=True, use_listings_cache=False)
        except ImportError:
            raise SettingsError(f"{self.name}: needs the package {package}: {advice}") from None
        except Exception as error:  # wrong settings of the store's own
            raise SettingsError(f"{self.name}: {package} cannot be set up ({type(error).__name__}: {error})") from error

    def find(self, folder: str) -> list[str]:
        place = self._place(folder)
        found = patiently(lambda: self.files.find(place, detail=True), self.text(folder))
        below, start = f"{place.strip('/')}/", f"{folder}/" if folder else ""
        self._seen = {name: status for name, status in self._seen.items() if not name.startswith(start)}
        names = []
        for path, info in found.items():
            name = str(path).removeprefix("/")
            if name.startswith(below) and is_plain(name := name.removeprefix(below)) and info.get("type") == "file":
                names.append(name)
                self._seen[start + name] = _status(info)
        return names

    def entries(self, folder: str) -> list[str]:
        """Names of what lies in a folder itself, folders with a slash behind them."""
        place = self._place(folder)
        try:
            found = patiently(lambda: self.files.ls(place, detail=True), self.text(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [(str(info["name"]).rstrip("/").rsplit("/", 1)[-1], info.get("type")) for info in found]
        return [f"{name}/" if kind == "directory" else name for name, kind in names if is_plain(name)]

    def status(self, name: str) -> Status:
        """As it was when it was first asked for, or listed; see `forget`."""
        if name in self._seen:
            return self._seen[name]
        place = self._place(name)
        info = patiently(lambda: self.files.info(place), self.text(name))
        if info.get("type") != "file":
            raise FileNotFoundError(name)
        self._seen[name] = _status(info)
        return self._seen[name]

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)

    def is_dir(self, name: str) -> bool:
        try:
            place = self._place(name)
            return bool(patiently(lambda: self.files.isdir(place), self.text(name)))
        except FileNotFoundError:
            return False

    def read(self, name: str, begin: int, end: int) -> bytes:
        place = self._place(name)
        return bytes(patiently(lambda: self.files.cat_file(place, start=begin, end=end), self.text(name)))

    def _place(self, name: str) -> str:
        if name and not {"", ".", ".."}.isdisjoint(name.split("/")):  # which may lead out of the bucket
            raise FileNotFoundError(name)
        return f"{self.bucket}/{name}" if name else self.bucket


def is_plain(name: str) -> bool:
    """Whether a folder could hold a file of this name, and does not hide it.

    Examples
    --------
    >>> [is_plain(name) for name in ("crack/0.png", "../0.png", ".git/0.png", "a//0.png", "folder/")]
    [True, False, False, False, False]
    """
    return "\0" not in name and all(part and not part.startswith(".") for part in name.split("/"))


def _status(info: Mapping[str, Any]) -> Status:
    """Size and time; stores tell seconds, so that the tag of the content takes the place of their parts."""
    known = {str(key).lower(): value for key, value in info.items()}
    time = next((known[key] for key in _TIMES if known.get(key) is not None), 0)
    tag = next((str(known[key]) for key in _TAGS if known.get(key)), None)
    try:
        if isinstance(time, str):
            time = datetime.fromisoformat(re.sub(r"Z$", "+00:00", time))
        seconds = time.timestamp() if isinstance(time, datetime) else float(time)
        moment, size = round(seconds * _SECOND) % LATEST, int(known.get("size") or 0)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"the store tells a size or a time that is none ({error}).") from error
    if tag is not None:
        moment = moment // _SECOND * _SECOND + zlib.crc32(tag.encode()) % _SECOND
    return Status(size, moment)


_stores: dict[tuple[str, str], Remote] = {}
_lock = threading.Lock()


def remote(scheme: str, bucket: str) -> Remote:
    """The one store of this name in this process, which keeps what it has listed."""
    with _lock:
        return _stores.setdefault((scheme, bucket), Remote(scheme, bucket))
