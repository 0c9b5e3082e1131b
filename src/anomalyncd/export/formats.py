"""What the files of each format hold: tables of its own (csv), COCO, FiftyOne, Label Studio, and a folder for each class."""

from __future__ import annotations

import math
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import cv2
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .. import __version__
from ..data.files import begins_as_image
from ..data.run_lengths import run_lengths
from ..errors import SettingsError
from ..labels import UNKNOWN
from ..paths import resolved
from ..places.stored import File, Stored
from ..run.finished import FinishedRun
from ..run.tables import REGION_COLUMNS
from .source import Finding, Image, Results
from .target import MARKER

IMAGE_COLUMNS = (
    "image", "file", "width", "height", "label", "class_name", "probability", "classes", "n_regions", "unknown",
    "foreign", "false_alarm", "true_label",
)  # fmt: skip
CROWD = 1  # COCO: 0 where the segmentation is a list of polygons, 1 where it is run lengths
# Label Studio: names of the controls, in the interface and in each result.
IMAGE, CLASS, BOX, MASK = "image", "class", "box", "mask"
SIZES = (4, 7, 11, 16)  # bits for the length of a run in the brush's format, which offers four to choose from
LONGEST_RUN = 1 << SIZES[-1]
COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
)  # fmt: skip
LONGEST_NAME = 150  # bytes of a name; a file system takes 255
LONGEST_SUFFIX = 6
RESERVED = re.compile(r"^(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)  # devices on Windows


def csv(run: FinishedRun) -> dict[str, pd.DataFrame]:
    """images.csv and regions.csv, with columns that do not change from run to run, empty where the run has none.

    Images have `IMAGE_COLUMNS`, then p_… of each class; regions, false alarms included, `REGION_COLUMNS` and their crops.
    """
    images, manifest = run.images, run.manifest.drop_duplicates("image").set_index("image")
    for column in ("file", "width", "height"):
        if column in manifest:
            images = images.assign(**{column: images["image"].map(manifest[column])})
    images = images.reindex(columns=[*IMAGE_COLUMNS, *(name for name in images if str(name).startswith("p_"))])
    return {"images.csv": images, "regions.csv": run.regions.reindex(columns=[*REGION_COLUMNS, "crop"])}


def coco(results: Results, on_image: Callable[[], None]) -> dict[str, Any]:
    """Object detection with masks as run lengths; `annotations` is an iterator that reads one image's masks at a time."""
    return {
        "info": {"description": f"Defects found by anomalyncd {__version__}", "version": __version__},
        "licenses": [],
        "categories": [
            {"id": label, "name": name, "supercategory": "defect"} for label, name in results.defects.items()
        ],
        "images": [
            {"id": image.number, "file_name": image.name, "width": image.width, "height": image.height}
            for image in results.images
        ],
        "annotations": _annotations(results, on_image),
    }


def _annotations(results: Results, on_image: Callable[[], None]) -> Iterator[dict[str, Any]]:
    number = 0
    for image in results.images:
        for finding, mask in results.masks(image):
            number += 1
            yield {
                "id": number,
                "image_id": image.number,
                "category_id": finding.label,
                "segmentation": {"size": [image.height, image.width], "counts": run_lengths(mask)},
                "bbox": list(cv2.boundingRect(mask.astype(np.uint8))),
                "area": int(mask.sum()),
                "iscrowd": CROWD,
                "score": finding.probability,
            }
        on_image()


def fiftyone(results: Results, images: Sequence[Image]) -> dict[str, Any]:
    """FiftyOneImageDetectionDataset (labels.json) and FiftyOneImageClassificationDataset (image_labels.json).

    data.json has the file of each image by its key, off which FiftyOne cuts the ending. Boxes are shares of the image.
    """
    defects, classes = (list(dict.fromkeys(names.values())) for names in (results.defects, results.classes))
    data, regions, labels = {}, {}, {}
    for image in images:
        assert image.file is not None
        key = f"{image.number:06d}"
        data[key + image.file.suffix] = str(image.file)
        regions[key] = [_detection(image, found, defects) for found in image.findings]
        label = {"label": classes.index(image.class_name), "confidence": image.probability}
        labels[key] = {**label, "attributes": {"image": image.name}}
    return {
        "data.json": data,
        "labels.json": {"classes": defects, "labels": regions},
        "image_labels.json": {"classes": classes, "labels": labels},
    }


def _detection(image: Image, found: Finding, classes: list[str]) -> dict[str, Any]:
    attributes = {"region": found.region, "area": found.area, "score": found.score}
    if not math.isnan(found.unknown):
        attributes["unknown"] = found.unknown
    return {
        "label": classes.index(found.class_name),
        "bounding_box": found.share_of(image),
        "confidence": found.probability,
        "attributes": attributes,
    }


def labelstudio_tasks(
    results: Results, images: Sequence[Image], root: Path, on_image: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """One task an image, with two predictions to choose from: boxes and masks.

    images : all with a file inside `root`, the folder that Label Studio serves
    """
    for image in images:
        assert isinstance(image.file, Path)
        size = {"original_width": image.width, "original_height": image.height, "image_rotation": 0}
        choice = {"choices": [image.class_name]}
        answers = {
            control: [_answer(f"{image.number}-{CLASS}-{control}", "choices", CLASS, image.probability, choice)]
            for control in (MASK, BOX)
        }
        for found, mask in results.masks(image):
            brush: dict[str, Any] = {"format": "rle", "rle": brush_rle(mask)}
            x, y, width, height = found.share_of(image, 100)
            box = {"x": x, "y": y, "width": width, "height": height, "rotation": 0}
            for control, kind, value in ((MASK, "brushlabels", brush), (BOX, "rectanglelabels", box)):
                name, value = f"{image.number}-{found.region}-{control}", {**value, kind: [found.class_name]}
                answers[control].append(_answer(name, kind, control, found.probability, value, **size))
        url = "/data/local-files/?d=" + quote(image.file.relative_to(root).as_posix())
        yield {
            "data": {"image": url, "name": image.name},
            "predictions": [
                {"model_version": f"anomalyncd {__version__} {kind}", "score": image.probability, "result": result}
                for kind, result in (("masks", answers[MASK]), ("boxes", answers[BOX]))
            ],
        }
        on_image()


def labelstudio_interface(results: Results) -> str:
    """The labelling interface that the tasks need (XML)."""
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


def labelstudio_root(images: Sequence[Image], root: Path | None) -> Path:
    """The folder that Label Studio serves, which shows no file outside; by default the one above the images' common one."""
    files = [image.file for image in images if isinstance(image.file, Path)]
    try:
        root = (root or Path(os.path.commonpath([file.parent for file in files])).parent).absolute()
    except ValueError as error:
        raise SettingsError("the images lie on several drives: say with --root which folder is served.") from error
    if outside := [file for file in files if not file.is_relative_to(root)]:
        raise SettingsError(
            f"--root {root}: expected a folder that holds all images, but {len(outside)} of {len(images)} lie outside, "
            f"as {outside[0]}."
        )
    return root


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
        for part in [LONGEST_RUN] * (length // LONGEST_RUN) + [length % LONGEST_RUN] * (length % LONGEST_RUN > 0):
            choice = next(index for index, size in enumerate(SIZES) if part <= 1 << size)
            bits.append(f"1{choice:02b}{part - 1:0{SIZES[choice]}b}{value:08b}")
    stream = "".join(bits)
    n_bytes = -(-len(stream) // 8)
    return list(int(stream.ljust(8 * n_bytes, "0"), 2).to_bytes(n_bytes, "big"))


def _answer(name: str, kind: str, control: str, score: float, value: dict[str, Any], **size: int) -> dict[str, Any]:
    return {"id": name, "type": kind, "from_name": control, "to_name": IMAGE, **size, "score": score, "value": value}


def copy_images(
    results: Results, images: Sequence[Image], folder: Path, link: bool, on_image: Callable[[], None]
) -> list[str]:
    """Put each image into the folder of its class.

    Parameters
    ----------
    link : hard links where the file system allows, else symbolic ones, else copies

    Returns
    -------
    Names of the images whose file is gone or cannot be read.
    """
    names: dict[str | int, str] = {UNKNOWN: "unknown"}  # equal names are one class, but no other is taken for unknown
    taken = {MARKER, "unknown"}
    for class_name in dict.fromkeys(results.classes.values()):
        names[class_name] = safe_name(class_name, taken)
        taken.add(names[class_name].casefold())
    in_folder: dict[str, set[str]] = {name: set() for name in names.values()}
    missing = []
    for image in images:
        place = names[UNKNOWN if image.label == UNKNOWN else image.class_name]
        name = safe_name(image.name, in_folder[place])
        if image.file is not None and place_image(image.file, folder / place / name, link):
            in_folder[place].add(name.casefold())
        else:
            missing.append(image.name)
        on_image()
    return missing


def safe_name(name: str, taken: Collection[str] = ()) -> str:
    """A name for a file or folder that every system takes and that, in lower case (`casefold`), is not among those taken.

    Slashes become underscores, so it never leads out of its folder.

    Examples
    --------
    >>> safe_name("a/b"), safe_name("CON"), safe_name(".."), safe_name("Riß, 3 µm?")
    ('a_b', 'CON_', '_', 'Riß, 3 µm_')
    >>> safe_name("Crack/000.png", {"crack_000.png"})
    'Crack_000_2.png'
    """
    name = unicodedata.normalize("NFC", name).strip("/")
    name = "".join(letter if letter.isprintable() and letter not in '<>:"/\\|?*' else "_" for letter in name)
    name = name.rstrip(" .")
    suffix = PurePosixPath(name).suffix if len(PurePosixPath(name).suffix) <= LONGEST_SUFFIX else ""
    # Of a long name the end: there are the numbers.
    stem = name.removesuffix(suffix).encode("utf-8")[-LONGEST_NAME:].decode("utf-8", errors="ignore").strip(" .") or "_"
    stem = RESERVED.sub(r"\1_\2", stem)
    candidate, number = stem + suffix, 1
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem}_{number}{suffix}"
    return candidate


def place_image(source: File, target: Path, link: bool) -> bool:
    """Whether the file is an image, and so was placed; a table that somebody else made may name any other file."""
    if not begins_as_image(source):
        return False
    target.parent.mkdir(exist_ok=True)
    if isinstance(source, Stored):
        with source.open() as content, target.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        return True
    for make in (os.link, os.symlink) if link else ():
        try:
            make(resolved(source), target)
            return True
        except (OSError, NotImplementedError):
            continue  # another file system, or no right to
    shutil.copy2(source, target)
    return True
