"""`bench run paper` as a whole, quick and on a tiny network: what it foretells, a kill, going on, tables and pictures.

Covers campaign.py and costs.py, and studio.py and pictures.py as far as files go.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from anomalyncd.bench.costs import parts_of, seconds_of_a_pass
from anomalyncd.bench.experiment import METRICS, load_experiment
from anomalyncd.bench.plan import load_plan
from anomalyncd.bench.rivals import RIVALS
from anomalyncd.bench.runner import Bench
from anomalyncd.bench.studio import Studio
from anomalyncd.config import make_config
from anomalyncd.demo import make_line
from anomalyncd.detect import DETECTORS
from command import call

TRAINED = ("efficientad", "rd++", "pni", "cpr")  # their maps are given: to train them takes minutes


class Killed(BaseException):
    """Nothing catches it."""


def make_product(root: Path, *, seed: int, n_combined: int) -> Path:
    line = make_line(
        root / "line", n_per_class=3, n_normal=3, n_combined=n_combined, size=96, kinds=["hole", "print"], seed=seed
    )  # fmt: skip
    product = root / "product"
    product.mkdir()
    for old, new in (("images", "test"), ("masks", "ground_truth")):
        (line / old).rename(product / new)
    (line / "maps").rename(root / "maps")
    shutil.copytree(product / "test" / "good", product / "train" / "good")
    return product


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Of all calls: a product of eleven images, a base set, and maps of detectors that train."""
    found: list[object] = ["--backbone", "tiny", "--set", "learn.epochs=1"]
    for seed, name in enumerate(("nut", "steel")):
        root = tmp_path_factory.mktemp(name)
        product = make_product(root, seed=seed, n_combined=2 if name == "nut" else 0)
        found += ["--data", f"{name}={product}"]
        for source in TRAINED:
            found += ["--maps", f"{name}/{source}={root / 'maps'}"] if name != "steel" else []
    return found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rivals that learn for one epoch."""
    for kind in RIVALS.values():
        for parent in kind.__mro__:
            defaults = getattr(parent.__init__, "__kwdefaults__", None) or {}
            if "epochs" in defaults:
                monkeypatch.setitem(defaults, "epochs", 1)
            if "bank_views" in defaults:
                monkeypatch.setitem(defaults, "bank_views", 2)


def test_the_paper_is_killed_and_goes_on(tmp_path: Path, options: list[object], short: None, monkeypatch):
    work = tmp_path / "work"
    command = ["bench", "run", "paper", "--quick", *options, "--work", work, "--data", f"gone={tmp_path / 'gone'}"]
    measured: list[str] = []
    originals = {name: getattr(Studio, name) for name in {measurement for measurement, _ in METRICS.values()}}

    def spy(name: str, most: int) -> None:
        def counted(self: Studio, trial: object) -> object:
            if len(measured) == most:
                raise Killed
            found = originals[name](self, trial)
            measured.append(name)
            return found

        monkeypatch.setattr(Studio, name, counted)

    for name in originals:
        spy(name, 40)
    with pytest.raises(Killed):
        call(*command)
    first, already = len(measured), len(list((work / "results").rglob("*.json")))
    assert first == 40 == already
    done_before = json.loads((work / "costs-quick.json").read_text())["stages"]
    assert done_before and (work / "tables-quick" / "paper.md").is_file()  # the stages that were done can be read

    for name in originals:
        spy(name, -1)
    result = call(*command)
    text, lines = result.stdout, result.stderr
    states = [json.loads(path.read_text())["state"] for path in (work / "results").rglob("*.json")]
    assert states.count("done") == len(measured), "nothing was measured twice"
    assert states.count("failed") == 3  # this network has too few blocks for three rows of Table 5
    stages = [stage.experiment for stage in load_plan("paper").form(quick=True)]
    for stage in stages:
        assert f"\n{stage}: " in f"\n{text}"
        assert f"## {stage}: " in (work / "tables-quick" / "paper.md").read_text(encoding="utf-8")
        assert (work / "tables-quick" / f"{stage}.csv").stat().st_size > 50
    assert "table-14: done" in text and "All together about" in text and "Took, in all calls:" in text
    assert "at most 36 images" in text and "gone: skipped" in lines and " left)" in lines
    assert "left out: no row AnomalyNCD, preset paper; seed 0 only" in text
    drawn = [stage for stage in stages if load_experiment(stage).figure]
    for stage in drawn:
        pictures = list((work / "tables-quick").glob(f"{stage}*.png"))
        assert pictures, stage
        for picture in pictures:
            with Image.open(picture) as opened:
                assert min(opened.size) > 100 and opened.convert("L").getextrema() != (255, 255), picture.name
            assert picture.name in (work / "tables-quick" / "paper.md").read_text(encoding="utf-8")
    assert {"figure-attention", "figure-pair", "figure-merging", "figure-values", "combined"} <= set(drawn)

    count = len(measured)
    again = call(*command, "--stored").stdout
    assert len(measured) == count and "about" not in again.splitlines()[0]


def test_every_cell_of_the_paper_has_a_cost(tmp_path: Path, options: list[object]):
    """In its whole form; and parts that cells share are counted once."""
    data = dict(str(each).split("=") for flag, each in pairwise(options) if flag == "--data")
    bench = Bench(tmp_path, {name: Path(path) for name, path in data.items()}, settings={"model": {"backbone": "tiny"}})
    table = load_experiment("table-15").model_copy(update={"sources": ["musc"]})
    found = [parts_of(trial, what, bench.laboratory) for _, trial, what in bench.pending(table)]
    assert len(found) == 5 * 3  # thresholds, seeds
    kinds = {part.kind for parts in found for part in parts}
    assert kinds == {"timing", "maps: musc", "regions", "learning: default"}
    keys = {part.key for parts in found for part in parts if part.kind != "timing"}
    assert len(keys) == 1 + 1 + len(found)  # maps, regions, and what each cell learns
    for stage in load_plan("paper").stages:
        for _, trial, what in bench.pending(stage.narrowed(bench.sizes())):
            assert all(part.passes > 0 for part in parts_of(trial, what, bench.laboratory))
    assert set(DETECTORS) >= set(TRAINED)
    assert 0 < seconds_of_a_pass(make_config({"model": {"backbone": "tiny"}})) < 5
