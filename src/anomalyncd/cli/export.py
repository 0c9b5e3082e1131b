"""`anomalyncd export`: the results in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import SettingsError
from . import options as opt
from .commands import app
from .show import counted, quoted

if TYPE_CHECKING:
    from ..export import Exported
    from ..progress import Silent

MOST_NAMES = 5  # of missing files that are printed; export.json lists them all


@app.command("export")
def export(
    run: opt.Run,
    format: Annotated[
        str, typer.Option("--format", help="csv, coco, labelstudio, fiftyone, folders, onnx or openvino.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write, RUN/export/FORMAT by default.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="labelstudio: folder that it serves; above the images' folder by default.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="folders: link images instead of copying them.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="openvino: 8-bit numbers, smaller and faster.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="IMAGES", help="int8: images to take ranges from; the run's by default.")
    ] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write the results of RUN in the format of another tool, or its model for machines without torch."""
    from ..export import MARKER, NETWORKS, check_format, export_run

    check_format(format)
    progress = opt.make_progress(quiet)
    if format in NETWORKS:
        if root is not None or link:
            raise SettingsError(f"--root and --link are about images, so they do not go with --format {format}.")
        _export_networks(run, format, out, int8, calibration, progress)
        return
    if int8 or calibration is not None:
        raise SettingsError(f"--int8 and --calibration are about networks, so they do not go with --format {format}.")
    found = export_run(run, format, out, root=root, link=link, progress=progress)
    typer.echo(f"{counted(found.n_images, 'image')}, {counted(found.n_regions, 'region')}: {found.folder}")
    left_out = ", left out" if format == "folders" else ""
    for names, why in (
        (found.missing, f"file gone since the run was made{left_out}"),
        (found.without_file, "array without a file, left out"),
    ):
        if names:
            shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
            progress.warn(f"{counted(len(names), 'image')} ({why}): {shown}. All are in {found.folder / MARKER}")
    typer.echo(f"Next: {_next(format, found)}")


def _export_networks(
    run: Path, format: str, out: Path | None, int8: bool, calibration: Path | None, progress: Silent
) -> None:
    from ..export.networks import export_networks

    found = export_networks(run, format, out, int8=int8, calibration=calibration, progress=progress)
    if found.detector and not found.has_detector:
        progress.warn(f"{found.detector} is not exported: the runtime must be given maps that it made of new images.")
    if not found.refitted:
        progress.warn(
            "less than half of the run's images are where they were, so the unknown score was not fitted to int8: more "
            "images than before may be called unknown."
        )
    if found.as_float:
        progress.warn(
            f"{' and '.join(found.as_float)}: no images or crops to take the ranges of int8 from, so this stays float32. "
            "Give some with --calibration."
        )
    typer.echo(f"{found.n_bytes / 1e6:.1f} MB: {found.folder}")
    given = "" if found.has_detector else " --maps MAPS" if found.detector else " --maps MAPS (or --masks MASKS)"
    typer.echo(f"Next: anomalyncd predict {quoted(found.folder)} NEW_IMAGES{given} --out new.csv   (needs no torch)")


def _next(format: str, found: Exported) -> str:
    folder = found.folder
    if format == "csv":
        return f"open {quoted(folder / 'images.csv')} in a spreadsheet, one row an image."
    if format == "coco":
        return f'python -c "from pycocotools.coco import COCO; COCO({str(folder / "annotations.json")!r})"'
    if format == "labelstudio":
        return (
            "LOCAL_FILES_SERVING_ENABLED=true "
            f"LOCAL_FILES_DOCUMENT_ROOT={quoted(found.root or folder)} label-studio\n"
            f"      then paste {quoted(folder / 'interface.xml')} as the labelling interface of a project, and import "
            f"{quoted(folder / 'tasks.json')}."
        )
    if format == "fiftyone":
        return (
            f"fiftyone app view --dataset-dir {quoted(folder)} --type fiftyone.types.FiftyOneImageDetectionDataset "
            "--kwargs data_path=data.json"
        )
    return f"look into {quoted(folder)}, a folder a class."
