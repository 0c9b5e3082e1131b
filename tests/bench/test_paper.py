"""The paper's figures: spot checks typed from the paper, and what the paper says twice must agree."""

import math
import re

import pytest

from anomalyncd.bench.experiment import paper_figures, paper_table
from anomalyncd.bench.rivals import RIVALS
from anomalyncd.errors import SettingsError

SCORES = ("nmi", "ari", "f1")
NUMBERED = [str(number) for number in range(1, 18)]
PICTURES = ["T", "fixed"]
PRODUCTS = [
    *("bottle", "cable", "capsule", "carpet", "grid", "hazelnut", "leather", "metal_nut"),
    *("pill", "screw", "tile", "toothbrush", "transistor", "wood", "zipper"),
]
ROUNDING = 0.0006  # of a printed mean: half of its last digit, and the rounding of what it is the mean of


def only(table, **match):
    (row,) = paper_figures(table, **match)
    return row


@pytest.mark.parametrize(
    ("table", "match", "figures"),
    [
        ("1", {"dataset": "mvtec", "method": "iic"}, {"nmi": 0.093, "ari": 0.020, "f1": 0.285}),
        ("1", {"dataset": "mtd", "method": "gcd"}, {"nmi": 0.211, "ari": 0.115, "f1": 0.381}),
        ("1", {"dataset": "mvtec", "method": "anomaly-clustering"}, {"nmi": 0.525, "ari": 0.431, "f1": 0.604}),
        ("1", {"dataset": "mtd", "method": "anomalyncd"}, {"nmi": 0.268, "ari": 0.228, "f1": 0.509}),
        ("2", {"dataset": "mtd", "method": "uniformaly"}, {"nmi": 0.421, "ari": 0.322, "f1": 0.609, "aupro": 0.837}),
        ("2", {"dataset": "mtd", "detector": "patchcore"}, {"nmi": 0.380, "ari": 0.390, "f1": 0.617, "aupro": 0.729}),
        ("2", {"dataset": "mtd", "detector": "pni"}, {"nmi": 0.181, "f1": 0.465, "aupro": 0.516}),
        ("2", {"dataset": "mvtec", "detector": "cpr"}, {"nmi": 0.736, "ari": 0.674, "f1": 0.805, "aupro": 0.964}),
        ("3", {"variant": "fixed-0.5"}, {"fpr": 0.484, "fnr": 0.165, "nmi": 0.567, "ari": 0.458, "f1": 0.640}),
        ("3", {"variant": "otsu"}, {"fpr": 0.676, "fnr": 0.525, "f1": 0.499}),
        ("4", {"variant": "patch"}, {"nmi": 0.563, "ari": 0.467, "f1": 0.686}),
        ("5", {"dataset": "mvtec", "variant": "6"}, {"nmi": 0.613, "ari": 0.519, "f1": 0.713}),
        ("5", {"dataset": "mtd", "variant": "12"}, {"nmi": 0.249, "ari": 0.213, "f1": 0.492}),
        ("6", {"dataset": "mtd", "variant": "score"}, {"nmi": 0.228, "ari": 0.208, "f1": 0.485}),
        ("7", {"variant": "off"}, {"normal_precision": 0.797, "normal_recall": 0.727, "nmi": 0.597, "f1": 0.714}),
        (
            "8",
            {"dataset": "mtd", "detector": "efficientad", "variant": "whole-image"},
            {"nmi": 0.105, "ari": 0.066, "f1": 0.379},
        ),
        ("9", {"dataset": "mvtec", "base": "none"}, {"nmi": 0.583, "ari": 0.506, "f1": 0.689}),
        ("10", {"base": "wood", "product": "metal_nut"}, {"nmi": 0.789}),
        ("11", {"base": "cable", "product": "toothbrush"}, {"ari": 0.210}),
        ("12", {"base": "zipper", "product": "bottle"}, {"f1": 0.807}),
        ("12", {"base": "mean", "product": "mean"}, {"f1": 0.694}),
        ("13", {"variant": "network"}, {"seconds": 0.0228}),
        ("14", {"dataset": "mtd", "method": "anomalyncd"}, {"nmi": 0.829, "ari": 0.863, "f1": 0.841}),
        ("14", {"dataset": "mvtec", "method": "anomaly-clustering"}, {"nmi": 0.711, "ari": 0.638, "f1": 0.718}),
        (
            "15",
            {"dataset": "mtd", "detector": "patchcore", "variant": "0.5"},
            {"nmi": 0.380, "ari": 0.390, "f1": 0.715},
        ),
        ("15", {"dataset": "mvtec", "detector": "rd++", "variant": "0.7"}, {"nmi": 0.650, "ari": 0.561, "f1": 0.741}),
        ("16", {"detector": "musc", "variant": "5"}, {"nmi": 0.618, "ari": 0.539, "f1": 0.740}),
        ("16", {"detector": "cpr", "variant": "3"}, {"nmi": 0.736, "ari": 0.668, "f1": 0.797}),
        ("17", {"detector": "musc", "product": "hazelnut"}, {"nmi": 0.662, "ari": 0.582, "f1": 0.718}),
        ("17", {"detector": "cpr", "product": "tile"}, {"nmi": 0.98, "ari": 0.976, "f1": 0.992}),
        ("page", {"dataset": "mtd", "detector": "musc"}, {"aupro": 0.769}),
    ],
)
def test_figures_are_those_of_the_paper(table, match, figures):
    row = only(table, **match)
    assert {name: row[name] for name in figures} == figures


