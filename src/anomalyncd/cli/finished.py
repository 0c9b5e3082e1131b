"""Commands that take a finished run: new images into it, its results out of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import AnomalyNCDError, RunError, SettingsError
from ..labels import NOT_THIS_PRODUCT, default_name
from ..run.folder import EXPORT, IMAGES_TABLE, OWN, REPORT
from . import options as opt
from .show import counted, draw, quoted, show_counts, show_evaluation

if TYPE_CHECKING:
    from ..export import Exported
    from ..progress import Silent
    from ..run.finished import FinishedRun
    from ..runtime import Runtime

MOST_NAMES = 5  # of missing files that are printed; export.json lists them all
PRECISIONS = ("auto", "float32", "bfloat16")


def predict(
    run: opt.RunOrExport,
    images: opt.Images,
    out: Annotated[
        Path,
        typer.Option(
            help="Table to write, .csv or .parquet; regions go beside it. No ending: a folder of both as Parquet."
        ),
    ],
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    device: opt.Device = "auto",
    precision: opt.Precision = "auto",
    engine: opt.EngineName = "local",
    workers: opt.Workers = None,
    address: opt.Address = None,
    page: Annotated[Path | None, typer.Option(help="Page of a day (HTML) to write too, see `day`.")] = None,
    quote_formulas: opt.QuoteFormulas = False,
    quiet: opt.Quiet = False,
) -> None:
    """Class new IMAGES with the model of a run."""
    from ..export.cells import safe_cells
    from ..paths import resolved
    from ..steps.tables import check_places, open_tables, places

    if not opt.check_engine(engine, workers, address):
        check_places(out)
    if (page is not None or quote_formulas) and engine == "ray":
        raise SettingsError("--page and --quote-formulas go with --engine local.")
    if page is not None:
        from ..day.html import check_page

        check_page(page)
        if not out.suffix:
            raise SettingsError(f"{out}: --page is drawn from a .csv or .parquet table: give --out such an ending.")
    if quote_formulas and out.suffix.lower() != ".csv":
        raise SettingsError(f"{out}: --quote-formulas is about .csv tables.")
    image_place, regions = places(out)
    read = {resolved(Path(path)) for path in (run, images, maps, masks) if path is not None}
    read |= {resolved(run / name) for name in OWN if name != EXPORT}
    for path in (out, image_place, regions, *([page] if page else [])):
        if resolved(path) in read:
            raise SettingsError(f"{path}: this would be written over what is read. Choose another place for --out.")
    progress = opt.make_progress(quiet)
    # Ray's workers have devices of their own; what starts them needs none.
    model = load_fitted(run, device if engine == "local" else "cpu", precision, progress, exported=engine == "local")
    inputs = model.gather(images, maps, masks)
    for note in inputs.notes:
        progress.warn(note)
    if engine == "ray":
        from ..ray.engine import predict_with_ray

        image_place, regions, n_skipped, counts = predict_with_ray(
            run, inputs, out, progress, workers=workers, address=address, device=device, precision=precision
        )
    else:
        counts, n_skipped = Counter[str](), 0
        if not out.suffix:
            inputs.check_outside(out, run)
        with open_tables(out) as (image_table, region_table):
            for found in model.predictor(bare=inputs.is_bare).stream(inputs, progress):
                region_table.add(safe_cells(found.regions) if quote_formulas else found.regions)
                image_table.add(safe_cells(found.images) if quote_formulas else found.images)
                counts.update(found.images["class_name"])
                n_skipped += len(found.skipped)
    show_counts(counts)
    typer.echo(f"\n{image_place} and {regions}; {counted(n_skipped, 'file')} skipped.")
    if page is not None:
        from ..day.html import write_day
        from ..day.source import read_table

        write_day(read_table(out, time="file", root=inputs.root), page)
        typer.echo(str(page))


def evaluate(
    run: opt.Run,
    labels: Annotated[Path | None, typer.Option(help="CSV with the columns image and label.")] = None,
    normal_label: Annotated[list[str] | None, typer.Option(help="Name of the normal class. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")] = False,
) -> None:
    """Compare the classes of a run with true labels: NMI, ARI, F1, calibration error and the confusion matrix."""
    from ..run.evaluate import evaluate_run

    found, n_skipped = evaluate_run(run, labels, normal_label)
    if as_json:
        typer.echo(json.dumps({**found.to_json_dict(), "n_skipped": n_skipped}))
        return
    show_evaluation(found)
    typer.echo(
        f"{counted(found.n_images, 'image')} with a true label, {counted(n_skipped, 'file')} skipped. All of them: "
        f"{run / 'images.csv'}"
    )


def update(
    run: opt.Run,
    images: Annotated[
        str | None, typer.Argument(metavar="IMAGES", help="As for `discover`; may be left out with --normal.")
    ] = None,
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    exclude: opt.Exclude = None,
    known: opt.Known = None,
    normal: Annotated[
        str | None,
        typer.Option(help="False alarms and other normal images for the run's detector; says what this would change."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="With --normal: keep it, rather than only say it.")] = False,
    device: opt.Device = "auto",
    engine: opt.EngineName = "local",
    workers: opt.Workers = None,
    address: opt.Address = None,
    quiet: opt.Quiet = False,
) -> None:
    """Take new IMAGES into RUN: its classes keep their numbers and names, and new ones open where unknowns gather."""
    from ..estimator import AnomalyNCD
    from ..run.finished import FinishedRun

    progress = opt.make_progress(quiet)
    if normal is not None:
        _learn_normal(run, normal, device, apply, progress)
    if images is None:
        if normal is None:
            raise SettingsError("give IMAGES to take in, or --normal with images to learn as normal.")
        return
    model = AnomalyNCD.load(run, device=device, progress=progress)
    inputs = model.run_.gather(images, maps, masks, exclude or ())
    for note in inputs.notes:
        progress.warn(note)
    opt.warn_of_unknown(exclude, images, progress)
    inputs.check_outside(run)
    with opt.engine_of(engine, workers, address, device, progress) as model.engine:
        found = model.update(inputs, known=known)
    if found.known:
        typer.echo(f"{counted(len(found.known), 'image')} in the run already, left as they are")
    typer.echo(
        f"{counted(found.n_images, 'new image')} with {counted(found.n_regions, 'region')}, "
        f"{counted(len(found.skipped), 'file')} skipped"
    )
    names = model.model_.names
    for label, size in found.opened.items():
        typer.echo(f"New: {names[label]}, {counted(size, 'region')}")
    for (before, after), count in Counter((move.before, move.after) for move in found.moved).most_common():
        was, now = (names.get(label, default_name(label)) for label in (before, after))
        typer.echo(f"Moved: {counted(count, 'region')} from {was} to {now}")
    if found.foreign:
        some = ", ".join(found.foreign[:3]) + ", …" * (len(found.foreign) > 3)
        typer.echo(f"{NOT_THIS_PRODUCT.capitalize()}: {counted(len(found.foreign), 'image')} ({some})")
    if found.unknown:
        typer.echo(f"Unknown still: {counted(found.unknown, 'region')}, too few alike to be a class")
    drawn = run / REPORT  # of the tables before, where a call was killed between the two
    if not found.n_images and drawn.exists() and drawn.stat().st_mtime_ns >= (run / IMAGES_TABLE).stat().st_mtime_ns:
        return
    typer.echo("\nThe run now holds:")
    show_counts(model.images_["class_name"])
    draw(FinishedRun(run), progress)
    typer.echo(f"Next: anomalyncd review {quoted(run)}   (look at what is new, and name it)")


def _learn_normal(run: Path, normal: str, device: str, apply: bool, progress: Silent) -> None:
    from ..data.gather import gather_normal
    from ..steps.normal import learn_normal

    found = learn_normal(run, gather_normal(normal), progress, device=device, apply=apply)
    typer.echo(
        f"{counted(found.n_normal, 'image')} learned as normal. Of {counted(found.n_defective, 'image')} that the run calls "
        f"defective, {len(found.turned)} would score like normal ones{': ' if found.turned else ''}"
        f"{', '.join(found.turned[:MOST_NAMES])}{', …' * (len(found.turned) > MOST_NAMES)}"
    )
    if found.lost:
        some = ", ".join(found.lost[:MOST_NAMES])
        progress.warn(
            f"{counted(len(found.lost), 'known defect')} would be lost: {some}. Look at the normal images again."
        )
    typer.echo("The run's detector has learned it." if apply else "Nothing was changed: call it again with --apply.")


def report(
    run: opt.Run,
    no_attention: Annotated[
        bool, typer.Option("--no-attention", help="Without attention pictures, which need the backbone.")
    ] = False,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write report.html into a run folder: one file that needs no network."""
    from ..report.html import write_report
    from ..run.finished import FinishedRun

    found = FinishedRun(run)
    try:
        path = write_report(found, opt.make_progress(quiet), attention=not no_attention)
    except AnomalyNCDError:  # of which some are OSErrors
        raise
    except OSError as error:
        raise RunError(
            f"{run}: cannot write the report ({error.strerror or error}). Make room or mend the permission."
        ) from error
    typer.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    if browse:
        typer.launch(path.absolute().as_uri())
    typer.echo(f"Next: anomalyncd review {quoted(run)}")


