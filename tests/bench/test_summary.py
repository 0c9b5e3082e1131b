"""Ranks and variances against those that the paper prints for its own figures."""

from __future__ import annotations

import pytest

from anomalyncd.bench.experiment import load_experiment, paper_figures
from anomalyncd.bench.summary import ranks, variance_lines, variances

SCORES = ("nmi", "ari", "f1")


def test_ranks_are_those_of_table_15():
    thresholds = ("0.1", "0.3", "0.5", "0.7", "0.9")
    lines = [
        [row[score] for row in paper_figures("15", variant=each) if "f1" in row for score in SCORES]
        for each in thresholds
    ]
    printed = [row["rank"] for each in thresholds for row in paper_figures("15", variant=each) if "rank" in row]
    assert ranks(lines) == pytest.approx(printed, abs=0.006)


def test_ranks_leave_out_what_a_row_is_without():
    assert ranks([[None, 0.1], [0.9, 0.3], [0.2, 0.2]]) == [3.0, 1.0, 2.0]
    assert ranks([[None], [0.5]]) == [None, None]


def test_variances_are_those_of_table_16():
    experiment = load_experiment("table-16")
    columns = [("any", source) for source in experiment.sources]
    rows = [
        [
            paper_figures("16", detector=source, variant=each)[0][score]
            for source in experiment.sources
            for score in SCORES
        ]
        for each in "23456"
    ]
    ours, theirs = variance_lines(experiment, columns, rows)
    assert theirs[1:] == ["0.0003 / 0.0001 / 0.0001", "0.0001 / 0.0001 / 0.0001"]
    assert ours[1] == theirs[1] and ours[2].startswith("0.0001 / 0.0001 / ")
    assert variances([[0.2, None], [0.4, 0.1]]) == [pytest.approx(0.01), None]