def test_every_table_is_there_and_pictures_say_that_they_have_no_numbers():
    for name in NUMBERED:
        assert paper_table(name)["rows"]
        assert paper_table(name)["label"].startswith("tab:")
    for name in PICTURES:
        assert paper_figures(name) == []
        assert "picture" in paper_table(name)["note"]
    assert len({paper_table(name)["label"] for name in (*NUMBERED, *PICTURES)}) == len(NUMBERED) + len(PICTURES)


@pytest.mark.parametrize(
    ("table", "n_rows"),
    [
        ("1", 9 * 2),
        ("2", 7 * 2 - 1),  # CPR on MTD is a dash
        ("3", 7),
        ("4", 4),
        ("5", 5 * 2),
        ("6", 3 * 2),
        ("7", 2),
        ("8", 2 * 2 * 4),
        ("9", 2 * 2),
        *((name, 15 * 16 - 14) for name in ("10", "11", "12")),  # no product is its own base
        ("13", 4),
        ("14", 2 * 2),
        ("15", 5 * 6 + 5),
        ("16", 5 * 2 + 2),
        ("17", 16 * 6),
        ("page", 2),
    ],
)
def test_no_row_is_missing_or_twice(table, n_rows):
    rows = paper_table(table)["rows"]
    keys = {tuple(sorted((key, cell) for key, cell in row.items() if isinstance(cell, str))) for row in rows}
    assert len(rows) == n_rows
    assert len(keys) == n_rows


@pytest.mark.parametrize("table", [*NUMBERED, "page"])
def test_figures_are_numbers_and_scores_are_shares_of_one(table):
    for row in paper_table(table)["rows"]:
        figures = {name: cell for name, cell in row.items() if not isinstance(cell, str)}
        assert figures
        for name, figure in figures.items():
            assert isinstance(figure, float)
            assert math.isfinite(figure)
            assert 0 <= figure <= (5 if name == "rank" else 1), (row, name)


@pytest.mark.parametrize("table", [*NUMBERED, "page"])
def test_names_are_those_of_datasets_detectors_and_methods(table):
    detectors = {"musc", "patchcore", "rd++", "efficientad", "pni", "cpr", "ground-truth"}
    methods = {"anomalyncd", *RIVALS}
    for row in paper_table(table)["rows"]:
        assert row.get("dataset", "mtd") in {"mvtec", "mtd"}
        assert row.get("detector", "musc") in detectors
        assert row.get("method", "anomalyncd") in methods
        assert row.get("product", "mean") in {*PRODUCTS, "mean"}


@pytest.mark.parametrize(("table", "score"), [("10", "nmi"), ("11", "ari"), ("12", "f1")])
def test_means_over_base_sets_and_products_agree_but_where_the_note_says_so(table, score):
    cells = {(row["base"], row["product"]): row[score] for row in paper_figures(table)}
    bases = [product for product in PRODUCTS if product != "toothbrush"]
    for product in PRODUCTS:
        column = [cells[base, product] for base in bases if base != product]
        assert mean(column) == pytest.approx(cells["mean", product], abs=ROUNDING), product
    disagree = []
    noted = [float(figure) for figure in re.findall(r"\.\d{3}", paper_table(table)["note"])]
    for base in bases:
        row = [cells[base, product] for product in PRODUCTS if product != base]
        if mean(row) != pytest.approx(cells[base, "mean"], abs=ROUNDING):
            disagree.append(base)
            assert cells[base, "mean"] in noted
            assert any(mean(row) == pytest.approx(figure, abs=ROUNDING) for figure in noted)
    assert disagree == ["capsule", "tile"]
    assert mean([cells[base, "mean"] for base in bases]) == pytest.approx(cells["mean", "mean"], abs=ROUNDING)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("detector", ["musc", "patchcore", "efficientad", "rd++", "pni", "cpr"])
