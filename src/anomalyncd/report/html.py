"""report.html: all of a run in one file that needs no network, for the screen, the phone and the printer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml

from .. import __version__
from ..config import Config, make_config, read_config, setting_names
from ..data.dataset import Sample
from ..metrics import Evaluation
from ..progress import Silent
from ..run.evaluate import evaluate_run
from ..run.folder import LOG, RunFolder
from ..run.tables import read_history
from . import charts, lists
from .attention import AttentionPictures, make_attention
from .cards import Card, make_card
from .classmap import make_class_map
from .source import Look, ReportSource

REPORT = "report.html"
MOST_COLUMNS = 40  # of a confusion matrix that is still read by anyone
_TEMPLATES = files(__package__) / "templates"


@dataclass(frozen=True)
class Setting:
    """A setting as `--set` takes it, its value in this run, and the default."""

    name: str
    value: str
    default: str


def write_report(
    run: Path, progress: Silent = Silent(), *, attention: bool = True, items: Sequence[Sample] = ()
) -> Path:
    """Write `report.html` into a run folder, whole or not at all.

    Parameters
    ----------
    run : folder of a finished run
    progress : shows a bar
    attention : False leaves the attention pictures out, which need the backbone
    items : the images as the run got them, where it cannot find them by itself (arrays); see `StoredPictures`

    Returns
    -------
    The file.
    """
    source = ReportSource(run, items)
    with progress.task("Report", len(source.labels) + 3) as advance:
        cards = []
        for label in source.labels:
            cards.append(make_card(source, label))
            advance()
        class_map = make_class_map(source)
        advance()
        pictures = make_attention(source) if attention else AttentionPictures([])
        advance()
        page = render(source, cards, class_map=class_map, attention=pictures)
        RunFolder(run).write_text(REPORT, page)
        advance()
    return run / REPORT


def render(source: ReportSource, cards: Sequence[Card], **parts: Any) -> str:
    """The page as text; every name in it is escaped."""
    script, style = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.js", "report.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    skipped, n_skipped = lists.skipped_files(source)
    history = read_history(source.run)
    curves, low, high = charts.loss_curves(history)
    changed, others = run_settings(source.run)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("anomalyncd.report"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    return environment.get_template("report.html.j2").render(
        source=source, cards=cards, script=script, style=style, script_hash=digest, version=__version__,
        title=source.run.absolute().name or "run", finished=finished(source.run), charts=charts, lists=lists,
        n_normal=int((source.images["label"] == 0).sum()), several=lists.several_classes(source),
        uncertain=lists.uncertain(source), unknown=lists.unknown(source),
        skipped=skipped, n_skipped=n_skipped, curves=curves, n_epochs=len(history), loss_low=low, loss_high=high,
        changed=changed, others=others, evaluation=evaluation(source), matrix=matrix, most_columns=MOST_COLUMNS,
        **parts,
    )  # fmt: skip


def evaluation(source: ReportSource) -> Evaluation | None:
    """Against the true labels, where folders or a table told any."""
    if "true_label" not in source.images or source.images["true_label"].isna().all():
        return None
    return evaluate_run(source.run)[0]


def matrix(
    found: Evaluation, source: ReportSource
) -> tuple[list[Look], list[tuple[str, list[tuple[int, float, bool]]]]]:
    """The confusion matrix for a table: columns, and rows of a true name with (count, share of the row, matched)."""
    columns = [source.look(int(str(label))) for label in found.pred_names]
    rows = []
    for name, counts in zip(found.true_names, found.confusion.tolist(), strict=True):
        matched = [found.matching.get(label) == name for label in found.pred_names]
        shares = [count / max(1, sum(counts)) for count in counts]
        rows.append((str(name), list(zip(counts, shares, matched, strict=True))))
    return columns, rows


def run_settings(run: Path) -> tuple[list[Setting], list[Setting]]:
    """Settings of a run that differ from the defaults, and all others."""
    used, default = (
        config.model_dump(mode="json") for config in (make_config(read_config(run / "config.yaml")), Config())
    )
    found = [Setting(name, _value(used, name), _value(default, name)) for name in setting_names()]
    changed = [setting for setting in found if setting.value != setting.default]
    return changed, [setting for setting in found if setting.value == setting.default]


def finished(run: Path) -> str:
    """Day and time of the last line of run.log, empty where there is none."""
    try:
        lines = (run / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    stamp = lines[-1][:16] if lines else ""
    return stamp if stamp[:4].isdigit() and stamp[4:5] == "-" else ""


def _value(settings: Any, name: str) -> str:
    for key in name.split("."):
        settings = settings[key]
    return (
        yaml.safe_dump(settings, default_flow_style=True, allow_unicode=True, width=1000).removesuffix("...\n").strip()
    )
