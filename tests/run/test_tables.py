"""From classes of regions to the tables of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anomalyncd.config import MergeConfig
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import RunError
from anomalyncd.regions.records import ImageRecord, RegionRecord
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import REGION_COLUMNS, assign, manifest, read_csv, read_history, read_results, to_csv

NAMES = {0: "normal", 1: "dent", 2: "class 2"}


def image(index: int, n_regions: int = 0, error: str = "", note: str = "") -> ImageRecord:
    return ImageRecord(index, f"{index}.png", 100, 100, n_regions, 0.5, 0.3, error, note)


def region(index: int, number: int = 0, area: float = 100.0) -> RegionRecord:
    return RegionRecord(index, f"{index}.png", number, (1, 2, 3, 4), (0, 0, 10), area, 0.9, "digest")


def run_assign(images: list[ImageRecord], regions: list[RegionRecord], rows: list[list[float]], classes: list[int]):  # type: ignore[no-untyped-def]
    probabilities = np.array(rows, dtype=np.float64).reshape(-1, len(classes))
    return assign(images, regions, probabilities, np.array(classes), NAMES, MergeConfig())


def test_images_regions_and_their_tables_by_hand() -> None:
    nan = float("nan")
    found = run_assign(
        [image(0), image(1, 2), image(2, error="bad"), image(3, 1), image(4, 1), image(5, 3)],
        [region(1, 0, 900.0), region(1, 1, 100.0), region(3), region(4), region(5, 0), region(5, 1), region(5, 2)],
        [[0, 0.9, 0.1], [0, 0.2, 0.8], [1, 0, 0], [nan, nan, nan], [1, 0, 0], [0, 0, 1], [nan, nan, nan]],
        [0, 1, 2],
    )
    # Image 1: weights softmax(30/10, 10/10); image 3 a false alarm; image 4 unknown; image 5 only its defect counts.
    weight = np.exp(2) / (1 + np.exp(2))
    assert found.images["image"].tolist() == ["0.png", "1.png", "3.png", "4.png", "5.png"]
    assert found.labels.tolist() == [0, 1, 0, -1, 2]
    assert found.images["label"].tolist() == found.labels.tolist()
    expected = [0, 0.9 * weight + 0.2 * (1 - weight), 0.1 * weight + 0.8 * (1 - weight)]
    np.testing.assert_allclose(found.probabilities, [[1, 0, 0], expected, [1, 0, 0], [0, 0, 0], [0, 0, 1]])
    assert found.images["class_name"].tolist() == ["normal", "dent", "normal", "unknown", "class 2"]
    assert found.images["classes"].tolist() == ["0", "1;2", "0", "-1", "2;-1"]
    assert found.images["n_regions"].tolist() == [0, 2, 1, 1, 3]
    assert found.regions["label"].tolist() == [1, 2, 0, -1, 0, 2, -1]
    assert found.regions["probability"].tolist() == [0.9, 0.8, 1, 0, 1, 1, 0]
    assert list(found.regions.columns) == list(REGION_COLUMNS)
    assert found.regions.iloc[1][["image", "region", "x", "y", "width", "height"]].tolist() == ["1.png", 1, 1, 2, 3, 4]


def test_the_papers_sum_counts_regions_that_look_normal() -> None:
    """Sec. 3.4 by hand: all known regions, weighted by softmax(√area / τ)."""
    nan = float("nan")
    images = [image(0, 2), image(1, 2), image(2, 1)]
    regions = [region(0, 0, 40_000.0), region(0, 1, 400.0), region(1, 0), region(1, 1), region(2)]
    rows = np.array([[0.95, 0.05, 0], [0.4, 0.6, 0], [nan, nan, nan], [0.2, 0, 0.8], [nan, nan, nan]])
    config = MergeConfig(temperature=100.0, normal_counts=True)
    found = assign(images, regions, rows, np.array([0, 1, 2]), NAMES, config)
    weight = np.exp(200 / 100) / (np.exp(200 / 100) + np.exp(20 / 100))
    first = weight * rows[0] + (1 - weight) * rows[1]
    np.testing.assert_allclose(found.probabilities, [first, [0.2, 0, 0.8], [0, 0, 0]])
    assert found.labels.tolist() == [0, 2, -1]  # by default the first image has the class of its small defect
    assert assign(images, regions, rows, np.array([0, 1, 2]), NAMES, MergeConfig()).labels.tolist() == [1, 2, -1]


def test_without_normal_the_first_class_is_1() -> None:
    found = run_assign([image(0, 1), image(1, 1)], [region(0), region(1)], [[0.6, 0.4], [0.3, 0.7]], [1, 2])
    assert found.labels.tolist() == [1, 2]
    assert list(found.images.columns)[-2:] == ["p_1", "p_2"]


def test_no_region_and_no_image_at_all() -> None:
    found = run_assign([image(0), image(1)], [], [], [0, 1, 2])
    assert found.labels.tolist() == [0, 0] and found.probabilities.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert len(found.regions) == 0 and list(found.regions.columns) == list(REGION_COLUMNS)
    assert run_assign([image(0, error="bad")], [], [], [0, 1, 2]).probabilities.shape == (0, 3)


def test_the_manifest_lists_every_file() -> None:
    items = [
        Sample("0.png", Path("0.png"), Path("0.npy")),
        Sample("1.png", Path("1.png")),
        Sample("2", np.zeros((2, 2, 3))),
    ]
    table = manifest([image(0, 2), image(1, error="damaged"), image(2, note="odd")], items, Path("run"))
    assert table["file"].tolist() == [str(Path("0.png").absolute()), str(Path("1.png").absolute()), ""]
    assert table["map"].tolist() == [str(Path("0.npy").absolute()), "", ""]
    assert table["status"].tolist() == ["ok", "skipped", "ok"]
    assert table["message"].tolist() == ["", "damaged", "odd"]
    assert np.isnan(table["score"][1]) and table["score"][0] == 0.5


def test_csv_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "image": ["001", "NA", "null", 'a,b "c"\n.png', "größe/缺陷 1.png"],
            "label": [0, 1, -1, 2, 3],
            "class_name": ["1", "nan", "None", "x", "y"],
            "classes": ["0", "1", "-1", "2;1", "3"],
            "p_0": rng.random(5) ** 20,
            "true_label": ["007", None, "good", "N/A", "1e3"],
        }
    )
    (tmp_path / "images.csv").write_bytes(to_csv(table).encode())
    again = read_csv(tmp_path / "images.csv")
    assert again["p_0"].tolist() == table["p_0"].tolist()  # to the last bit
    for name in ("image", "label", "class_name", "classes"):
        assert again[name].tolist() == table[name].tolist()
    assert [None if pd.isna(value) else value for value in again["true_label"]] == ["007", None, "good", "N/A", "1e3"]
    assert to_csv(again) == to_csv(table)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'a,b\n"1'], ids=["empty", "not UTF-8", "broken off"])
def test_a_damaged_table_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_bytes(content)
    with pytest.raises(RunError, match=r"images\.csv"):
        read_csv(tmp_path / "images.csv")


def test_results_of_an_unfinished_or_damaged_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected a finished run with images\.csv"):
        read_results(tmp_path)
    with RunFolder(tmp_path).writing():
        pass
    (tmp_path / "images.csv").write_text("image,label,class_name\na,1,x\n")
    with pytest.raises(RunError, match=r"manifest\.csv"):
        read_results(tmp_path)
    (tmp_path / "manifest.csv").write_text("a\n1\n")
    with pytest.raises(RunError, match=r"manifest\.csv: expected the table of a run, but it has no column image"):
        read_results(tmp_path)


def test_history(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    (tmp_path / "loss.csv").write_text("epoch,loss\n0,1.5\n1,0.25\n")
    assert read_history(tmp_path) == [{"epoch": 0, "loss": 1.5}, {"epoch": 1, "loss": 0.25}]
