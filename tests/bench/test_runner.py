"""Experiments end to end on generated images: what is stored, what is resumed, and what is said about the rest.

Covers runner.py, measure.py, machine.py, table.py and datasets.py, which work only together.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anomalyncd.bench import machine, measure
from anomalyncd.bench.experiment import Experiment
from anomalyncd.bench.figures import draw
from anomalyncd.bench.runner import Bench, Cell, Outcome
from anomalyncd.bench.table import to_csv, to_markdown, to_rows
from anomalyncd.data.dataset import Sample
from anomalyncd.demo import make_line
from anomalyncd.errors import DataError
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.metrics import evaluate
from anomalyncd.progress import Silent
from anomalyncd.regions.extract import Extractor

QUICK = {"learn": {"epochs": 2}, "model": {"backbone": "tiny"}}


def make_product(root: Path, *, seed: int, n_combined: int = 0) -> Path:
    """A product as MVTec AD has it; its maps lie beside it."""
    line = make_line(
        root / "line", n_per_class=4, n_normal=4, n_combined=n_combined, size=96, kinds=["hole", "print"], seed=seed
    )  # fmt: skip
    product = root / "product"
    product.mkdir()
    for old, new in (("images", "test"), ("masks", "ground_truth")):
        (line / old).rename(product / new)
    (line / "maps").rename(root / "maps")
    shutil.copytree(product / "test" / "good", product / "train" / "good")
    return product


@pytest.fixture(scope="module")
def nut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_product(tmp_path_factory.mktemp("nut"), seed=0, n_combined=2)


@pytest.fixture(scope="module")
def tile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_product(tmp_path_factory.mktemp("tile"), seed=1)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[AnomalyNCD]:
    """The models that are fitted from now on."""
    seen: list[AnomalyNCD] = []
    original = AnomalyNCD.fit

    def counted(self: AnomalyNCD, *args: Any, **options: Any) -> AnomalyNCD:
        seen.append(self)
        return original(self, *args, **options)

    monkeypatch.setattr(AnomalyNCD, "fit", counted)
    return seen


def experiment(*rows: dict[str, Any], **settings: Any) -> Experiment:
    return Experiment.model_validate(
        {"name": "small", "title": "Small", "sources": ["masks"], "seeds": [0], "rows": rows, **settings}
    )


def bench(work: Path, **data: Path) -> Bench:
    maps = {(name, "line"): path.parent / "maps" for name, path in data.items()}
    return Bench(work, data, maps=maps, settings=QUICK)


TWO_ROWS = experiment(
    {"name": "default"}, {"name": "no training", "settings": {"learn": {"epochs": 0}}}, seeds=[0, 1]
)  # fmt: skip


def scores(outcome: Outcome) -> list[dict[str, Any]]:
    """What does not depend on the machine and its other work."""
    return [
        {k: v for k, v in cell.metrics.items() if k not in ("seconds_image", "peak_mb", "learning")}
        for cell in outcome.cells
    ]


def by_state(outcome: Outcome) -> dict[str, list[str]]:
    return {row.name: [c.state for c in outcome.cells if c.row.name == row.name] for row in outcome.experiment.rows}


def test_two_rows_end_to_end(tmp_path, nut, fits):
    outcome = bench(tmp_path, nut=nut).run(TWO_ROWS)
    assert by_state(outcome) == {"default": ["done", "done"], "no training": ["done", "done"]}
    assert len(fits) == 4
    assert {cell.dataset for cell in outcome.cells} == {"nut"} and outcome.data["nut"].n_classes == 3  # no combined

    stored = sorted((tmp_path / "results" / "classes" / "nut").glob("*.json"))
    assert len(stored) == 4
    about = json.loads(stored[0].read_text())
    predictions = pd.read_csv(stored[0].with_suffix(".csv"))
    truth = [name.split("/")[0] for name in predictions["image"]]
    found = evaluate(truth, predictions["label"].tolist())
    assert about["metrics"]["nmi"] == pytest.approx(found.nmi) and about["metrics"]["f1"] == pytest.approx(found.f1)
    assert about["seconds"]["regions"] > 0.01  # also of cells that only read what the first one left
    features = np.load(stored[0].with_suffix(".npz"))
    assert sorted(features["images"]) == sorted(name for name in predictions["image"] if not name.startswith("good"))


def test_regions_are_computed_once_for_all_rows_and_seeds(tmp_path, nut, monkeypatch):
    calls = []
    original = Extractor.__call__
    monkeypatch.setattr(
        Extractor, "__call__", lambda self, items, **rest: calls.append(len(items)) or original(self, items, **rest)
    )
    bench(tmp_path, nut=nut).run(TWO_ROWS)
    assert sum(calls) == 12


def test_tokens_of_a_base_set_are_computed_once(tmp_path, nut, tile, monkeypatch):
    calls = []
    original = Extractor.__call__
    monkeypatch.setattr(
        Extractor, "__call__", lambda self, items, **rest: calls.append(len(items)) or original(self, items, **rest)
    )
    asked = experiment({"name": "with"}, base=["steel"], sources=["masks", "line"], data=["nut"])
    outcome = bench(tmp_path, nut=nut, steel=tile).run(asked)
    assert by_state(outcome) == {"with": ["done", "done"]} and outcome.cells[0].base == "steel"
    assert sum(calls) == 12 + 12 + 8  # the images for each source, and the eight defects of the base set


def test_a_second_call_does_no_work(tmp_path, nut, fits):
    first = bench(tmp_path, nut=nut).run(TWO_ROWS)
    del fits[:]
    again = bench(tmp_path, nut=nut).run(TWO_ROWS)
    assert not fits
    assert [cell.metrics for cell in again.cells] == [cell.metrics for cell in first.cells]
    bench(tmp_path, nut=nut).run(TWO_ROWS, seeds=[2])
    assert len(fits) == 2  # another seed is other work


def test_an_interrupted_run_loses_one_cell(tmp_path, nut, fits, monkeypatch):
    original = measure.Laboratory.classes

    def stopped(self, case):
        if len(fits) == 2:
            raise KeyboardInterrupt
        return original(self, case)

    monkeypatch.setattr(measure.Laboratory, "classes", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, nut=nut).run(TWO_ROWS)
    monkeypatch.setattr(measure.Laboratory, "classes", original)
    assert by_state(bench(tmp_path, nut=nut).run(TWO_ROWS, show=True)) == {
        "default": ["done", "done"], "no training": ["not run", "not run"],
    }  # fmt: skip
    bench(tmp_path, nut=nut).run(TWO_ROWS)
    assert len(fits) == 4


def test_changed_data_is_measured_again(tmp_path, tile, fits):
    copy = shutil.copytree(tile, tmp_path / "tile")
    asked = experiment({"name": "default"})
    bench(tmp_path / "work", tile=tile).run(asked)
    bench(tmp_path / "work", tile=copy).run(asked)
    assert len(fits) == 1  # the same content elsewhere
    shutil.copy(copy / "test" / "hole" / "000.png", copy / "test" / "print" / "000.png")
    bench(tmp_path / "work", tile=copy).run(asked)
    assert len(fits) == 2


def test_a_row_that_fails_is_noted_and_the_rest_goes_on(tmp_path, nut, fits):
    whole = {"binarize": {"method": "fixed", "fixed_threshold": 1.0}}  # nothing is above it: no region to learn from
    asked = experiment(
        {"name": "broken", "settings": {"model": {"guided_blocks": 99}, "features": {"class_token": 1}}},
        {"name": "default"},
        {"name": "blind", "settings": whole}, sources=["line"], metrics=["fpr", "fnr", "nmi"],
    )  # fmt: skip
    outcome = bench(tmp_path, nut=nut).run(asked)
    assert by_state(outcome)["broken"] == ["failed"] and by_state(outcome)["default"] == ["done"]
    _, rows = to_rows(outcome)
    assert rows[0][0] == "broken" and rows[0][1].endswith("/ failed")  # its maps could still be measured
    assert "guided_blocks must be between" in to_markdown(outcome)
    del fits[:]
    bench(tmp_path, nut=nut).run(asked, only="broken")
    assert len(fits) == 1  # what failed is tried again


def test_missing_data_is_skipped_with_a_line(tmp_path, nut):
    asked = experiment({"name": "default"}, data=["nut", "mtd", "gone"])
    outcome = bench(tmp_path, nut=nut, gone=tmp_path / "gone").run(asked)
    assert list(outcome.data) == ["nut"]
    assert outcome.skipped[0] == "mtd: skipped, because it was not given (--data mtd=PATH)."
    assert outcome.skipped[1].startswith("gone: skipped.")
    assert "mtd: skipped" in to_markdown(outcome) and "mean of all columns" not in to_markdown(outcome)
    with pytest.raises(DataError, match="none of its data sets is there"):
        bench(tmp_path).run(asked)


def test_cells_that_were_not_run_say_so(tmp_path, nut, tile):
    asked = experiment(
        {"name": "default", "paper": {"method": "anomalyncd"}}, {"name": "later", "settings": {"learn": {"n_heads": 2}}},
        {"name": "with base", "base": ["steel"]}, {"name": "theirs", "method": "none", "paper": {"method": "anomalyncd"}},
        tables=["14"],
    )  # fmt: skip
    outcome = bench(tmp_path, hazelnut=nut, mtd=tile).run(asked, only="default")
    header, rows = to_rows(outcome)
    assert header == ["", "hazelnut, masks", "mtd, masks", "mean of all columns", "seeds", "s"]
    text = {row[0]: row for row in rows}
    scores = [[cell.metrics[name] for name in asked.metrics] for cell in outcome.cells if cell.state == "done"]
    assert text["default"][3] == " / ".join(f"{value:.3f}" for value in np.mean(scores, axis=0))
    assert text["↳ paper, Table 14"][1:4] == ["0.871 / 0.851 / 0.909\\*", "0.829 / 0.863 / 0.841", "–"]
    assert text["theirs (paper only), Table 14"][2] == "0.829 / 0.863 / 0.841"
    assert text["later"][1:] == ["not run", "not run", "–", "0", "–"]
    assert "with base, mtd, masks: no base set: give --data steel=PATH" in to_markdown(outcome)

    table = pd.read_csv(io.StringIO(to_csv(outcome))).set_index(["row", "dataset"])
    assert table.loc[("default", "mtd"), "paper_f1"] == 0.841
    assert table.loc[("default", "mtd"), "nmi"] == pytest.approx(scores[1][0])
    assert table.loc[("later", "mtd"), "state"] == "not run" and np.isnan(table.loc[("later", "mtd"), "nmi"])


def test_rows_run_on_their_own_data_sets_and_what_is_stored_is_not_pending(tmp_path, nut, tile):
    asked = experiment({"name": "default"}, {"name": "few", "data": ["tile"], "settings": {"learn": {"epochs": 0}}})
    runner = bench(tmp_path, nut=nut, tile=tile)
    waiting = [(trial.row.name, trial.data.name, what) for _, trial, what in runner.pending(asked)]
    assert waiting == [("default", "nut", "classes"), ("default", "tile", "classes"), ("few", "tile", "classes")]
    outcome = runner.run(asked, only="few")
    assert by_state(outcome) == {"default": ["not run", "not run"], "few": ["left out", "done"]}
    assert [trial.row.name for _, trial, _ in runner.pending(asked)] == ["default", "default"]
    assert [row[1] for row in to_rows(outcome)[1]] == ["not run", "–"]
    assert runner.sizes() == {"nut": 12, "tile": 12}  # without combined


def test_maps_without_a_region_are_measured_all_the_same(tmp_path, nut):
    blind = {"binarize": {"method": "fixed", "fixed_threshold": 1.0}}
    asked = experiment({"name": "blind", "settings": blind}, sources=["line"], metrics=["fpr", "fnr", "aupro"])
    (cell,) = bench(tmp_path, nut=nut).run(asked).cells
    assert cell.state == "done" and cell.metrics["fpr"] is None and cell.metrics["fnr"] == 1


def test_the_tables_of_the_paper_are_named(tmp_path, nut):
    """Also where a row finds its figures by data set and base alone."""
    asked = experiment({"name": "default", "paper": {}}, tables=["14"])
    outcome = bench(tmp_path, mtd=nut).run(asked, show=True)
    assert "- Paper: Table 14, as printed" in to_markdown(outcome)


def test_false_alarms_calibration_and_costs(tmp_path, nut, fits):
    names = ["ece", "false_alarms", "missed", "seconds_image", "peak_mb"]
    (cell,) = bench(tmp_path, nut=nut).run(experiment({"name": "default"}, sources=["musc"], metrics=names)).cells
    images = fits[0].images_
    truth = images["image"].str.split("/").str[0]
    found = evaluate(truth, images["label"], images["probability"])
    assert cell.metrics["ece"] == pytest.approx(found.ece)
    assert cell.metrics["false_alarms"] == (images["label"][truth == "good"] != 0).mean()
    assert cell.metrics["missed"] == (images["label"][truth != "good"] == 0).mean()
    assert cell.seconds["maps"] > 0
    assert cell.metrics["seconds_image"] == pytest.approx(sum(cell.seconds.values()) / 12)
    assert cell.metrics["peak_mb"] > 100


def test_memory_is_not_told_on_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.peak_memory() is None


def test_normal_images_that_the_detector_kept_go_along(tmp_path, nut, monkeypatch):
    """Only where a detector ran here: masks and maps from elsewhere have none."""
    kept = [Sample("good/000.png", nut / "train/good/000.png", nut.parent / "maps/good/000.npy")]
    monkeypatch.setattr(measure, "normal_samples", lambda folder, normal: kept)
    runner = bench(tmp_path, nut=nut)
    told = {}
    for source in ("masks", "line", "patchcore"):
        asked = experiment({"name": "default"}, sources=[source])
        trial = runner._trial(asked, Cell(asked.rows[0], "nut", source, None, 0))
        told[source] = runner.laboratory._fit_inputs(trial)[1]
    assert told == {
        "masks": {}, "line": {}, "patchcore": {"normal": [kept[0].image], "normal_maps": [kept[0].map]},
    }  # fmt: skip


def test_a_run_is_told_how_normal_images_score(tmp_path, nut):
    """As one that makes its maps itself would know it; another seed makes no maps anew."""
    asked = experiment({"name": "default"}, sources=["patchcore"], seeds=[0, 1], metrics=["false_alarms", "missed"])
    outcome = bench(tmp_path, nut=nut).run(asked)
    assert by_state(outcome) == {"default": ["done", "done"]}
    assert len(list((tmp_path / "maps").iterdir())) == len(list((tmp_path / "runs").iterdir())) == 1
    (noted,) = (tmp_path / "runs").rglob("normal.json")
    assert len(json.loads(noted.read_text())["normal_scores"]) == 4


def test_a_long_table_has_a_column_for_each_metric(tmp_path, nut, tile, monkeypatch):
    figures = iter(range(1, 9))
    monkeypatch.setattr(
        measure.Laboratory, "classes", lambda self, case: measure.Result({"f1": next(figures) / 10, "peak_mb": 99.6})
    )
    asked = experiment(
        {"name": "default", "paper": {"method": "anomalyncd"}},
        {"name": "best", "method": "none", "source": "patchcore", "paper": {"method": "anomalyncd", "detector": "best"}},
        sources=["patchcore", "musc"], seeds=[0, 1], metrics=["f1", "peak_mb"], layout="long", tables=["17", "2", "1"],
    )  # fmt: skip
    outcome = bench(tmp_path, hazelnut=nut, mtd=tile).run(asked)
    header, rows = to_rows(outcome)
    assert header == ["data", "source", "", "F1", "peak MB", "seeds"]
    assert rows == [
        ["hazelnut", "patchcore", "default", "0.150 ± 0.050", "100 ± 0", "0, 1"],
        ["hazelnut", "patchcore", "↳ paper, Table 17", "0.927", "–", "–"],
        ["hazelnut", "pni", "best (paper only), Table 17", "0.955", "–", "–"],
        ["hazelnut", "musc", "default", "0.350 ± 0.050", "100 ± 0", "0, 1"],
        ["hazelnut", "musc", "↳ paper, Table 17", "0.718", "–", "–"],
        ["mtd", "patchcore", "default", "0.550 ± 0.050", "100 ± 0", "0, 1"],
        ["mtd", "patchcore", "↳ paper, Table 2", "0.617", "–", "–"],
        ["mtd", "patchcore", "best (paper only), Table 2", "0.617", "–", "–"],
        ["mtd", "musc", "default", "0.750 ± 0.050", "100 ± 0", "0, 1"],
        ["mtd", "musc", "↳ paper, Table 1", "0.509", "–", "–"],
        ["mean of 2", "patchcore", "default", "0.350", "100", "–"],
        ["mean of 2", "patchcore", "↳ paper", "0.772", "–", "–"],
        ["mean of 2", "patchcore", "best (paper only)", "0.786", "–", "–"],
        ["mean of 2", "musc", "default", "0.550", "100", "–"],
        ["mean of 2", "musc", "↳ paper", "0.613", "–", "–"],
        ["mean of 2", "all", "default", "0.450", "100", "–"],
        ["mean of 2", "all", "↳ paper", "0.693", "–", "–"],
    ]
    assert "s: seconds" not in to_markdown(outcome)


def test_spread_over_seeds(tmp_path, nut, monkeypatch):
    figures = iter([0.2, 0.4, 0.9])
    monkeypatch.setattr(measure.Laboratory, "classes", lambda self, case: measure.Result({"nmi": next(figures)}))
    asked = experiment({"name": "default"}, seeds=[0, 1, 2], metrics=["nmi"])
    _, rows = to_rows(bench(tmp_path, nut=nut).run(asked))
    assert rows[0][1] == f"0.500 ± {np.std([0.2, 0.4, 0.9]):.3f}"
    _, rows = to_rows(bench(tmp_path, nut=nut).run(asked, seeds=[0, 1, 2, 3], show=True))
    assert rows[0][1] == f"0.500 ± {np.std([0.2, 0.4, 0.9]):.3f} (3 of 4 seeds)"


def test_rivals_that_see_no_maps_are_fitted_once_for_all_sources(tmp_path, nut, tile, monkeypatch):
    calls = []
    original = measure.Laboratory._fit_rival
    monkeypatch.setattr(measure.Laboratory, "_fit_rival", lambda self, case: calls.append(case) or original(self, case))
    small = {"size": 32, "epochs": 1, "bank_views": 2}
    asked = experiment({"name": "GCD", "method": "gcd", "settings": small}, sources=["masks", "line"], base=["steel"])
    outcome = bench(tmp_path, nut=nut, steel=tile).run(asked)
    assert len(calls) == 1 and by_state(outcome) == {"GCD": ["done", "done"]}
    assert outcome.cells[0].metrics == outcome.cells[1].metrics


def test_boxes_are_those_of_each_source_whatever_the_rival_looks_at(tmp_path, nut):
    asked = experiment({"name": "GCD", "method": "gcd"}, sources=["line", "inverse"], metrics=["fpr", "aupro"])
    (tmp_path / "maps").mkdir()
    for path in (nut.parent / "maps").rglob("*.npy"):
        target = tmp_path / "maps" / path.relative_to(nut.parent / "maps")
        target.parent.mkdir(exist_ok=True)
        np.save(target, -np.load(path))
    maps = {("nut", "line"): nut.parent / "maps", ("nut", "inverse"): tmp_path / "maps"}
    one, other = Bench(tmp_path / "work", {"nut": nut}, maps=maps, settings=QUICK).run(asked).cells
    assert one.metrics["aupro"] > 0.7 and other.metrics["aupro"] < 0.3


def test_each_product_is_a_base_set_for_each_other(tmp_path, nut, tile):
    asked = experiment({"name": "base"}, base=["each"])
    outcome = bench(tmp_path, nut=nut, tile=tile).run(asked)
    assert [(cell.base, cell.dataset, cell.state) for cell in outcome.cells] == [
        ("nut", "nut", "left out"), ("nut", "tile", "done"), ("tile", "nut", "done"), ("tile", "tile", "left out"),
    ]  # fmt: skip


def test_times_boxes_and_combined_images(tmp_path, nut):
    asked = experiment(
        {"name": "default"}, sources=["line"], metrics=["several", "total", "network", "aupro", "fpr", "image_auroc"]
    )  # fmt: skip
    (cell,) = bench(tmp_path, nut=nut).run(asked).cells
    assert cell.state == "done"
    assert 0 < cell.metrics["network"] < cell.metrics["total"] < 10
    assert cell.metrics["several"] in (0, 0.5, 1)  # of two images
    assert cell.metrics["aupro"] > 0.7 and cell.metrics["image_auroc"] > 0.9


def test_figures_are_drawn(tmp_path, nut):
    rows = [{"name": f"T {t}", "x": t, "settings": {"binarize": {"n_thresholds": t}}} for t in (16, 64)]
    lines = experiment(*rows, {"name": "default"}, sources=["line"], metrics=["fpr", "fnr"], figure="lines")
    runs = bench(tmp_path, nut=nut)
    assert [path.name for path in draw(runs.run(lines), tmp_path)] == ["small.png"]
    points = experiment({"name": "default"}, {"name": "AC", "method": "anomaly-clustering"}, figure="tsne")
    assert draw(runs.run(points, show=True), tmp_path) == []
    (picture,) = draw(runs.run(points), tmp_path)
    assert picture.name == "small-nut-masks.png" and picture.stat().st_size > 1000


def test_shuffled_labels_change_no_prediction(tmp_path, nut):
    """Folders get other names, and images other folders: predictions of the same files stay the same."""
    files = sorted(path for path in (nut / "test").rglob("*.png") if path.parent.name != "combined")
    order = np.random.default_rng(3).permutation(len(files))
    names = ["zebra", "good", "apple"]
    other, origin = tmp_path / "shuffled", {}
    for number, place in enumerate(order.tolist()):
        source = files[place]
        target = other / "test" / names[number % 3] / f"{number:03d}.png"
        mask = nut / "ground_truth" / source.parent.name / source.name
        for copy, original in ((target, source), (other / "ground_truth" / target.parent.name / target.name, mask)):
            if original.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(original, copy)
        origin[f"{target.parent.name}/{target.name}"] = f"{source.parent.name}/{source.name}"
    asked = experiment(
        {"name": "default"}, {"name": "AC", "method": "anomaly-clustering"},
        {"name": "SimGCD", "method": "simgcd", "settings": {"size": 32, "epochs": 1, "bank_views": 2}},
    )  # fmt: skip
    found = []
    for name, path in (("true", nut), ("other", other)):
        outcome = Bench(tmp_path / name, {"nut": path}, settings=QUICK).run(asked)
        assert [cell.message for cell in outcome.cells] == [""] * 3
        tables = {}
        for cell in outcome.cells:
            table = csv.DictReader((tmp_path / name / "results" / f"{cell.result}.csv").open())
            tables[cell.row.name] = {row["image"]: row["label"] for row in table}
        found.append((tables, [cell.metrics["nmi"] for cell in outcome.cells]))
    for row, labels in found[1][0].items():
        assert {origin[name]: label for name, label in labels.items()} == found[0][0][row], row
    assert found[0][1] != found[1][1]  # the scores are of other labels


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, message: str) -> None:
        self.lines.append(message)


def test_the_preset_of_the_paper_is_its_own_on_each_data_set(tmp_path, nut, tile, fits):
    learn = {"bank_views": 2, "epochs": 1}
    asked = experiment({"name": "paper", "preset": "paper", "settings": {"learn": learn}}, {"name": "default"})
    outcome = bench(tmp_path, hazelnut=nut, mtd=tile).run(asked)
    merging = {(m.model_.config.preset, m.model_.config.merge.temperature) for m in fits}
    assert merging == {("paper", 100.0), ("paper", 50.0), ("fast", None)}
    assert all(m.model_.config.merge.normal_counts == (m.model_.config.preset == "paper") for m in fits)
    assert (
        "paper: preset paper, learn.bank_views=2, learn.epochs=1, merge.temperature=50.0 on mtd, as there."
        in to_markdown(outcome)
    )


@pytest.mark.parametrize("damage", ["{", "{}", "[]", '{"state": "done"}', '{"state": "failed"}', "null"])
def test_a_damaged_result_is_measured_again(tmp_path, nut, fits, damage):
    asked = experiment({"name": "default"})
    first = bench(tmp_path, nut=nut).run(asked)
    (stored,) = (tmp_path / "results").rglob("*.json")
    stored.write_text(damage)
    assert by_state(bench(tmp_path, nut=nut).run(asked, show=True)) == {"default": ["not run"]}
    again = bench(tmp_path, nut=nut).run(asked)
    assert len(fits) == 2 and scores(again) == scores(first)


def test_damaged_tokens_are_made_again(tmp_path, nut, tile):
    """Of a rival, and of a base set that rows share."""
    asked = experiment(
        {"name": "AC", "method": "anomaly-clustering", "settings": {"size": 32}}, {"name": "with"}, base=["steel"]
    )
    before = bench(tmp_path, nut=nut, steel=tile).run(asked)
    cut = [path for path in (tmp_path / "rivals").rglob("*.npy") if path.stat().st_size > 500]
    for path in cut:
        path.write_bytes(path.read_bytes()[:-100])
    (kept,) = (tmp_path / "base").iterdir()
    (kept / "stages.json").write_text("{")
    shutil.rmtree(tmp_path / "results")
    shutil.rmtree(tmp_path / "runs")
    after = bench(tmp_path, nut=nut, steel=tile).run(asked)
    assert cut and by_state(after) == {"AC": ["done"], "with": ["done"]}
    assert scores(after) == scores(before)


def test_a_base_set_that_was_touched_is_kept_anew(tmp_path, nut, tile, monkeypatch):
    """By its content it is the same, by its times it is not: one row computes it again, and all others share that."""
    copy = shutil.copytree(tile, tmp_path / "tile")
    rows = [{"name": f"{count} heads", "settings": {"learn": {"n_heads": count}}} for count in (1, 2, 3)]
    bench(tmp_path / "work", nut=nut, steel=copy).run(experiment(rows[0], base=["steel"]))
    for path in copy.rglob("*.png"):
        path.touch()
    calls = []
    original = Extractor.__call__
    monkeypatch.setattr(
        Extractor, "__call__", lambda self, items, **rest: calls.append(len(items)) or original(self, items, **rest)
    )
    bench(tmp_path / "work", nut=nut, steel=copy).run(experiment(*rows, base=["steel"]))
    assert sum(calls) == 8


def test_a_rival_has_no_figures_of_ours(tmp_path, nut, tile, fits):
    asked = experiment(
        {"name": "AC", "method": "anomaly-clustering", "settings": {"size": 32}},
        metrics=["f1", "normal_recall", "total", "several"],
    )  # fmt: skip
    (cell,) = bench(tmp_path, nut=nut).run(asked).cells
    assert cell.state == "done" and not fits
    assert set(cell.metrics) == {"nmi", "ari", "f1", "seconds_image", "peak_mb"}


def test_regions_of_combined_images_all_have_a_class(tmp_path, nut):
    """Also those that `predict` would call unknown: with a limit that nothing stays below, all would be."""
    asked = experiment({"name": "default", "settings": {"unknown": {"false_rate": 0.99}}}, metrics=["several"])
    strict = bench(tmp_path, nut=nut).run(asked).cells[0].metrics["several"]
    asked = experiment({"name": "default", "settings": {"unknown": {"false_rate": 0}}}, metrics=["several"])
    assert bench(tmp_path, nut=nut).run(asked).cells[0].metrics["several"] == strict > 0


def test_other_combined_images_are_measured_again(tmp_path, nut, fits):
    copy = shutil.copytree(nut, tmp_path / "nut")
    asked = experiment({"name": "default"}, metrics=["several"])
    assert bench(tmp_path / "work", nut=copy).run(asked).cells[0].metrics["several"] is not None
    shutil.rmtree(copy / "test/combined")
    assert bench(tmp_path / "work", nut=copy).run(asked).cells[0].metrics["several"] is None


def test_weights_and_precision_make_another_result(tmp_path, nut):
    names = set()
    for precision, weights in (("auto", ""), ("bfloat16", ""), ("auto", "a"), ("auto", "longer")):
        model = {"backbone": "tiny"}
        if weights:
            (tmp_path / "weights.safetensors").write_text(weights)
            model["weights"] = str(tmp_path / "weights.safetensors")
        asked = Bench(tmp_path, {"nut": nut}, settings={"precision": precision, "model": model})
        wanted = experiment({"name": "theirs", "method": "uniformaly"}, {"name": "default"}, sources=["musc"])
        for row in wanted.rows:
            trial = asked._trial(wanted, Cell(row, "nut", "musc", None, 0))
            names |= {asked._name(trial, "classes"), asked._name(trial, "boxes")}
    assert len(names) == 4 * 4


def test_a_product_without_normal_images(tmp_path, tile, fits):
    copy = shutil.copytree(tile, tmp_path / "tile")
    shutil.rmtree(copy / "test/good")
    bench(tmp_path / "work", tile=copy).run(experiment({"name": "default"}))
    assert fits[0].labels_.min() == 1 and len(fits[0].classes_) == 2


def test_what_is_not_used_is_said(tmp_path, nut, tile):
    heard = Heard()
    found = Bench(
        tmp_path, {"nut": nut, "steel": tile, "aebad": tmp_path / "gone"}, maps={("mtd", "cpr"): nut}, settings=QUICK,
        progress=heard,
    )  # fmt: skip
    assert heard.lines == ["maps of mtd are not used, because it was not given (--data mtd=PATH)."]
    outcome = found.run(experiment({"name": "with"}, {"name": "other"}, base=["aebad", "steel"]), only="with")
    assert outcome.cells[0].state == "done" and outcome.cells[0].base == "steel"
    assert len(heard.lines) == 2 and heard.lines[1].startswith("aebad: not used as a base set.")
    outcome = found.run(experiment({"name": "without"}), only="wiht*")
    assert list(outcome.data) == ["nut"]  # names of base sets are no columns
    assert "no row is called like 'wiht*'" in heard.lines[-1] and "It has without." in heard.lines[-1]
