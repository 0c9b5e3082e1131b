"""The commands: options in, one call, and what `show` prints. Heavy imports wait until a command runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import SettingsError
from . import options as opt
from . import weights
from .show import counted, quoted, show_counts, show_detection, show_evaluation, show_run

app = typer.Typer(
    help="Sort product defects into classes that nobody has named yet.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip


@app.command()
def discover(
    images: opt.Images,
    out: Annotated[Path, typer.Option(help="Run folder to write; call again to resume.")],
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    base: Annotated[Path | None, typer.Option(help="Labelled defects of other products: images/ and masks/.")] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="N", help="How many classes to find, normal counted; auto by default.")
    ] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="All images have a defect.")] = False,
    exclude: opt.Exclude = None,
    detector: opt.DetectorName = None,
    normal: opt.Normal = None,
    tile: opt.Tile = None,
    config: opt.ConfigFile = None,
    preset: opt.Preset = None,
    seed: opt.Seed = None,
    backbone: opt.Backbone = None,
    device: opt.Device = None,
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """Find defect classes in IMAGES and write a run folder."""
    from ..config import make_config, merge_layers
    from ..data.gather import gather
    from ..estimator import AnomalyNCD

    opt.not_both(maps, masks)
    given_maps = maps is not None or masks is not None
    if given_maps and (detector or normal or tile):
        raise SettingsError("--detector, --normal and --tile make maps, so they do not go with --maps or --masks.")
    given = merge_layers(
        opt.layered(
            config, settings, backbone=backbone, n_classes=classes, preset=preset, random_state=seed, device=device,
            has_normal=False if no_normal else None,
        ),
        {"detect": {"name": None}} if given_maps else {},  # maps that are given outweigh a detector of the settings
    )  # fmt: skip
    given["n_classes"] = opt.n_classes(given.get("n_classes"))
    detector = detector or make_config(given).detect.name
    if tile is not None and detector is None:
        detector = "musc" if normal is None else "patchcore"
    progress = opt.make_progress(quiet)
    model = AnomalyNCD(progress=progress, **merge_layers(given, opt.detector_layer(detector, tile)))
    dataset = gather(images, maps, masks, exclude=exclude or (), bare=detector is not None or normal is not None)
    opt.warn_of_unknown(exclude, images, progress)
    if dataset.has_masks and (without := dataset.n_without_mask):
        progress.say(
            f"{len(dataset)} images, {without} of them without a mask file: "
            + ("taken as normal." if model.has_normal else "taken whole.")
        )
    model.fit(dataset, base=base, detector=detector, normal=normal, run=out)
    show_run(model, dataset.samples, out, progress)


@app.command()
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
        Path | None, typer.Option(help="True masks, to measure with; by default ground_truth/ beside test/.")
    ] = None,
    exclude: opt.Exclude = None,
    config: opt.ConfigFile = None,
    seed: opt.Seed = None,
    backbone: opt.Backbone = None,
    device: opt.Device = None,
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """Make anomaly maps and image scores of IMAGES, and measure them where the truth is known."""
    from ..config import make_config
    from ..data.gather import gather
    from ..discovery.detect import detect_images
    from ..run.detector import detector_config
    from ..run.evaluate import load_truth

    layer = opt.layered(config, settings, backbone=backbone, random_state=seed, device=device)
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
    found = detect_images(inputs, truth, chosen, out, progress, normal=normal, fitted=fitted)
    show_detection(found, images, out, exclude or [], truth.has_masks)


@app.command()
def predict(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder of `discover`, or a folder of `export --format onnx|openvino`."),
    ],
    images: opt.Images,
    out: Annotated[
        Path,
        typer.Option(help="Table to write, .csv or .parquet; regions go beside it. With ray also a folder of parts."),
    ],
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    precision: Annotated[
        str, typer.Option(help="float32 or bfloat16; auto is bfloat16 on a GPU that has it, else float32.")
    ] = "auto",
    engine: Annotated[str, typer.Option(help="local (one process) or ray (many, here or on a cluster).")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="With ray: processes, one for each CPU by default.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="With ray: of a cluster; by default this machine.")] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Class new IMAGES with the model of a run."""
    from ..run.writer import TableWriter, check_table
    from .fitted import load_fitted

    opt.not_both(maps, masks)
    if engine not in ("local", "ray"):
        raise SettingsError(f"--engine must be local or ray, but got {engine!r}.")
    if engine == "local":
        if workers is not None or address is not None:
            raise SettingsError("--workers and --address go with --engine ray.")
        check_table(out)
    regions = out.with_name(f"{out.stem}_regions{out.suffix}")
    opt.spare_inputs(out, regions, run=run, inputs=[path for path in (images, maps, masks) if path is not None])
    progress = opt.make_progress(quiet)
    # Ray's workers have devices of their own; what starts them needs none.
    model = load_fitted(run, device if engine == "local" else "cpu", precision, progress, exported=engine == "local")
    inputs = model.gather(images, maps, masks)
    for note in inputs.notes:
        progress.warn(note)
    if engine == "ray":
        from ..ray.engine import predict_with_ray

        done = predict_with_ray(
            run, inputs, out, progress, workers=workers, address=address, device=device, precision=precision
        )
        show_counts(done.counts)
        typer.echo(f"\n{done.images} and {done.regions}; {counted(done.n_skipped, 'file')} skipped.")
        return
    counts, n_skipped = Counter[str](), 0
    with TableWriter(out) as image_table, TableWriter(regions) as region_table:  # regions are closed first
        for found in model.predictor(bare=inputs.is_bare).stream(inputs, progress):
            region_table.add(found.regions)
            image_table.add(found.images)
            counts.update(found.images["class_name"])
            n_skipped += len(found.skipped)
    show_counts(counts)
    typer.echo(f"\n{out} and {regions}; {counted(n_skipped, 'file')} skipped.")


@app.command()
def evaluate(
    run: opt.Run,
    labels: Annotated[Path | None, typer.Option(help="CSV with the columns image and label.")] = None,
    normal_label: Annotated[list[str] | None, typer.Option(help="Name of the normal class. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")] = False,
) -> None:
    """Compare the classes of a run with true labels: NMI, ARI, F1 and the confusion matrix."""
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


@app.command()
def binarize(
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="Folder of anomaly maps (NPY, TIFF, PNG).")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
    method: Annotated[str | None, typer.Option(help="mebin (default), otsu or fixed.")] = None,
    no_normal: Annotated[bool, typer.Option("--no-normal", help="Every map shows a defect.")] = False,
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """Turn anomaly maps into masks with Main Element Binarization, and list their thresholds."""
    from ..config import make_config, parse_setting
    from ..discovery.masks import binarize_folder

    layers = [parse_setting(text) for text in settings or ()]
    options = {"binarize": {"method": method} if method else {}, **({"has_normal": False} if no_normal else {})}
    table = binarize_folder(maps, out, make_config(*layers, options), opt.make_progress(quiet))
    found = int((table["n_regions"] > 0).sum())
    typer.echo(f"{found} of {len(table)} maps have a region. Masks, and their thresholds in masks.csv: {out}")
    typer.echo(f"Next: anomalyncd discover IMAGES --masks {quoted(out)} --out RUN")


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


app.add_typer(weights.app, name="weights")


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
