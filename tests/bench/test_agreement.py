"""What agrees with the paper, counted on cells that are made by hand."""

from __future__ import annotations

from anomalyncd.bench.agreement import agreement
from anomalyncd.bench.experiment import Experiment
from anomalyncd.bench.runner import Cell, Outcome


def outcome(figures: dict[tuple[str, str], float], **settings: object) -> Outcome:
    """Rows of Table 9: the paper prints them for MVTec AD and for MTD, the higher F1 with a base set for both."""
    rows = [{"name": "without", "paper": {"base": "none"}}, {"name": "with", "paper": {"base": "aebad-s"}}]
    content = {"name": "own", "title": "", "tables": ["9"], "sources": ["musc"], "rows": rows, **settings}
    experiment = Experiment.model_validate(content)
    cells = [
        Cell(row, data, "musc", None, seed, state="done", metrics={"f1": figures[row.name, data]})
        for row in experiment.rows
        for data in ("hazelnut", "mtd")
        for seed in (0, 1)
        if (row.name, data) in figures
    ]
    return Outcome(experiment, cells, {"hazelnut": None, "mtd": None}, {}, [], "tiny")  # type: ignore[dict-item]


def test_cells_and_best_rows_are_counted():
    figures = {("without", "hazelnut"): 0.9, ("with", "hazelnut"): 0.8, ("without", "mtd"): 0.1, ("with", "mtd"): 0.2}
    said = agreement(outcome(figures))
    assert said == (
        "Beside the paper: F1 is higher in 2 of 4 cells; the paper's is of the very product in 2; "
        "the best row is its best row too in 1 of 2 columns."
    )


def test_one_row_has_no_best_and_nothing_says_nothing():
    assert agreement(outcome({("with", "mtd"): 0.6})).endswith("1 of 1 cells; the paper's is of the very product in 1.")
    assert agreement(outcome({})) == ""
