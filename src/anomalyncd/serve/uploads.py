"""The body of a request → images with their maps or masks, as bytes. Nothing in it is ever taken for a path."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value

from pydantic import ValidationError

from .schema import IMAGE_TYPES, LONGEST_NAME, Needs, PredictRequest

JSON_TYPE, FORM_TYPE = "application/json", "multipart/form-data"
LONGEST_HEAD = 8192  # of one part of a form
FIELDS = ("image", "map", "mask")


class UploadError(Exception):
    """A body that is not what was expected, with the status that says so."""

    def __init__(self, words: str, status: int = 422) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Upload:
    """One image as it was sent; name : whatever the client calls it."""

    name: str
    image: bytes
    map: bytes | None = None
    mask: bytes | None = None


def check_content_type(content_type: str) -> None:
    """Refuse a kind of body before it is read."""
    if _kind(content_type).get_content_type() not in (JSON_TYPE, FORM_TYPE, *IMAGE_TYPES):
        raise UploadError(f"Content-Type must be {FORM_TYPE}, {JSON_TYPE}, or one of {', '.join(IMAGE_TYPES)}.", 415)


def parse(body: bytes, content_type: str, needs: Needs, most_images: int) -> list[Upload]:
    """The images of a request, with all that the run `needs` and nothing else.

    Examples
    --------
    >>> parse(b"GIF89a", "image/png", "image", 8)
    [Upload(name='image_0', image=b'GIF89a', map=None, mask=None)]
    """
    check_content_type(content_type)
    kind = _kind(content_type)
    if kind.get_content_type() == JSON_TYPE:
        uploads = _of_json(body)
    elif kind.get_content_type() == FORM_TYPE:
        uploads = _of_form(body, str(kind.get_param("boundary", "")), most_images)
    else:
        uploads = [Upload("image_0", body)]
    if len(uploads) > most_images:
        raise UploadError(_too_many(most_images), 413)
    for upload in uploads:
        for field in ("map", "mask"):
            given = getattr(upload, field) is not None
            if needs == field and not given:
                raise UploadError(
                    f"This run was made with {field}s, so it needs one with each image: send a form with the files `image` "
                    f"and `{field}`, or JSON."
                )
            if given and needs != field:
                own = "makes the maps itself" if needs == "image" else f"was made with {needs}s"
                raise UploadError(f"This run {own}: leave `{field}` out.")
    return uploads


def _too_many(most: int) -> str:
    return f"A request must have no more than {most} images."


def _kind(content_type: str) -> Message:
    message = Message()
    message["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
    return message


def _of_json(body: bytes) -> list[Upload]:
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UploadError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    return [
        Upload(
            one.name or f"image_{number}", _of_base64(one.image, f"images.{number}.image"),
            None if one.map is None else _of_base64(one.map, f"images.{number}.map"),
            None if one.mask is None else _of_base64(one.mask, f"images.{number}.mask"),
        )
        for number, one in enumerate(request.images)
    ]  # fmt: skip


def _of_base64(text: str, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UploadError(f"{place}: expected the content of a file in base64.") from None


def _of_form(body: bytes, boundary: str, most_images: int) -> list[Upload]:
    found: dict[str, list[tuple[str, bytes]]] = {field: [] for field in FIELDS}
    for field, name, content in _parts(body, boundary):
        if field not in found:
            raise UploadError(f"A form must have files called {', '.join(FIELDS)}, but one is called {field[:80]!r}.")
        if len(found[field]) == most_images:
            raise UploadError(_too_many(most_images), 413)
        found[field].append((name, content))
    images = found["image"]
    if not images:
        raise UploadError("A form must have at least one file called `image`.")
    beside: dict[str, list[bytes | None]] = {}
    for field in ("map", "mask"):
        if found[field] and len(found[field]) != len(images):
            raise UploadError(f"Expected one {field} for each of {len(images)} images, but got {len(found[field])}.")
        beside[field] = [content for _, content in found[field]] or [None] * len(images)
    return [
        Upload(name or f"image_{number}", content, map_, mask)
        for number, ((name, content), map_, mask) in enumerate(zip(images, beside["map"], beside["mask"], strict=True))
    ]


def _parts(body: bytes, boundary: str) -> Iterator[tuple[str, str, bytes]]:
    """Field, file name and content of each part of a form (RFC 7578)."""
    malformed = UploadError("The form is not whole, or its boundary is not that of the Content-Type.")
    try:
        mark = boundary.encode("ascii")
    except UnicodeEncodeError:
        raise malformed from None
    if not 1 <= len(mark) <= 200:
        raise UploadError("The Content-Type of a form must have a boundary.")
    separator, data = b"\r\n--" + mark, b"\r\n" + body
    position = data.find(separator)
    if position < 0:
        raise malformed
    position += len(separator)
    while not data.startswith(b"--", position):
        head_start = data.find(b"\r\n", position, position + LONGEST_HEAD) + 2
        head_end = data.find(b"\r\n\r\n", position, position + LONGEST_HEAD)
        end = data.find(separator, head_end + 2) if head_end >= 0 else -1
        if end < 0:
            raise malformed
        head = HeaderParser().parsestr(data[head_start : head_end + 4].decode("utf-8", "replace"))
        yield _parameter(head, "name"), _parameter(head, "filename")[:LONGEST_NAME], data[head_end + 4 : end]
        position = end + len(separator)


def _parameter(head: Message, name: str) -> str:
    """A parameter of Content-Disposition as text that can be sent back; empty where there is none."""
    try:
        text = collapse_rfc2231_value(head.get_param(name, "", header="content-disposition"))
        return text.encode("utf-8", "replace").decode("utf-8")
    except (ValueError, LookupError, AttributeError):  # headers are what a client makes of them
        return ""
