"""`anomalyncd bench`: what a user types and reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from anomalyncd.demo import make_line
from anomalyncd.errors import AnomalyNCDError, SettingsError
from command import call


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("a product")
    line = make_line(root / "line", n_per_class=3, n_normal=3, n_combined=0, size=96, kinds=["hole", "print"])
    (line / "images").rename(root / "test")
    (line / "masks").rename(root / "ground_truth")
    shutil.rmtree(line)
    return root


def test_list_shows_what_there_is():
    text = call("bench", "list").stdout
    assert "All tables and figures of the paper" in text
    assert "goals" in text and "mtd, hazelnut" in text and "Ground-truth masks instead of maps" in text


def test_run_writes_and_prints_a_table(tmp_path: Path, product: Path):
    own = tmp_path / "own.yaml"
    rows = [
        {"name": "default", "paper": {"method": "anomalyncd"}},
        {"name": "other", "settings": {"learn": {"epochs": 1}}},
    ]
    content = {"name": "own", "title": "My own", "tables": ["14"], "sources": ["masks"], "rows": rows}
    own.write_text(yaml.safe_dump(content))
    work, out = tmp_path / "work", tmp_path / "out"
    options = ["--data", f"mtd={product}", "--work", work, "--out", out, "--backbone", "tiny", "--quiet"]
    text = call("bench", "run", own, *options, "--seeds", "0,1", "--only", "default").stdout
    assert "0.829 / 0.863 / 0.841" in text and "not run" in text and " ± " in text
    page = (out / "own.md").read_text(encoding="utf-8")
    for said in ("Command: `", "Table 14", "Backbone: tiny", "torch ", " cores", "Data: mtd, 9 images", "0, 1"):
        assert said in page
    assert (out / "own.csv").read_text(encoding="utf-8").startswith("experiment,row,method,dataset,source,base,state")
    stored = call("bench", "run", own, *options, "--stored").stdout
    assert "(2 of 3 seeds)" in stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "mtd"], "NAME=PATH"),
        (["--data", "mtd=here", "--seeds", "a"], "--seeds must be whole numbers"),
        (["--data", "mtd=here", "--maps", "cpr=here"], "DATA/SOURCE=PATH"),
        (["--data", "mtd=here", "--set", "learn.epoch=1"], "did you mean learn.epochs"),
        (["--data", "mtd=nowhere"], "none of its data sets is there"),
    ],
)
def test_mistakes(tmp_path: Path, options, message):
    with pytest.raises(AnomalyNCDError, match=message):
        call("bench", "run", "table-14", "--work", tmp_path, "--quiet", *options)


def test_an_unknown_experiment(tmp_path: Path):
    with pytest.raises(SettingsError, match="bench list"):
        call("bench", "run", "table-99", "--data", "mtd=here", "--work", tmp_path)
