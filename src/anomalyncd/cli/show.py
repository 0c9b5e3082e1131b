"""What commands print: results on standard output, whole lines, each ending with what to do next."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..data.dataset import Sample
    from ..discovery.model import DiscoveryModel
    from ..estimator import AnomalyNCD
    from ..metrics import Evaluation
    from ..progress import Terminal
    from ..run.finished import FinishedRun
    from ..steps.detect import DetectionRun

FEW = 5  # images of a class that is pointed out


def quoted(path: Path | str) -> str:
    """A path that can be pasted into a shell."""
    return shlex.quote(str(path))


def counted(number: int, noun: str) -> str:
    """`1 image`, `2 images`.

    Examples
    --------
    >>> counted(1, "file"), counted(0, "file")
    ('1 file', '0 files')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def figure(value: float | None) -> str:
    """Three digits, or a dash where there is nothing to measure."""
    return "–" if value is None else f"{value:.3f}"


def show(*what: Any) -> None:
    """Print text and tables."""
    from rich.console import Console

    # Into a file or pipe whole lines go, however long: nothing there breaks or cuts them.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(*what)


def show_counts(class_names: Iterable[str]) -> None:
    """How many images each class has, from the class of each image (or a Counter of these)."""
    typer.echo("\n".join(f"{count:6d}  {name}" for name, count in Counter(class_names).most_common()))


def show_evaluation(found: Evaluation) -> None:
    """Scores and the confusion matrix."""
    from rich.table import Table

    columns = {
        "NMI": found.nmi, "ARI": found.ari, "F1": found.f1, "calibration error": found.ece,
        "normal precision": found.normal_precision, "normal recall": found.normal_recall,
    }  # fmt: skip
    scores = Table(*columns, box=None, pad_edge=False)
    scores.add_row(*map(figure, columns.values()))
    matrix = Table("true \\ found", *map(str, found.pred_names), box=None, pad_edge=False)
    for name, row in zip(found.true_names, found.confusion, strict=True):
        matrix.add_row(str(name), *("·" if count == 0 else str(count) for count in row))
    show(scores, "", matrix, "")


def show_detection(found: DetectionRun, images: str, out: Path, excluded: list[str], has_masks: bool) -> None:
    """Metrics where there are any, what was skipped, and how to go on."""
    from rich.table import Table

    from ..data.lists import is_table

    metrics = found.metrics
    if metrics is not None:
        columns = {"image AUROC": metrics.image_auroc}
        if has_masks:
            columns |= {
                "pixel AUROC": metrics.pixel_auroc, "AUPRO": metrics.aupro, "box FPR": metrics.box_fpr,
                "box FNR": metrics.box_fnr,
            }  # fmt: skip
        table = Table("images", "defective", *columns, box=None, pad_edge=False)
        table.add_row(str(metrics.n_images), str(metrics.n_defective), *map(figure, columns.values()))
        show(table, "")
    n_images = len(found.scores) + len(found.skipped)
    typer.echo(
        f"{counted(n_images, 'image')}, {counted(len(found.skipped), 'file')} skipped; maps {found.seconds:.1f} s"
    )
    typer.echo("".join(f"  skipped {name}\n" for name in found.skipped), nl=False)
    typer.echo(f"Maps: {found.maps}, image scores: {out / 'scores.csv'}")
    without = "".join(f" --exclude {shlex.quote(name)}" for name in excluded)
    if is_table(images) and has_masks:  # its masks would outvote the maps
        going_on = f"--config {quoted(out / 'config.yaml')}{without} --out {quoted(out)}"
    else:
        going_on = f"--maps {quoted(found.maps)}{without} --out RUN"
    typer.echo(f"Next: anomalyncd discover {quoted(images)} {going_on}")


def show_run(model: AnomalyNCD, items: Sequence[Sample], out: Path, progress: Terminal) -> None:
    """What `discover` found in the items, with its pictures, and how to go on."""
    from ..run.finished import FinishedRun

    run = FinishedRun(out, given=items)
    show_counts(model.images_["class_name"])
    times = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in model.seconds_.items() if seconds >= 0.05)
    found = f"{counted(len(model.images_), 'image')}, {counted(len(model.regions_), 'region')}"
    typer.echo(f"\n{found}, {counted(len(model.skipped_), 'file')} skipped" + (f"; {times}" if times else ""))
    show_line(run)
    show_count(run)
    show_small(run)
    draw(run, progress)
    labels = "" if "true_label" in model.images_ else " --labels TABLE"
    typer.echo(f"Next: anomalyncd review {quoted(out)}   (name, merge and correct the classes)")
    typer.echo(f"  or: anomalyncd predict {quoted(out)} NEW_IMAGES {inputs_of(model.model_)}--out new.csv")
    typer.echo(f"  or: anomalyncd evaluate {quoted(out)}{labels}   (where the true classes are known)")


def inputs_of(model: DiscoveryModel) -> str:
    """Options that `predict` needs besides images, as the run was made."""
    if model.config.detect.name:
        return ""
    return "--masks MASKS " if model.binarizer is None else "--maps MAPS "


def show_line(run: FinishedRun) -> None:
    """What normal and defect mean in this run, where maps decide it."""
    known = run.model.false_alarms
    if known is None:
        return
    basis = {
        "normal images": f"{known.scores.count} normal images",
        "mixture": "the group of lowest scores, as no normal images were given",
    }
    rate = run.model.config.detect.false_alarms
    typer.echo(
        f"Expected false alarms: {rate:.1%} of normal images (from {basis[known.source]}; --sensitivity moves the line and "
        "re-labels in seconds)"
    )


def show_count(run: FinishedRun) -> None:
    """How the number of classes was found, where it was not given."""
    found = run.count
    if found is None:
        return
    from ..report.classes import count_sentence

    normal = " Normal comes on top." if found["normal"] else ""
    typer.echo(f"Number of classes. {count_sentence(found)}{normal}")


def show_small(run: FinishedRun) -> None:
    """Classes and groups of few images, which are easily overlooked."""
    from ..run.folder import GROUPS

    counts = run.images.loc[run.images["label"] > 0, "class_name"].value_counts()
    if few := [f"{name} ({counted(count, 'image')})" for name, count in counts.items() if count <= FEW]:
        typer.echo(f"Small classes: {', '.join(few)}")
    if len(run.outliers):
        sizes = run.outliers["group"].value_counts()
        typer.echo(
            f"Apart from all others: {counted(int((sizes > 1).sum()), 'small group')} and "
            f"{counted(int((sizes == 1).sum()), 'single region')}, perhaps rare kinds of defect: {run.path / GROUPS}"
        )


def draw(run: FinishedRun, progress: Terminal) -> None:
    """The pictures of a run, and where they are."""
    from ..report.classes import draw_class_sheets, draw_classes, draw_count
    from ..report.html import write_report
    from ..report.normal import draw_normal

    try:
        overview, pages = draw_classes(run), draw_class_sheets(run)
        count, normal, report = draw_count(run), draw_normal(run), write_report(run, progress)
    except OSError as error:  # all else is written, so this must not look like a failed run
        progress.warn(f"{run.path}: cannot draw the classes ({error.strerror or error}).")
        return
    if overview is not None:
        typer.echo(f"Look at the classes: {overview}")
    if pages:
        typer.echo(f"A page for each, with maps and masks: {pages[0].parent}")
    if count is not None:
        typer.echo(f"Why this number of classes: {count}")
    if normal is not None:
        typer.echo(f"What was called normal, and why: {normal}")
    typer.echo(f"Everything on one page, for a browser: {report}")
