"""A finished run as everything above reads it: tables, names, features, pictures, and clear words where it is damaged.

Covers detector, evaluate, store.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.blocks.shards import _region
from anomalyncd.data.gather import gather
from anomalyncd.errors import RunError
from anomalyncd.report.html import write_report
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder
from scenes import KINDS, TINY, fit, write_scenes


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


@pytest.fixture(scope="module")
def made(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(line, folder, "maps")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_tables_names_and_features_belong_together(made: Path) -> None:
    run = FinishedRun(made)
    loaded = AnomalyNCD.load(made)
    assert run.images["label"].tolist() == loaded.labels_.tolist()
    assert len(run.regions) == len(run.store.regions) == len(run.rows)
    assert {part: values.shape[0] for part, values in run.features.items()} == dict.fromkeys(
        run.features, len(run.regions)
    )
    assert run.names[0] == "normal" and run.names[-1] == "unknown" and run.names[1] == "class 1"
    assert run.skipped == {} and run.corrections == {} and len(run.history) == 3 and run.count is None
    assert run.config == run.model.config.model_copy(update={"device": run.config.device})


def test_pictures_are_found_by_name_and_row(made: Path, line: Path) -> None:
    run = FinishedRun(made)
    name = run.regions["image"].iloc[-1]  # the first ones are false alarms
    image, mask, heat = run.image(name), run.mask(name), run.map(name)
    assert image is not None and mask is not None and heat is not None
    assert image.shape[:2] == run.size(name) and mask.any() and run.file(name) == (line / "images" / name).absolute()
    crop, crop_mask = run.crop(0)
    assert crop is not None and crop_mask is not None and crop.shape[:2] == crop_mask.shape
    assert [own.shape for own in run.region_masks(name)] == [run.size(name)]
    assert run.range is not None and run.range[0] < run.range[1]
    assert run.true_mask(name) is None
    given = FinishedRun(made, given=gather(line / "images", masks=line / "masks").samples)
    true = given.true_mask(name)
    assert true is not None and true.any()


def test_maps_that_a_detector_made_are_found(line: Path, tmp_path: Path) -> None:
    small = {"settings": {"size": 64, "map_size": 64}}
    AnomalyNCD(4, **TINY, precision="float32", detect=small).fit(line / "images", run=tmp_path / "run")
    run = FinishedRun(tmp_path / "run")
    values = run.map(run.images["image"].iloc[0])
    assert values is not None and values.max() > 0
    detector = run.detector()
    assert detector.name == "musc" and detector.precision == "float32"  # that of the run


def test_what_is_gone_is_none(run: Path) -> None:
    shutil.rmtree(run / "crops")
    shutil.rmtree(run / "masks")
    found = FinishedRun(run)
    name = found.regions["image"].iloc[0]
    assert found.mask(name) is None and found.crop(0) == (None, None)
    assert np.all(found.region_masks(name)[0])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "images.csv").unlink(), "finished run with images.csv, none found"),
        (lambda run: shutil.rmtree(run / "tokens"), "does not fit what the run has stored"),
        (lambda run: (run / "model.safetensors").write_bytes(b"x"), "damaged"),
        (
            lambda run: (run / "manifest.csv").write_text("image,status,height,width,n_regions,message\n"),
            "row for every",
        ),
    ],
)
def test_damage_is_one_clear_line(run: Path, damage: object, words: str) -> None:
    damage(run)  # type: ignore[operator]
    with pytest.raises(RunError, match=words):
        found = FinishedRun(run)
        _ = found.images, found.features, found.model


def test_a_link_to_a_run_is_a_run(made: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made, target_is_directory=True)
    assert len(FinishedRun(tmp_path / "link").images) == len(KINDS)


def test_history_and_tables_of_a_run_that_learned_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path).writing():
        pass
    (tmp_path / "images.csv").write_text("image,label,class_name\na,1,x\n")
    with pytest.raises(RunError, match=r"manifest\.csv"):
        _ = FinishedRun(tmp_path).images
    (tmp_path / "manifest.csv").write_text("a\n1\n")
    with pytest.raises(RunError, match=r"manifest\.csv: expected the table of a run, but it has no column image"):
        _ = FinishedRun(tmp_path).images
    assert FinishedRun(tmp_path).history == []
    (tmp_path / "loss.csv").write_text("epoch,loss\n0,1.5\n1,0.25\n")
    assert FinishedRun(tmp_path).history == [{"epoch": 0, "loss": 1.5}, {"epoch": 1, "loss": 0.25}]


GOOD_COUNT = {
    "count": 3, "low": 3, "high": 4, "finer": None, "verdict": "agreed", "answers": {"a": 3, "b": 4}, "normal": True
}  # fmt: skip
WRONG_COUNTS: list[object] = [
    5, [], {}, *({**GOOD_COUNT, name: value} for name, value in (
        ("count", "x"), ("low", None), ("high", 1e308), ("high", 10**400), ("finer", []), ("answers", {}), ("answers", [3]),
        ("answers", {"a": "x"}), ("count", -1)))
]  # fmt: skip


@pytest.mark.parametrize("count", WRONG_COUNTS, ids=str)
def test_an_estimate_that_nobody_made(count: object, run: Path) -> None:
    path = run / "count.json"
    path.write_text(json.dumps(GOOD_COUNT))
    assert FinishedRun(run).count == GOOD_COUNT
    path.write_text(json.dumps(count))
    with pytest.raises(RunError, match=r"count\.json: expected how the number of classes was estimated"):
        _ = FinishedRun(run).count


@pytest.mark.parametrize("cell", ["True", "x", "n" * 5000])
def test_a_loss_that_is_no_number(cell: str, run: Path) -> None:
    path = run / "loss.csv"
    path.write_text(f"epoch,loss\n0,0.5\n1,{cell}\n")
    with pytest.raises(RunError, match=r"loss\.csv: expected numbers"):
        _ = FinishedRun(run).history
    path.write_text("epoch,loss\n0,0.5\n1,\n")
    assert len(FinishedRun(run).history) == 2


def test_groups_without_a_column(run: Path) -> None:
    (run / "groups.csv").write_text("image,region\na.png,0\n")
    with pytest.raises(RunError, match="it has no column group"):
        _ = FinishedRun(run).outliers


def test_numbers_too_large_for_a_float_are_left_out_of_the_report(run: Path) -> None:
    huge = "9" * 400
    (run / "tree.json").write_text(
        f'{{"merges": [{{"classes": [[1], [2]], "share": {huge}}}], "splits": [{{"class": 1, "share": 1e400}}]}}'
    )
    (run / "normal.json").write_text(
        f'{{"labels": [1], "line": {huge}, "normal_scores": [], "rate": 0, "scores": [0], "source": "x"}}'
    )
    assert write_report(FinishedRun(run), attention=False).exists()


@pytest.mark.parametrize(
    "value", ["../../home/letter.txt", [1, 2, 3], [1, 2, 3, "4"], {"a": 1, "b": 2, "c": 3, "d": 4}]
)
def test_a_box_of_a_stranger_that_is_no_box_is_damage(value):
    row = {"box": [0, 0, 4, 4], "square": [0, 0, 4], "area": 4, "score": 0.5}
    assert _region({**row}).box == (0, 0, 4, 4)
    with pytest.raises(ValueError, match="expected"):
        _region({**row, "box": value})
    with pytest.raises(ValueError, match="score"):
        _region({**row, "score": "0.5"})
