"""Fewer or more classes and rare kinds on the page: named, with pictures, and left out where they cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anomalyncd.report.html import write_report
from anomalyncd.report.source import ReportSource
from anomalyncd.report.tree import make_tree
from anomalyncd.run.finished import FinishedRun
from scenes import GOOD, fit, write_scenes

KINDS = [GOOD] * 3 + [0] * 6 + [1] * 6 + [2] * 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    fit(write_scenes(folder / "line", KINDS, seed=0), folder / "run", "masks", 4)
    (folder / "run/classes.json").write_text('{"0": "normal", "1": "<b>dent", "2": "scratch", "3": "stain"}')
    return folder / "run"


@pytest.fixture
def run(made: Path) -> Path:
    for name in ("tree.json", "groups.csv"):
        assert (made / name).is_file()
    return made


def test_steps_are_named_and_shown(run: Path) -> None:
    tree = make_tree(ReportSource(FinishedRun(run)))
    assert len(tree.fewer) == 2 and all(0 <= share <= 1 for *_, share in tree.fewer)
    assert {"<b>dent", "scratch", "stain"} >= {tree.fewer[0][0], tree.fewer[0][1]}
    for _, share, sides in tree.more:
        assert 0 <= share <= 1 and len(sides) == 2
        assert all(1 <= len(pictures) <= size for size, pictures in sides)
        assert all(shot.uri for _, pictures in sides for shot in pictures)
    page = write_report(FinishedRun(run), attention=False).read_text()
    assert 'id="tree"' in page and "With fewer classes" in page and "&lt;b&gt;dent" in page and "<b>dent" not in page


def test_rare_kinds_are_pictures(run: Path) -> None:
    before = (run / "groups.csv").read_text()
    regions = FinishedRun(run).regions
    rows = [f"1,{regions['image'][k]},{regions['region'][k]},1,dent" for k in (0, 1)]
    (run / "groups.csv").write_text("\n".join(["group,image,region,label,class_name", *rows]) + "\n")
    try:
        (group,) = make_tree(ReportSource(FinishedRun(run))).rare
        assert len(group) == 2 and all(shot.uri for shot in group)
        assert 'id="rare"' in write_report(FinishedRun(run), attention=False).read_text()
    finally:
        (run / "groups.csv").write_text(before)


@pytest.mark.parametrize(
    "damage", ["[]", "{}", '{"merges": 1, "splits": []}', '{"merges": [{}], "splits": []}', "not json"]
)
def test_what_is_damaged_is_left_out(run: Path, damage: str) -> None:
    before = (run / "tree.json").read_text()
    (run / "tree.json").write_text(damage)
    try:
        tree = make_tree(ReportSource(FinishedRun(run)))
        assert tree.fewer == [] and tree.more == []
        assert 'id="tree"' not in write_report(FinishedRun(run), attention=False).read_text()
    finally:
        (run / "tree.json").write_text(before)
    assert json.loads(before)["merges"]
