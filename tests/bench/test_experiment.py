"""The experiments of the package, and those of a user's own YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from anomalyncd.bench.experiment import EACH, METRICS, Experiment, experiment_names, load_experiment, paper_table
from anomalyncd.bench.rivals import RIVALS
from anomalyncd.bench.studio import Studio
from anomalyncd.bench.table import MVTEC, printed
from anomalyncd.errors import SettingsError

WANTED = [f"table-{number:02d}" for number in (*range(1, 11), 13, 14, 15, 16, 17)] + [
    "figure-attention", "figure-aupro", "figure-binarizers", "figure-merging", "figure-pair", "figure-values",
    "figure-t", "figure-thresholds", "figure-tsne", "combined", "count", "goals", "judgement", "maps", "recipe",
]  # fmt: skip


@pytest.fixture(scope="module")
def packaged() -> dict[str, Experiment]:
    return {name: load_experiment(name) for name in experiment_names()}


def test_every_table_and_figure_has_its_experiment(packaged):
    assert sorted(packaged) == sorted(WANTED)
    assert all(found.name == name for name, found in packaged.items())
    told = {number for found in packaged.values() for number in found.tables}
    assert told == {*(str(number) for number in range(1, 18)), "T", "fixed"}


def test_every_row_that_names_figures_of_the_paper_finds_some(packaged):
    for found in packaged.values():
        for row in found.rows:
            if row.paper is None:
                continue
            bases = MVTEC if EACH in found.base_of(row) else (None,)
            cells = [(d, s, b) for d in ("mtd", *MVTEC) for s in found.sources_of(row) for b in bases]
            assert any(printed(found, row, *cell).metrics for cell in cells), (found.name, row.name)


def test_tables_with_numbers_are_printed_whole(packaged):
    """Every row of a table that the paper prints for MTD stands beside one of ours."""
    for name, found in packaged.items():
        if not name.startswith("table-") or found.tables[0] in ("17", "13", "10"):
            continue
        shown = {
            tuple(printed(found, row, "mtd", source, None).metrics.values())
            for row in found.rows
            for source in found.sources_of(row)
        }
        for row in paper_table(found.tables[0])["rows"]:
            if row.get("dataset") == "mtd":
                assert tuple(row[metric] for metric in found.metrics) in shown, (name, dict(row))


def test_the_best_detector_of_the_paper(packaged):
    """Of the product where the paper prints it, else of the data set; masks are no detector."""
    asked = packaged["judgement"]
    best = next(row for row in asked.rows if row.method == "none")
    found = {name: printed(asked, best, name, "patchcore", None) for name in asked.data}
    for name in asked.data[:-1]:
        rows = [row for row in paper_table("17")["rows"] if row["product"] == name]
        top = max(rows, key=lambda row: row["f1"])
        assert found[name].detector == top["detector"] and not found[name].averaged
        assert found[name].metrics == {score: top[score] for score in ("nmi", "ari", "f1")}
    assert found["mtd"].detector == "patchcore" and found["mtd"].metrics["f1"] == 0.617
    assert printed(asked, asked.rows[0], "mtd", "patchcore", None).detector == ""


def test_figures_of_the_product_come_before_those_of_the_whole_data_set(packaged):
    goals = packaged["goals"]
    ours, gcd = goals.rows[0], next(row for row in goals.rows if row.method == "gcd")
    hazelnut = printed(goals, ours, "hazelnut", "musc", None)
    assert (hazelnut.metrics["f1"], hazelnut.tables, hazelnut.averaged) == (0.718, ("17",), False)
    assert printed(goals, gcd, "hazelnut", "musc", None).averaged
    assert printed(goals, gcd, "unheard-of", "musc", None).metrics == {}
    uniformaly = next(row for row in goals.rows if row.method == "uniformaly")
    assert printed(goals, uniformaly, "mtd", "masks", None).metrics == {}  # the paper gave it no masks
    modules = printed(packaged["table-13"], packaged["table-13"].rows[0], "mtd", "musc", None).metrics
    assert modules == {"binarize-and-crop": 0.1298, "network": 0.0228, "merge": 0.0005, "total": 0.1531}
    crossed = packaged["table-10"]
    three = printed(crossed, crossed.rows[0], "hazelnut", "musc", "bottle")
    assert three.metrics["nmi"] == 0.727 and three.tables == ("10", "11", "12")


def test_every_metric_can_be_measured():
    assert all(hasattr(Studio, measurement) for measurement, _ in METRICS.values())


def test_goals_have_the_rows_that_are_asked_for(packaged):
    goals = packaged["goals"]
    assert goals.data == ["mtd", "hazelnut"] and set(goals.sources) == {"masks", "patchcore", "musc"}
    methods = {row.method: row for row in goals.rows if row.preset is None}
    assert set(methods) == {"anomalyncd", *RIVALS} - {"frozen-kmeans"}
    table = packaged["table-01"]
    assert {row.method for row in table.rows} >= {
        row["method"] for row in paper_table("1")["rows"]
    }  # none is paper only
    assert {row.method for row in table.rows if row.base is None} == {"anomalyncd", "uno", "gcd", "simgcd", "amend"}
    (paper,) = [row for row in goals.rows if row.preset == "paper"]
    assert paper.settings["learn"]["bank_views"] >= 8 and paper.seeds == [0]
    assert methods["anomalyncd"].settings == {} and len(goals.seeds) == 3
    assert all(found.exclude == ["combined"] for found in packaged.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "there is no field colour"),
        ({"metrics": ["accuracy"]}, "accuracy is not one of nmi"),
        ({"rows": [{"name": "a", "method": "kmeans"}]}, "method: must be one of anomalyncd"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "two rows are called 'a'"),
        ({"rows": [{"name": "a", "settings": {"learn": {"epoch": 3}}}]}, "did you mean learn.epochs"),
        ({"rows": [{"name": "a", "method": "gcd", "settings": {"views": 3}}]}, "gcd has no setting views; it has"),
        ({"rows": [{"name": "a", "method": "gcd", "preset": "paper"}]}, "preset is for anomalyncd only"),
        ({"rows": [{"name": "a", "source": "musc"}]}, "not among the experiment's"),
        (
            {"rows": [{"name": "a", "method": "gcd", "settings": {"random_state": 3}}]},
            "gcd has no setting random_state",
        ),
        (
            {"rows": [{"name": "a", "method": "gcd", "settings": {"size": "big"}}]},
            "size must be a whole number, but got 'big'",
        ),
        (
            {"rows": [{"name": "a", "method": "anomaly-clustering", "settings": {"temperature": "x"}}]},
            "temperature must be a number",
        ),
        ({"tables": ["99"]}, "table of the paper must be one of 1, 2"),
        ({"figure": "lines"}, "needs rows with x"),
        ({"sources": ["masks", "none"]}, "row 'a' needs maps or masks"),
        ({"sources": []}, "needs a source"),
        ({"rows": []}, "rows"),
    ],
)
def test_mistakes_are_said_with_the_file(tmp_path: Path, change, message):
    right = {"name": "own", "title": "Own", "sources": ["masks"], "rows": [{"name": "a"}]}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(right))
    assert load_experiment(str(path)).rows[0].method == "anomalyncd"
    path.write_text(yaml.safe_dump(right | change))
    with pytest.raises(SettingsError) as error:
        load_experiment(str(path))
    assert str(path) in str(error.value) and message in str(error.value)


def test_files_that_are_no_experiment(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"Did you mean goals\?"):
        load_experiment("goal")
    with pytest.raises(SettingsError, match="none found"):
        load_experiment(str(tmp_path / "none.yaml"))
    (tmp_path / "loop.yaml").write_text("rows: &a [*a]")
    with pytest.raises(SettingsError, match=r"loop\.yaml: cannot be read .*nested without end"):
        load_experiment(str(tmp_path / "loop.yaml"))
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(SettingsError, match="expected an experiment"):
        load_experiment(str(tmp_path / "list.yaml"))
