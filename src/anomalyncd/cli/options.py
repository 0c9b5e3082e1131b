"""Options that several commands share, and how they become settings. Heavy imports wait until a command runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SettingsError
from ..studio.as_job import JOB, PROGRESS

if TYPE_CHECKING:
    from ..blocks.engine import Engine
    from ..progress import Terminal

# Names of places are text: a Path would take s3://bucket for s3:/bucket.
Images = Annotated[
    str,
    typer.Argument(
        metavar="IMAGES",
        help="A folder of images or of class folders, a CSV or Parquet table, tar archives, or s3://bucket/folder.",
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `discover`.")]
RunOrExport = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Run folder of `discover`, or a folder of `export --format onnx|openvino`."),
]
Maps = Annotated[str | None, typer.Option(help="Folder of anomaly maps (NPY, TIFF, PNG), named as the images.")]
Masks = Annotated[str | None, typer.Option(help="Folder of masks instead of maps; an image without one is normal.")]
Exclude = Annotated[list[str] | None, typer.Option(metavar="CLASS", help="Class folder to leave out. Repeatable.")]
DetectorName = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help="Makes the maps: musc (default), patchcore (default with --normal), efficientad, rd++, pni, cpr, "
        "anomalib:Model, module:Class.",
    ),
]
Normal = Annotated[str | None, typer.Option(help="Folder of images of normal products, for all detectors but musc.")]
NormalMaps = Annotated[
    str | None,
    typer.Option(
        help="With --maps: maps of normal products, which tell how normal ones score (their images: --normal)."
    ),
]
Known = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|TABLE|RUN",
        help="Kinds with names: class folders, a table of image and label, or a reviewed run. Others are found beside them.",
    ),
]
Ignore = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where nothing is looked for: a mask of a reference image, white there; or JSON with polygons.",
    ),
]
Sensitivity = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of normal images that may be called defective, 0.02 by default. Another share re-labels a finished run "
        "in seconds.",
    ),
]
Tile = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Cut large images into overlapping tiles of N pixels.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")]
Host = Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="ANOMALYNCD_TOKEN", help="Secret that clients must send; `auto` makes one.", show_envvar=True),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of settings.")]
Preset = Annotated[str | None, typer.Option(help="fast (default) or paper.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random choice, 0 by default.")]
Backbone = Annotated[str | None, typer.Option(help="auto, a name of `weights list`, or a ViT of timm.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
DeviceOrSetting = Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")]
Precision = Annotated[
    str, typer.Option(help="float32 or bfloat16; auto is bfloat16 on a GPU that has it, else float32.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as learn.epochs=10. Repeatable.")
]
QuoteFormulas = Annotated[
    bool,
    typer.Option(
        "--quote-formulas", help="An apostrophe before texts that begin with = + - @, which spreadsheets compute."
    ),
]
EngineName = Annotated[str, typer.Option("--engine", help="local (one process) or ray (many, here or on a cluster).")]
Workers = Annotated[int | None, typer.Option(min=1, help="With ray: processes, one for each CPU by default.")]
Address = Annotated[str | None, typer.Option(help="With ray: of a cluster; by default this machine.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def layered(
    config: Path | None, settings: Sequence[str] | None, *, backbone: str | None = None, **options: Any
) -> dict[str, Any]:
    """Settings of the YAML file, of --set and of single options, later ones winning; None is an option not given."""
    from ..config import merge_layers
    from ..settings_text import parse_setting, read_config

    return merge_layers(
        read_config(config) if config else {},
        *(parse_setting(text) for text in settings or ()),
        {name: value for name, value in options.items() if value is not None},
        {"model": {"backbone": backbone}} if backbone else {},
    )


def detector_layer(name: str | None, tile: int | None) -> dict[str, Any]:
    """What --detector and --tile set."""
    if tile is None:
        return {"detect": {"name": name}} if name else {}

    from ..detect import DETECTORS

    if name not in DETECTORS:
        raise SettingsError(f"--tile works with {', '.join(DETECTORS)}, but the detector is {name or 'none'}.")
    return {"detect": {"name": name, "settings": {"tile": tile}}}


def ignore_layer(path: Path | None) -> dict[str, Any]:
    """What --ignore sets."""
    if path is None:
        return {}

    from ..binarize.ignore import read_ignored

    return {"ignore": read_ignored(path)}


def n_classes(value: Any) -> int | str:
    """--classes as a number, or auto."""
    if value is None or value == "auto":
        return "auto"
    try:
        return int(str(value))
    except ValueError:
        raise SettingsError(f"--classes must be a whole number or auto, but got {value!r}.") from None


def warn_of_unknown(exclude: Sequence[str] | None, images: str, progress: Terminal) -> None:
    """A misspelt class to leave out is left in, so this must be said."""
    if not exclude:
        return

    from ..data import load_dataset

    there = [{sample.label, sample.id.split("/")[0]} for sample in load_dataset(images, with_maps=False)]
    if unknown := set(exclude).difference(*there):
        progress.warn(f"--exclude {', '.join(sorted(unknown))}: no class of this name among the images.")


def check_engine(name: str, workers: int | None, address: str | None) -> bool:
    """Whether work goes to Ray."""
    if name not in ("local", "ray"):
        raise SettingsError(f"--engine must be local or ray, but got {name!r}.")
    if name == "local" and (workers is not None or address is not None):
        raise SettingsError("--workers and --address go with --engine ray.")
    return name == "ray"


def engine_of(name: str, workers: int | None, address: str | None, device: str | None, progress: Terminal) -> Engine:
    """What does the work on images, to be closed in the end."""
    if not check_engine(name, workers, address):
        from ..blocks.engine import Engine

        return Engine()

    from ..ray.pool import RayEngine

    return RayEngine(workers, address, device or "auto", progress)


def make_progress(quiet: bool) -> Terminal:
    """Bars on standard error, or warnings only; a file where the studio has started this command."""
    from ..progress import Recorded, Terminal

    job = os.environ.get(JOB)
    progress = Recorded(Path(job) / PROGRESS) if job else Terminal(bars=not quiet)
    progress.call = shlex.join(["anomalyncd", *sys.argv[1:]])
    return progress
