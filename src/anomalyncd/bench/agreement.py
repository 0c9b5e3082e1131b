"""What agrees with the paper, counted: how often our figures are above its own, and whether the same row is best."""

from __future__ import annotations

from statistics import fmean

from .experiment import METRICS
from .runner import Outcome
from .table import Entry

MOST = "f1"  # the figure that is compared, where an experiment has it


def agreement(outcome: Outcome) -> str:
    """A sentence about all cells that were run and have a figure of the paper beside them; empty where there are none."""
    metrics, rows = outcome.experiment.metrics, outcome.experiment.rows
    metric = MOST if MOST in metrics else metrics[-1]
    above = own = cells = same = columns = 0
    for column in outcome.columns:
        beside: dict[str, tuple[float, float]] = {}
        for row in rows:
            entry = Entry(outcome, row, column)
            if (values := entry.values(metric)) and metric in entry.printed.metrics:
                beside[row.name] = fmean(values), entry.printed.metrics[metric]
                own += not entry.printed.averaged
        cells += len(beside)
        above += sum(ours > theirs for ours, theirs in beside.values())
        if len({theirs for _, theirs in beside.values()}) > 1:
            columns += 1
            best = max(beside.values())[0]
            highest = max(theirs for _, theirs in beside.values())
            same += any(ours == best and theirs == highest for ours, theirs in beside.values())
    if not cells:
        return ""
    name = METRICS[metric][1]
    words = (
        f"Beside the paper: {name} is higher in {above} of {cells} cells; the paper's is of the very product in {own}"
    )
    return words + (f"; the best row is its best row too in {same} of {columns} columns." if columns else ".")
