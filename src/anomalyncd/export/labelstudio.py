"""Label Studio: tasks with predictions to import, and the labelling interface that they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..data.run_lengths import run_lengths
from ..errors import SettingsError
from .source import Finding, Image, Results

# Names of the controls, in the interface and in each result.
IMAGE, CLASS, BOX, MASK = "image", "class", "box", "mask"
SIZES = (4, 7, 11, 16)  # bits for the length of a run in the brush's format, which offers four to choose from
LONGEST = 1 << SIZES[-1]
COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
)  # fmt: skip


def tasks(
    results: Results, images: Sequence[Image], root: Path, on_image: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """One task an image, with two predictions to choose from: boxes and masks.

    images : all with a file inside `root`, the folder that Label Studio serves
    """
    for image in images:
        size = {"original_width": image.width, "original_height": image.height, "image_rotation": 0}
        choice = {"choices": [image.class_name]}
        answers = {
            control: [_answer(f"{image.number}-{CLASS}-{control}", "choices", CLASS, image.probability, choice)]
            for control in (MASK, BOX)
        }
        for found, mask in results.masks(image):
            brush = {"format": "rle", "rle": brush_rle(mask)}
            for control, kind, value in ((MASK, "brushlabels", brush), (BOX, "rectanglelabels", _box(image, found))):
                name, value = f"{image.number}-{found.region}-{control}", {**value, kind: [found.class_name]}
                answers[control].append(_answer(name, kind, control, found.probability, value, **size))
        yield {
            "data": {"image": _url(image, root), "name": image.name},
            "predictions": [
                {"model_version": f"anomalyncd {__version__} {kind}", "score": image.probability, "result": result}
                for kind, result in (("masks", answers[MASK]), ("boxes", answers[BOX]))
            ],
        }
        on_image()


def interface(results: Results) -> str:
    """The labelling interface (XML)."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=IMAGE, value="$image", zoom="true")
    choices = ElementTree.SubElement(view, "Choices", name=CLASS, toName=IMAGE, choice="single", showInline="true")
    for name in dict.fromkeys(results.classes.values()):
        ElementTree.SubElement(choices, "Choice", value=name)
    for tag, control in (("BrushLabels", MASK), ("RectangleLabels", BOX)):
        labels = ElementTree.SubElement(view, tag, name=control, toName=IMAGE)
        for index, name in enumerate(dict.fromkeys(results.defects.values())):
            ElementTree.SubElement(labels, "Label", value=name, background=COLOURS[index % len(COLOURS)])
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def default_root(images: Sequence[Image]) -> Path:
    """The folder above the one that holds all images: Label Studio serves only folders below its root."""
    folder = Path(os.path.commonpath([image.file.parent for image in images if image.file is not None]))
    return folder.parent


def check_inside(images: Sequence[Image], root: Path) -> None:
    """Label Studio shows no file outside the folder that it serves."""
    outside = [image.file for image in images if image.file is not None and not image.file.is_relative_to(root)]
    if outside:
        raise SettingsError(
            f"--root {root}: expected a folder that holds all images, but {len(outside)} of {len(images)} lie outside, "
            f"as {outside[0]}."
        )


def brush_rle(mask: NDArray[np.bool_]) -> list[int]:
    """A mask (H, W) as the bytes of Label Studio's brush: its rows as RGBA pixels, in runs of equal values.

    A bit stream: how many values (32 bits), bits of a value less 1 (5), four sizes less 1 (4 bits each); then for each run
    a 1, which of the sizes its length has (2 bits), the length less 1, and the value.

    Examples
    --------
    >>> brush_rle(np.array([[False, True]]))
    [0, 0, 0, 8, 57, 181, 124, 48, 8, 127, 224]
    """
    bits = [f"{4 * mask.size:032b}{8 - 1:05b}", *(f"{size - 1:04b}" for size in SIZES)]
    for place, count in enumerate(run_lengths(mask.T)):  # of 0, 1, 0, … along the rows
        length, value = 4 * count, 255 * (place % 2)
        for part in [LONGEST] * (length // LONGEST) + [length % LONGEST] * (length % LONGEST > 0):
            choice = next(index for index, size in enumerate(SIZES) if part <= 1 << size)
            bits.append(f"1{choice:02b}{part - 1:0{SIZES[choice]}b}{value:08b}")
    stream = "".join(bits)
    n_bytes = -(-len(stream) // 8)
    return list(int(stream.ljust(8 * n_bytes, "0"), 2).to_bytes(n_bytes, "big"))


def _url(image: Image, root: Path) -> str:
    assert image.file is not None
    return "/data/local-files/?d=" + quote(image.file.relative_to(root).as_posix())


def _answer(name: str, kind: str, control: str, score: float, value: dict[str, Any], **size: int) -> dict[str, Any]:
    return {"id": name, "type": kind, "from_name": control, "to_name": IMAGE, **size, "score": score, "value": value}


def _box(image: Image, found: Finding) -> dict[str, Any]:
    """In percent of the image."""
    x, width = (100 * side / image.width for side in (found.x, found.width))
    y, height = (100 * side / image.height for side in (found.y, found.height))
    return {"x": x, "y": y, "width": width, "height": height, "rotation": 0}
