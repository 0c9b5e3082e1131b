"""`watch` and `day` as they are typed, with a run of the tiny network. Covers watch, day."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from anomalyncd.cli import app
from command import call, fail
from scenes import KINDS, fit, write_scenes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scenes/ and run/, of maps."""
    place = tmp_path_factory.mktemp("watched")
    fit(write_scenes(place / "scenes", KINDS, 0), place / "run", "maps")
    return place


def test_watched_images_get_the_classes_of_predict_and_a_page(made: Path, tmp_path: Path) -> None:
    scenes, run, folder, table = made / "scenes", tmp_path / "run", tmp_path / "new", tmp_path / "out" / "line.csv"
    shutil.copytree(made / "run", run)
    shutil.copytree(scenes / "images", folder)
    given = ("--maps", scenes / "maps", "--settle", 0, "--every", 0.05, "--patience", 0)
    (folder / "late.png").write_bytes((folder / "000.png").read_bytes())  # whose map has not come
    said = call("watch", run, folder, "--out", table, *given, "--once", "--link", tmp_path / "kinds").output
    assert f"Next: anomalyncd day {table}" in said
    call(
        "predict",
        run,
        scenes / "images",
        "--maps",
        scenes / "maps",
        "--out",
        tmp_path / "p.csv",
        "--page",
        tmp_path / "p.html",
    )
    rows = pd.read_csv(table).sort_values("image").reset_index(drop=True)
    predicted = pd.read_csv(tmp_path / "p.csv")
    for column in ("image", "label", "class_name", "probability", "n_regions", "unknown", "foreign", "false_alarm"):
        assert rows[column].tolist() == predicted[column].tolist()
    regions = pd.read_csv(table.with_name("line_regions.csv"))
    own = pd.read_csv(tmp_path / "p_regions.csv")
    for column in ("x", "area", "label"):
        assert regions.sort_values(["image", "region"])[column].tolist() == own[column].tolist()
    linked = [path.parent.name for path in (tmp_path / "kinds").rglob("*.png")]
    assert sorted(linked) == sorted(rows["class_name"]) and len(list(folder.iterdir())) == len(rows) + 1
    assert "data:image/webp" in (tmp_path / "p.html").read_text("utf-8")

    np.save(scenes / "maps" / "late.npy", np.load(scenes / "maps" / "000.npy"))
    before = rows["model"].unique().tolist()
    call(
        "update",
        run,
        write_scenes(tmp_path / "more", KINDS[-3:], 7) / "images",
        "--maps",
        tmp_path / "more" / "maps",
        "--quiet",
    )
    call("watch", run, folder, "--out", table, *given, "--once")
    (scenes / "maps" / "late.npy").unlink()
    rows = pd.read_csv(table)
    assert rows["image"].iloc[-1] == "late.png" and len(rows) == len(predicted) + 1
    assert rows["model"].iloc[-1] not in before

    said = call("day", table, "--pdf", "--by", "model", "--shifts", "5,17").output
    page = next(tmp_path.glob("out/line-*.html"))
    assert str(page) in said and page.with_suffix(".pdf").exists() and "By model" in page.read_text("utf-8")


def test_wrong_calls_are_told_in_words(made: Path, tmp_path: Path) -> None:
    run, scenes = made / "run", made / "scenes"
    images, maps = scenes / "images", ("--maps", scenes / "maps")
    out = ("--out", tmp_path / "t.csv")
    assert "expected --maps" in fail("watch", run, images, *out, "--once")
    assert "not both" in fail("watch", run, images, *out, *maps, "--masks", scenes / "masks")
    assert "not both" in fail("watch", run, images, *out, *maps, "--move", tmp_path / "a", "--link", tmp_path / "b")
    assert "lies inside" in fail("watch", run, images, *out, *maps, "--move", images / "kinds")
    assert "lies inside" in fail("watch", run, made, *out, *maps)
    assert "expected a folder that images arrive in" in fail("watch", run, tmp_path / "none", *out, *maps)
    assert "needs a token" in fail("watch", run, images, *out, *maps, "--port", 0, "--host", "0.0.0.0")
    assert ".csv, .sqlite or .parquet" in fail("watch", run, images, "--out", tmp_path / "t.txt", *maps)
    assert "--settle must be" in fail("watch", run, images, *out, *maps, "--settle", 1e9)
    assert "would lie inside" in fail("watch", run, images, *maps, "--out", run / "images.csv")
    assert "ends in .html" in fail("day", _table(tmp_path), "--out", tmp_path / "small.csv")
    assert "ends in .html" in fail("predict", run, images, *maps, *out, "--page", tmp_path / "p.csv")
    assert "there is no a.png" in fail("day", _table(tmp_path), "--images", tmp_path)
    assert "--images DIR tells" in call("day", _table(tmp_path)).output
    assert "expected hours" in fail("day", _table(tmp_path), "--shifts", "6,soon")
    assert "--engine local" in fail(
        "predict", run, images, *maps, *out, "--engine", "ray", "--page", tmp_path / "p.html"
    )
    assert "about .csv tables" in fail(
        "predict", run, images, *maps, "--out", tmp_path / "t.parquet", "--quote-formulas"
    )


def _table(folder: Path) -> Path:
    (folder / "small.csv").write_text("image,label,class_name\na.png,0,normal\n")
    return folder / "small.csv"


LITTLE = """
import sys
from importlib.machinery import PathFinder

absent, find = sys.argv[1].split(","), PathFinder.find_spec  # as if they were not installed
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in absent else find(name, *rest)
import anomalyncd.cli, anomalyncd.runtime, anomalyncd.watch.places, anomalyncd.watch.table, anomalyncd.watch.watcher
"""


def test_an_exported_run_is_watched_without_torch_and_the_libraries_of_pages() -> None:
    absent = "torch,timm,torchvision,sklearn,scipy,matplotlib,jinja2,fastapi,starlette,uvicorn,prometheus_client,paho"
    subprocess.run([sys.executable, "-c", LITTLE, absent], check=True)


def test_the_services_of_the_docs_are_ones(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "every-day.md").read_text("utf-8").partition("### As a service")[2]
    text = text.partition("### ")[0]
    known = {option for parameter in get_command(app).commands["watch"].params for option in parameter.opts}
    calls = [set(re.findall(r" (--[a-z-]+)", call)) for call in re.findall(r"watch (?:/|D:).*", text)]
    assert len(calls) == 3 and all({"--out", "--quiet"} <= options <= known for options in calls)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd")
    unit = "".join(
        f"{line[4:]}\n" for line in re.findall(r"    \[Unit\].*?multi-user.target", text, re.S)[0].splitlines()
    )
    for there, here in (("/opt/anomalyncd/bin/anomalyncd", "/bin/true"), ("User=inspector", "User=root")):
        assert there in unit
        unit = unit.replace(there, here)
    (tmp_path / "line1.service").write_text(unit)
    found = subprocess.run([analyze, "verify", tmp_path / "line1.service"], capture_output=True, text=True)
    assert "line1.service" not in found.stderr, found.stderr