def test_means_over_products_are_those_of_the_main_tables(detector, score):
    rows = paper_figures("17", detector=detector)
    products = [row[score] for row in rows if row["product"] != "mean"]
    printed = only("17", detector=detector, product="mean")[score]
    main = only("1" if detector == "musc" else "2", dataset="mvtec", detector=detector)[score]
    assert [row["product"] for row in rows] == [*PRODUCTS, "mean"]
    assert mean(products) == pytest.approx(printed, abs=ROUNDING)
    assert printed == main


@pytest.mark.parametrize(
    ("table", "default"),
    [
        ("3", {"variant": "mebin"}),
        ("4", {"variant": "class"}),
        ("5", {"variant": "9"}),
        ("6", {"variant": "area"}),
        ("7", {"variant": "on"}),
        ("8", {"variant": "crop"}),
        ("9", {"base": "aebad-s"}),
        ("15", {"variant": "0.5"}),
        ("16", {"variant": "4"}),
    ],
)
def test_every_ablation_has_the_main_result_but_for_one_figure(table, default):
    odd = []
    for row in paper_figures(table, **default):
        if "nmi" not in row:
            continue
        main = only(
            "1" if row["detector"] == "musc" else "2",
            dataset=row["dataset"],
            detector=row["detector"],
            method="anomalyncd",
        )
        odd += [(row["dataset"], row["detector"], score, row[score]) for score in SCORES if row[score] != main[score]]
    assert odd == ([("mtd", "patchcore", "f1", 0.715)] if table == "15" else [])


def test_both_figures_of_the_disagreement_are_in_the_notes():
    for table in ("2", "15"):
        assert {".715", ".617"} <= set(re.findall(r"\.\d{3}", paper_table(table)["note"]))


def test_printed_ranks_follow_from_the_figures():
    columns = {
        (row["dataset"], row["detector"], score): paper_figures("15", dataset=row["dataset"], detector=row["detector"])
        for row in paper_figures("15")
        if "nmi" in row
        for score in SCORES
    }
    assert len(columns) == 18
    for rank in (row for row in paper_figures("15") if "rank" in row):
        places = []
        for (*_, score), rows in columns.items():
            (own,) = (row[score] for row in rows if row["variant"] == rank["variant"])
            places.append(1 + sum(row[score] > own for row in rows))
        assert mean(places) == pytest.approx(rank["rank"], abs=0.005)


def test_times_add_up():
    *parts, total = (row["seconds"] for row in paper_figures("13"))
    assert sum(parts) == pytest.approx(total)


@pytest.mark.parametrize("detector", ["musc", "cpr"])
def test_printed_variances_follow_from_the_figures(detector):
    (printed,) = (row for row in paper_figures("16", detector=detector) if "nmi_variance" in row)
    for score in SCORES:
        figures = [row[score] for row in paper_figures("16", detector=detector) if score in row]
        variance = mean([(figure - mean(figures)) ** 2 for figure in figures])
        assert variance == pytest.approx(printed[f"{score}_variance"], abs=0.000051)


def test_a_match_that_no_row_has_is_empty_and_rows_are_copies():
    assert paper_figures("1", dataset="visa") == []
    assert paper_figures("1", colour="red") == []
    paper_figures("4")[0]["nmi"] = 0.0
    assert paper_figures("4")[0]["nmi"] == 0.598
    paper_table("4")["rows"][0]["nmi"] = 0.0
    assert paper_table("4")["rows"][0]["nmi"] == 0.598


@pytest.mark.parametrize("name", ["18", "", "t"])
def test_an_unknown_table_is_an_error_that_names_the_known_ones(name):
    for call in (paper_table, paper_figures):
        with pytest.raises(SettingsError, match=rf"must be one of 1, 2, .* 17, T, fixed, page, but got '{name}'"):
            call(name)


def mean(values):
    return sum(values) / len(values)
