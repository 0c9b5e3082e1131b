"""Results of a run in the formats of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, SettingsError
from ..paths import path_of
from ..places.names import file_named, is_file, look_up
from ..places.stored import File, Stored
from ..progress import Silent
from ..run.finished import FinishedRun
from ..run.folder import RunFolder
from ..run.writer import check_table
from ..steps.data_sets import find_tables, read_pieces, write_data_sets
from ..steps.tables import PART
from . import boxes, formats
from .cells import safe_cells
from .source import Results
from .target import MARKER, check_outside, whole_folder, write_json
from .xlsx import check_xlsx, write_xlsx

FORMATS = ("csv", "parquet", "xlsx", "coco", "yolo", "voc", "labelstudio", "fiftyone", "folders")
COPIES = ("folders", "yolo", "voc")  # those that hold the images themselves
NETWORKS = ("onnx", "openvino")  # not results but the model, see `networks.export_networks`

__all__ = ["COPIES", "FORMATS", "MARKER", "NETWORKS", "Exported", "check_format", "export_run"]


@dataclass(frozen=True)
class Exported:
    """What was written.

    folder : holds the export
    root : the folder that Label Studio must serve; None for other formats
    missing : names of images whose file is gone: listed by the formats that refer to it, left out of `folders`
    without_file : names of images that were arrays, which the formats that need a file leave out
    """

    folder: Path
    n_images: int
    n_regions: int
    root: Path | None
    missing: list[str]
    without_file: list[str]


def check_format(format: str) -> None:
    """Fail with the list of formats."""
    if format not in (*FORMATS, *NETWORKS):
        raise SettingsError(f"--format {format}: expected one of {', '.join((*FORMATS, *NETWORKS))}.")


def export_run(
    run: Path,
    format: str,
    out: Path | None = None,
    *,
    root: Path | None = None,
    link: bool = False,
    quote: bool = False,
    progress: Silent | None = None,
) -> Exported:
    """Write the results of a finished run in another format, whole or not at all.

    Parameters
    ----------
    format : one of `FORMATS`; `parquet` takes a folder of `anomalyncd detect` too, and holds no table whole in memory
    out : folder to write, `export/<format>` in the run folder by default; new, empty, or an earlier export of this format
    root : for `labelstudio`: the folder that it serves, by default the one above the images' common folder
    link : for `folders`, `yolo` and `voc`: links instead of copies
    quote : for `csv`: an apostrophe before texts that a spreadsheet would compute
    """
    check_format(format)
    if root is not None and format != "labelstudio":
        raise SettingsError(f"--root says which folder Label Studio serves, so it does not go with --format {format}.")
    if link and format not in COPIES:
        raise SettingsError(f"--link is about copies of images, so it does not go with --format {format}.")
    if quote and format != "csv":
        raise SettingsError(
            f"--quote-formulas is about the cells of a CSV file, so it does not go with --format {format}."
        )
    if format == "xlsx":
        check_xlsx()
    out = out or run / "export" / format
    if format == "parquet":
        return _export_data_sets(run, out)
    finished = FinishedRun(run)
    results = Results(finished)
    check_outside(out, finished.folder, ((image.name, image.file) for image in results.images))

    needs_file = format in ("labelstudio", "fiftyone", *COPIES)
    images = [image for image in results.images if image.file is not None or not needs_file]
    if format in ("labelstudio", "fiftyone") and any(isinstance(image.file, Stored) for image in images):
        raise DataError(
            f"{run}: its images lie in an archive or a store, and {format} opens files of this machine. Take --format yolo, "
            "which copies them, or coco."
        )
    if not images:
        raise DataError(
            f"{run}: was made from arrays, and {format} needs image files. Give `fit` paths or a folder, or take "
            "--format coco."
        )
    look_up(image.file for image in images if needs_file and image.file)
    missing = [image.name for image in images if needs_file and image.file and not is_file(image.file)]
    without_file = [image.name for image in results.images if image.file is None and needs_file]
    if format == "labelstudio":
        root = formats.labelstudio_root(images, root)

    notes: dict[str, Any] = {"run": str(run.absolute()), "missing": missing, "without_file": without_file}
    n_steps = 0 if format in ("csv", "fiftyone") else len(images)  # those look into no image, and need no bar
    with (progress or Silent()).task("Export", n_steps) as advance, whole_folder(out, format, notes) as folder:
        if format == "csv":
            for name, table in formats.csv(finished).items():
                table = safe_cells(table) if quote else table
                table.to_csv(folder / name, index=False, lineterminator="\n", encoding="utf-8")
        elif format == "coco":
            write_json(folder / "annotations.json", formats.coco(results, advance))
        elif format == "labelstudio":
            assert root is not None
            write_json(folder / "tasks.json", formats.labelstudio_tasks(results, images, root, advance))
            interface = formats.labelstudio_interface(results)
            (folder / "interface.xml").write_text(interface, encoding="utf-8", newline="\n")
        elif format == "fiftyone":
            for name, content in formats.fiftyone(results, images).items():
                write_json(folder / name, content)
        elif format == "xlsx":
            missing[:] = write_xlsx(folder / "results.xlsx", formats.csv(finished), images, advance)
        else:
            write = {"folders": formats.copy_images, "yolo": boxes.yolo, "voc": boxes.voc}[format]
            missing[:] = write(results, images, folder, link, advance)
    gone = set(missing) if format in COPIES else set()
    written = [image for image in images if image.name not in gone]
    n_regions = len(finished.regions) if format in ("csv", "xlsx") else sum(len(image.findings) for image in written)
    return Exported(out, len(written), n_regions, root, missing, without_file)


def _export_data_sets(run: Path, out: Path) -> Exported:
    """All tables as Parquet, some rows at a time: of a million images none should be whole in memory."""
    check_table(out / PART)
    folder = RunFolder(path_of(run, "run"))
    tables = find_tables(folder)
    check_outside(out, folder, _files(tables))
    with whole_folder(out, "parquet", {"run": str(run.absolute())}) as partial:
        counts = write_data_sets(tables, partial)
    n_images = counts.get("images", counts.get("scores", 0))
    return Exported(out, n_images, counts.get("regions", 0), None, [], [])


def _files(tables: dict[str, Path]) -> Iterator[tuple[str, File | None]]:
    """Names of images, and where they lay."""
    for table in read_pieces(tables["manifest"]) if "manifest" in tables else ():
        for name, file in zip(table["image"], table["file"], strict=True) if "file" in table else ():
            yield name, file_named(file).absolute() if isinstance(file, str) else None
