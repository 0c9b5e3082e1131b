"""Boxes for programs that learn to find defects: YOLO and Pascal VOC, with the images beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from .formats import place_image, safe_name
from .source import Image, Results


def yolo(
    results: Results, images: Sequence[Image], folder: Path, link: bool, on_image: Callable[[], None]
) -> list[str]:
    """Images in images/, a text file for each in labels/, and data.yaml; returns the names of images whose file is gone.

    A line is a box: number of the class, then its middle and its size as shares of the image. A normal image has none.
    """
    classes = list(dict.fromkeys(results.defects.values()))
    missing: list[str] = []
    (folder / "labels").mkdir()
    for image, name in _placed(images, folder / "images", link, on_image, missing):
        lines = []
        for found in image.findings:
            x, y, width, height = found.share_of(image)
            figures = (x + width / 2, y + height / 2, width, height)
            lines.append(f"{classes.index(found.class_name)} " + " ".join(f"{figure:.6f}" for figure in figures) + "\n")
        (folder / "labels" / name).with_suffix(".txt").write_text("".join(lines), encoding="utf-8", newline="\n")
    names = "".join(f"  {number}: {json.dumps(name, ensure_ascii=False)}\n" for number, name in enumerate(classes))
    # Without `path`, folders are those beside the file. JSON's strings are YAML's. Nobody was told which images are for
    # training: a person divides them.
    text = f"train: images\nval: images\nnames:\n{names}"
    (folder / "data.yaml").write_text(text, encoding="utf-8", newline="\n")
    return missing


def voc(results: Results, images: Sequence[Image], folder: Path, link: bool, on_image: Callable[[], None]) -> list[str]:
    """JPEGImages/, Annotations/ and ImageSets/Main/default.txt; returns the names of images whose file is gone.

    Images keep their formats, whatever the folder is called. Corners count from 1, and the far one belongs to the box.
    """
    missing: list[str] = []
    stems = []
    (folder / "Annotations").mkdir()
    for image, name in _placed(images, folder / "JPEGImages", link, on_image, missing):
        root = ElementTree.Element("annotation")
        for tag, text in (("folder", "JPEGImages"), ("filename", name)):
            ElementTree.SubElement(root, tag).text = text
        size = ElementTree.SubElement(root, "size")
        for tag, number in (("width", image.width), ("height", image.height), ("depth", 3)):
            ElementTree.SubElement(size, tag).text = str(number)
        ElementTree.SubElement(root, "segmented").text = "0"
        for found in image.findings:
            one = ElementTree.SubElement(root, "object")
            for tag, text in (
                ("name", found.class_name),
                ("pose", "Unspecified"),
                ("truncated", "0"),
                ("difficult", "0"),
            ):
                ElementTree.SubElement(one, tag).text = text
            box = ElementTree.SubElement(one, "bndbox")
            corners = (found.x + 1, found.y + 1, found.x + found.width, found.y + found.height)
            for tag, number in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
                ElementTree.SubElement(box, tag).text = str(number)
        ElementTree.indent(root)
        stems.append(Path(name).stem)
        text = ElementTree.tostring(root, encoding="unicode") + "\n"
        (folder / "Annotations" / f"{stems[-1]}.xml").write_text(text, encoding="utf-8", newline="\n")
    sets = folder / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "default.txt").write_text("".join(f"{stem}\n" for stem in stems), encoding="utf-8", newline="\n")
    return missing


def _placed(
    images: Sequence[Image], folder: Path, link: bool, on_image: Callable[[], None], missing: list[str]
) -> Iterator[tuple[Image, str]]:
    """Each image whose file is there, and its name in a flat folder, where no two differ by their endings only."""
    folder.mkdir()
    taken: set[str] = set()
    for image in images:
        suffix = "" if image.file is None else image.file.suffix
        stem = safe_name(Path(image.name).with_suffix("").as_posix().replace(".", "_"), taken)
        if image.file is not None and place_image(image.file, folder / f"{stem}{suffix}", link):
            taken.add(stem.casefold())
            yield image, f"{stem}{suffix}"
        else:
            missing.append(image.name)
        on_image()
