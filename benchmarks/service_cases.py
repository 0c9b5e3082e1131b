"""Requests of every kind for `service.py`: good ones, and ones that no server should fall for."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anomalyncd.data.dataset import Sample

TOKEN = "of this benchmark"
MAX_MB = 4
MOST_IMAGES = 8


@dataclass(frozen=True)
class Case:
    """One request and what must come back.

    images : ids of its images, None for one that cannot be read; checked where the status is 200
    stall : the body stops half way
    """

    kind: str
    status: int
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    images: tuple[str | None, ...] = ()
    method: str = "POST"
    path: str = "/v1/predict?masks=none"
    token: str | None = TOKEN
    stall: bool = False


class Requests:
    """Makes requests of every kind out of the images of a data set."""

    def __init__(self, items: Sequence[Sample], needs: str, outside: Path) -> None:
        self.needs, self.outside = needs, outside
        self.items = {item.id: item for item in items}
        self.ids = list(self.items)

    def good(self, rng: random.Random) -> Case:
        some = tuple(rng.sample(self.ids, min(4, len(self.ids))))
        makers: list[Callable[[], Case]] = [
            lambda: self.form("one image in a form", some[:1]),
            lambda: self._json("one image in JSON", some[:1]),
            lambda: self.form("four images", some),
            lambda: self.form("an unreadable one among others", (some[0], None, *some[1:2])),
            lambda: self.form("a name that is a path", some[:1], name=str(self.outside)),
            lambda: self.form("a name that climbs", some[:1], name=f"../../../../../..{self.outside}"),
        ]
        if self.needs == "image":
            makers.append(
                lambda: Case("one image as it is", 200, self._content(some[0]), {"Content-Type": "image/png"}, some[:1])
            )
        weights = [6, 4, 2, 1, 1, 1, 6][: len(makers)]
        return rng.choices(makers, weights)[0]()

    def bad(self, rng: random.Random) -> Case:
        image = self._content(rng.choice(self.ids))
        as_image = {"Content-Type": "image/png"}
        as_json, as_form = {"Content-Type": "application/json"}, {"Content-Type": "multipart/form-data; boundary=b"}
        noise = rng.randbytes(3000)
        cut = image[: rng.randrange(20, max(21, len(image) // 2))]
        too_large = MAX_MB * 1_000_000 + 1
        path = json.dumps({"images": [{"image": str(self.outside)}]}).encode()
        part = b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n'
        lots = json.dumps({"images": [{"image": ""}] * (MOST_IMAGES + 1)}).encode()
        makers: list[Callable[[], Case]] = [
            lambda: self._with("truncated image", 422, cut),
            lambda: self._with("noise", 422, noise),
            lambda: self._with("a bomb", 422, _bomb()),
            lambda: self._with("an empty image", 422, b""),
            lambda: Case("half JSON", 422, b'{"images": [{"image": "', as_json),
            lambda: Case("a path for an image", 422, path, as_json),
            lambda: Case("a form without an end", 422, part + noise, as_form),
            lambda: Case("a form of noise", 422, noise, as_form),
            lambda: Case("too many images", 413, lots, as_json),
            lambda: Case("too large", 413, bytes(too_large), as_image),
            lambda: Case("too large, in pieces", 413, [bytes(250_000)] * 20, as_image),
            lambda: Case("no token", 401, image, as_image, token=None),
            lambda: Case("a wrong token", 401, image, as_image, token=TOKEN[:-1]),
            lambda: Case("another content type", 415, image, {"Content-Type": "text/html"}),
            lambda: Case("no content type", 415, image),
            lambda: Case("another method", 405, method="GET"),
            lambda: Case("a path of the address", 404, method="GET", path="/v1/../../etc/passwd"),
            lambda: Case("an unknown form of masks", 422, image, as_image, path="/v1/predict?masks=svg"),
        ]  # fmt: skip
        if rng.random() < 0.01:
            return Case("a body that does not come", 408, image, as_image, stall=True)
        return rng.choice(makers)()

    def _with(self, kind: str, status: int, image: bytes) -> Case:
        """A form with that image, and whatever else the run needs."""
        case = self.form(kind, (self.ids[0],), image=image)
        return Case(kind, status, case.body, case.headers)

    def _content(self, name: str, what: str = "image") -> bytes:
        source = getattr(self.items[name], what)
        return b"" if source is None else Path(source).read_bytes()

    def form(
        self, kind: str, ids: tuple[str | None, ...], *, name: str = "part.png", image: bytes | None = None
    ) -> Case:
        parts = []
        for one in ids:
            known = one or self.ids[0]
            content = b"no image" if one is None else self._content(known) if image is None else image
            parts.append(_part("image", name, content))
            if self.needs != "image":
                parts.append(_part(self.needs, name, self._content(known, self.needs)))
        headers = {"Content-Type": "multipart/form-data; boundary=frontier-of-this-benchmark"}
        return Case(kind, 200, b"".join(parts) + b"--frontier-of-this-benchmark--\r\n", headers, ids)

    def _json(self, kind: str, ids: tuple[str, ...]) -> Case:
        wanted = ("image",) if self.needs == "image" else ("image", self.needs)
        images = [{what: base64.b64encode(self._content(one, what)).decode() for what in wanted} for one in ids]
        return Case(kind, 200, json.dumps({"images": images}).encode(), {"Content-Type": "application/json"}, ids)


def _part(field_name: str, file_name: str, content: bytes) -> bytes:
    head = f'Content-Disposition: form-data; name="{field_name}"; filename="{file_name}"'
    return f"--frontier-of-this-benchmark\r\n{head}\r\n\r\n".encode() + content + b"\r\n"


def _bomb() -> bytes:
    """A small PNG that says it has 10 billion pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    )
