"""report.html: all of a run in one file that needs no network, for the screen, the phone and the printer."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import jinja2
import yaml

from .. import __version__
from ..config import Config, setting_names
from ..data.dataset import NORMAL_NAMES
from ..metrics import Evaluation
from ..progress import Silent
from ..run.evaluate import evaluate_run
from ..run.finished import FinishedRun
from ..run.folder import LOG, REPORT
from . import cards
from .classes import count_range, count_sentence
from .network import make_attention, make_class_map
from .normal import HEIGHT, TITLE, WIDTH, score_chart
from .source import Look, ReportSource
from .tree import make_tree

MOST_COLUMNS = 40  # of a confusion matrix that is still read by anyone
LAST_LINES = 10_000  # bytes of the end of a log
MOST_SKIPPED = 200  # files that are listed
Setting = tuple[str, str, str]  # name as `--set` takes it, value in this run, default


def write_report(run: FinishedRun, progress: Silent = Silent(), *, attention: bool = True) -> Path:
    """Write `report.html` into a run folder, whole or not at all; returns the file.

    Parameters
    ----------
    run : with the samples given where it cannot find its images by itself (arrays)
    progress : shows a bar
    attention : False leaves the attention pictures out, which need the backbone
    """
    source = ReportSource(run)
    with progress.task("Report", len(source.labels) + 3) as advance:
        shown = []
        for label in source.labels:
            shown.append(cards.Card(source, label))
            advance()
        class_map = make_class_map(source)
        advance()
        pictures = make_attention(source) if attention else ([], "")
        advance()
        run.folder.write_text(REPORT, _render(source, cards=shown, class_map=class_map, attention=pictures))
        advance()
    return run.path / REPORT


def _render(source: ReportSource, **parts: Any) -> str:
    """The page as text; every name in it is escaped."""
    loader = jinja2.PackageLoader("anomalyncd.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    script, style = (loader.get_source(environment, name)[0] for name in ("report.js", "report.css"))
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    environment.globals |= {"parts": cards, "matrix": matrix}
    return environment.get_template("report.html.j2").render(
        **parts,
        most_columns=MOST_COLUMNS,
        most_skipped=MOST_SKIPPED,
        source=source,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        style=style,
        version=__version__,
        title=source.run.path.absolute().name or "run",
        finished=finished(source.run),
        settings=run_settings(source.run.config),
        evaluation=evaluation(source),
        is_truth=is_truth(source),
        scores=score_chart(source.run),
        count=None if source.run.count is None else count_sentence(source.run.count),
        count_range=count_range(source.run.count),
        tree=make_tree(source),
        scores_title=TITLE,
        scores_size=(WIDTH, HEIGHT),
    )


def evaluation(source: ReportSource) -> Evaluation | None:
    """Against the true labels, where folders or a table told any."""
    if "true_label" not in source.images or source.images["true_label"].isna().all():
        return None
    return evaluate_run(source.run.path)[0]


def is_truth(source: ReportSource) -> bool:
    """Whether labels are more than names of folders: one is a normal one, or a table gave them."""
    if "true_label" not in source.images:
        return False
    told = source.images[["image", "true_label"]].dropna()
    folders = told["image"].astype(str).str.split("/").str[0]
    return bool((told["true_label"].astype(str) != folders).any() or told["true_label"].isin(NORMAL_NAMES).any())


def matrix(found: Evaluation, source: ReportSource) -> tuple[list[Look], dict[str, list[tuple[int, float, bool]]]]:
    """The confusion matrix for a table: columns, and rows of a true name with (count, share of the row, matched)."""
    columns = [source.look(int(str(label))) for label in found.pred_names]
    rows = {}
    for name, counts in zip(found.true_names, found.confusion.tolist(), strict=True):
        shares = (count / max(1, sum(counts)) for count in counts)
        matched = (found.matching.get(label) == name for label in found.pred_names)
        rows[str(name)] = list(zip(counts, shares, matched, strict=True))
    return columns, rows


def run_settings(config: Config) -> tuple[list[Setting], list[Setting]]:
    """Settings that differ from the defaults, and all others."""
    used, default = config.model_dump(mode="json"), Config().model_dump(mode="json")
    found = [(name, _value(used, name), _value(default, name)) for name in setting_names()]
    changed = [setting for setting in found if setting[1] != setting[2]]
    return changed, [setting for setting in found if setting[1] == setting[2]]


def finished(run: FinishedRun) -> str:
    """Day and time of the last line of run.log, empty where there is none."""
    try:
        with run.folder.place(LOG).open("rb") as file:
            file.seek(-min(file.seek(0, os.SEEK_END), LAST_LINES), os.SEEK_END)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    stamp = lines[-1][:16] if lines else ""
    return stamp if stamp[:4].isdigit() and stamp[4:5] == "-" else ""


def _value(settings: Any, name: str) -> str:
    for key in name.split("."):
        settings = settings[key]
    text = yaml.safe_dump(settings, default_flow_style=True, allow_unicode=True, width=1000)
    return text.removesuffix("...\n").strip()
