"""What the paper adds to all rows of a table: the mean rank of each (Table 15), the variance over them (Table 16)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pvariance

from .experiment import Experiment, paper_figures

Values = Sequence[Sequence[float | None]]  # a line for each row, with as many figures in each


def ranks(lines: Values) -> list[float | None]:
    """Mean place of each row over all figures that every row has, 1 for the highest; equal ones share the better place.

    Examples
    --------
    >>> ranks([[0.5, 0.7, None], [0.4, 0.7, 0.1]])
    [1.0, 1.5]
    """
    whole = [column for column in zip(*lines, strict=True) if None not in column]
    places = [[1 + sum(other > own for other in column) for own in column] for column in whole]
    return [fmean(own) for own in zip(*places, strict=True)] if places else [None] * len(lines)


def variances(lines: Values) -> list[float | None]:
    """Of each figure over the rows, divided by their number as in the paper; None where a row has none.

    Examples
    --------
    >>> variances([[1.0, None], [3.0, 2.0]])
    [1.0, None]
    """
    return [None if None in column else pvariance(column) for column in zip(*lines, strict=True)]


def variance_lines(experiment: Experiment, columns: Sequence[tuple[str, str | None]], lines: Values) -> list[list[str]]:
    """The variance of the rows in each column of a table, as text; and below it the paper's."""
    metrics, found = experiment.metrics, variances(lines)
    ours, theirs = ["variance over the rows"], [f"↳ paper, Table {', '.join(experiment.tables)}"]
    for place, (_, source) in enumerate(columns):
        own = found[place * len(metrics) : (place + 1) * len(metrics)]
        ours.append(" / ".join("–" if value is None else f"{value:.4f}" for value in own))
        rows = [row for table in experiment.tables for row in paper_figures(table, detector=source or "")]
        known = next((row for row in rows if f"{metrics[0]}_variance" in row), {})
        theirs.append(" / ".join(f"{known[f'{name}_variance']:.4f}" for name in metrics) if known else "–")
    return [ours, theirs]
