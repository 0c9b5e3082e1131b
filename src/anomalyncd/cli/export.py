"""`anomalyncd export`: the results in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as opt
from .commands import app
from .show import counted, quoted

if TYPE_CHECKING:
    from ..export import Exported

MOST_NAMES = 5  # of missing files that are printed; export.json lists them all


@app.command("export")
def export(
    run: opt.Run,
    format: Annotated[str, typer.Option("--format", help="csv, coco, labelstudio, fiftyone or folders.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write, RUN/export/FORMAT by default.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="labelstudio: folder that it serves; above the images' folder by default.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="folders: link images instead of copying them.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write the results of RUN in the format of another tool."""
    from ..export import MARKER, check_format, export_run

    check_format(format)
    progress = opt.make_progress(quiet)
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