def export(
    run: opt.Run,
    format: Annotated[
        str,
        typer.Option(help="csv, parquet, xlsx, coco, yolo, voc, labelstudio, fiftyone, folders, onnx or openvino."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write, RUN/export/FORMAT by default.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="labelstudio: folder that it serves; above the images' folder by default.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="folders, yolo, voc: link images instead of copying them.")
    ] = False,
    quote_formulas: opt.QuoteFormulas = False,
    int8: Annotated[bool, typer.Option("--int8", help="openvino: 8-bit numbers, smaller and faster.")] = False,
    calibration: Annotated[
        str | None, typer.Option(metavar="IMAGES", help="int8: images to take ranges from; the run's by default.")
    ] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write the results of RUN in the format of another tool, or its model for machines without torch."""
    from ..export import COPIES, MARKER, NETWORKS, check_format, export_run

    check_format(format)
    progress = opt.make_progress(quiet)
    if format in NETWORKS:
        if root is not None or link or quote_formulas:
            raise SettingsError(
                f"--root, --link and --quote-formulas are about images and tables, so they do not go with --format {format}."
            )
        _export_networks(run, format, out, int8, calibration, progress)
        return
    if int8 or calibration is not None:
        raise SettingsError(f"--int8 and --calibration are about networks, so they do not go with --format {format}.")
    found = export_run(run, format, out, root=root, link=link, quote=quote_formulas, progress=progress)
    typer.echo(f"{counted(found.n_images, 'image')}, {counted(found.n_regions, 'region')}: {found.folder}")
    left_out = ", left out" if format in COPIES else ""
    for names, why in (
        (found.missing, f"file gone since the run was made{left_out}"),
        (found.without_file, "array without a file, left out"),
    ):
        if names:
            shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
            progress.warn(f"{counted(len(names), 'image')} ({why}): {shown}. All are in {found.folder / MARKER}")
    typer.echo(f"Next: {_next(format, found)}")


def _export_networks(
    run: Path, format: str, out: Path | None, int8: bool, calibration: str | None, progress: Silent
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
    if format == "xlsx":
        return f"open {quoted(folder / 'results.xlsx')} in a spreadsheet."
    if format == "yolo":
        return f"yolo detect train data={quoted(folder / 'data.yaml')}   (after you have put images for `val` apart)"
    if format == "voc":
        return f"look into {quoted(folder / 'Annotations')}, a file an image."
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
    of = "table, for pandas, DuckDB or Spark" if format == "parquet" else "class"
    return f"look into {quoted(folder)}, a folder a {of}."


def load_fitted(
    run: Path, device: str, precision: str, progress: Silent, *, exported: bool = True
) -> FinishedRun | Runtime:
    """A run or, if `exported` ones are taken, an export of one, ready for new images; only what is needed is imported."""
    from ..runtime import Runtime, is_exported

    if precision not in PRECISIONS:
        raise SettingsError(f"--precision must be one of {', '.join(PRECISIONS)}, but got {precision!r}.")
    if is_exported(run):
        if not exported or device not in ("auto", "cpu"):
            raise SettingsError(
                f"{run} is an exported run: it is used on this processor, without --engine and --device."
            )
        return Runtime(run, precision="bfloat16" if precision == "bfloat16" else "float32", progress=progress)
    from ..model.device import choose_device
    from ..run.finished import FinishedRun

    choose_device(device)
    return FinishedRun(run, device=device, precision=precision)
