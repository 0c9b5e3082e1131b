"""The body of a request → images with their maps or masks, as bytes. Nothing in it is ever taken for a path."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from fastapi import HTTPException
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from ..discovery.classify import Needs
from .schema import IMAGE_TYPES, LONGEST_NAME, PredictRequest

JSON_TYPE, FORM_TYPE = "application/json", "multipart/form-data"
FIELDS = ("image", "map", "mask")

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # no client may write into the log


@dataclass(frozen=True)
class Upload:
    """One image as it was sent; name : whatever the client calls it."""

    name: str
    image: bytes
    map: bytes | None = None
    mask: bytes | None = None


def check_content_type(content_type: str) -> tuple[str, bytes]:
    """The kind of a body and the boundary of a form; other kinds are refused before they are read."""
    kind, options = parse_options_header(content_type.encode("utf-8", "replace"))
    name = kind.decode("latin-1")
    if name not in (JSON_TYPE, FORM_TYPE, *IMAGE_TYPES):
        words = f"Content-Type must be {FORM_TYPE}, {JSON_TYPE}, or one of {', '.join(IMAGE_TYPES)}."
        raise HTTPException(415, words)
    return name, options.get(b"boundary", b"")


def parse(body: bytes, content_type: str, needs: Needs, most_images: int) -> list[Upload]:
    """The images of a request, with all that the run `needs` and nothing else.

    Raises
    ------
    HTTPException : 415, 422 or 413, with what was expected

    Examples
    --------
    >>> parse(b"GIF89a", "image/png", "image", 8)
    [Upload(name='image_0', image=b'GIF89a', map=None, mask=None)]
    """
    kind, boundary = check_content_type(content_type)
    if kind == JSON_TYPE:
        uploads = _read_json(body)
    elif kind == FORM_TYPE:
        uploads = _read_form(body, boundary, most_images)
    else:
        uploads = [Upload("image_0", body)]
    if len(uploads) > most_images:
        raise _too_many(most_images)
    for upload in uploads:
        for field in ("map", "mask"):
            given = getattr(upload, field) is not None
            if needs == field and not given:
                raise HTTPException(
                    422,
                    f"This run was made with {field}s, so it needs one with each image: send a form with the files `image` "
                    f"and `{field}`, or JSON.",
                )
            if given and needs != field:
                own = "makes the maps itself" if needs == "image" else f"was made with {needs}s"
                raise HTTPException(422, f"This run {own}: leave `{field}` out.")
    return uploads


def _too_many(most: int) -> HTTPException:
    return HTTPException(413, f"A request must have no more than {most} images.")


def _read_json(body: bytes) -> list[Upload]:
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise HTTPException(422, f"{place}: {first['msg']}" if place else first["msg"]) from None
    return [
        Upload(one.name or f"image_{number}", one.image, one.map, one.mask) for number, one in enumerate(request.images)
    ]


def _read_form(body: bytes, boundary: bytes, most_images: int) -> list[Upload]:
    if not boundary:
        raise HTTPException(422, "The Content-Type of a form must have a boundary.")
    files: dict[str, list[tuple[str, bytes]]] = {field: [] for field in FIELDS}  # file name and content of each
    ends: list[bool] = []

    def add(part: Field | File) -> None:
        field = (part.field_name or b"").decode("utf-8", "replace")
        if field not in files:
            words = f"A form must have files called {', '.join(FIELDS)}, but one is called {field[:80]!r}."
            raise HTTPException(422, words)
        if len(files[field]) == most_images:
            raise _too_many(most_images)
        if isinstance(part, Field):
            files[field].append(("", part.value or b""))
        else:
            name = (part.file_name or b"").decode("utf-8", "replace")[:LONGEST_NAME]
            part.file_object.seek(0)
            files[field].append((name, part.file_object.read()))

    in_memory = {"MAX_MEMORY_FILE_SIZE": len(body)}  # all of it, always
    with suppress(FormParserError):
        parser = FormParser(FORM_TYPE, add, add, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body[max(0, body.find(b"--" + boundary)) :])  # text before the first part means nothing
    if not ends:
        raise HTTPException(
            422, "The form is not whole, or has a part without a name, or its boundary is not that of the Content-Type."
        )
    images = files["image"]
    if not images:
        raise HTTPException(422, "A form must have at least one file called `image`.")
    beside: dict[str, list[bytes | None]] = {}
    for field in ("map", "mask"):
        contents = [content for _, content in files[field]]
        if contents and len(contents) != len(images):
            raise HTTPException(422, f"Expected one {field} for each of {len(images)} images, but got {len(contents)}.")
        beside[field] = [*contents] or [None] * len(images)
    return [
        Upload(name or f"image_{number}", content, beside["map"][number], beside["mask"][number])
        for number, (name, content) in enumerate(images)
    ]
