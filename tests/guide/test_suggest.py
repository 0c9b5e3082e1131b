"""What to look at next in a run, in Python and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from anomalyncd import AnomalyNCD
from anomalyncd.discovery.relearn import relearn
from anomalyncd.guide.suggest import suggest
from anomalyncd.review.app import make_app
from anomalyncd.run.finished import FinishedRun
from scenes import GOOD, KINDS, fit, write_scenes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide")
    fit(write_scenes(folder / "line", KINDS, seed=0), folder / "run", "masks")
    return folder / "run"


def test_regions_classes_and_what_was_decided(run: Path) -> None:
    found = suggest(FinishedRun(run), 4)
    table = FinishedRun(run).regions
    assert len(found.regions) == 4 == len(set(table["image"].iloc[found.regions]))
    assert all(len(merge["classes"]) == 2 and len(merge["names"]) == 2 for merge in found.merges) and found.merges
    assert all(split["class"] > 0 and len(split["parts"]) == 2 for split in found.splits)
    first = (table["image"].iloc[found.regions[0]], int(table["region"].iloc[found.regions[0]]))
    assert found.regions[0] not in suggest(FinishedRun(run), 4, [first]).regions
    assert suggest(FinishedRun(run), 1000).regions and len(suggest(FinishedRun(run), 1000).regions) <= len(table)
    assert AnomalyNCD.load(run).suggest(4) == found


def test_the_page_is_told_the_same(run: Path) -> None:
    app = make_app(run)
    try:
        client = TestClient(app, base_url="http://127.0.0.1")
        answer = client.get("/api/next", params={"n": 3}).json()
        found = suggest(FinishedRun(run), 3)
        assert [region["id"] for region in answer["regions"]] == found.regions
        assert answer["merges"] == found.merges and answer["splits"] == found.splits
        assert client.get("/api/next", params={"n": 0}).status_code == 422
    finally:
        app.state.close()


def test_a_correction_is_not_asked_for_again(run: Path, tmp_path: Path) -> None:
    model = AnomalyNCD.load(run)
    model.save(tmp_path / "copy")
    place = suggest(FinishedRun(tmp_path / "copy"), 1).regions[0]
    row = model.regions_.iloc[place]
    key = (row["image"], int(row["region"]))
    relearn(tmp_path / "copy", {key: int(row["label"])}, [key], {})
    assert place not in suggest(FinishedRun(tmp_path / "copy"), 50).regions


def test_a_run_without_regions_has_nothing_to_show(tmp_path: Path) -> None:
    fit(write_scenes(tmp_path / "line", [GOOD] * 3, seed=0), tmp_path / "run", "maps", 2)
    found = suggest(FinishedRun(tmp_path / "run"))
    assert isinstance(found.regions, list)
