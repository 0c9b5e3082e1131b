"""From classes of regions to classes of images and their tables."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anomalyncd.config import make_config
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.results import assign, classify_stored
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.tables import REGION_COLUMNS

NAMES = {0: "normal", 1: "dent", 2: "class 2"}


def image(index: int, n_regions: int = 0, error: str = "", note: str = "") -> ImageRecord:
    return ImageRecord(index, f"{index}.png", 100, 100, n_regions, 0.5, 0.3, error, note)


def region(index: int, number: int = 0, area: float = 100.0) -> Region:
    return Region(
        index=index, image=f"{index}.png", region=number, box=(1, 2, 3, 4), square=(0, 0, 10), area=area, score=0.9
    )


def model_of(classes: list[int], **merge: object) -> DiscoveryModel:
    return DiscoveryModel(make_config({"merge": merge}), classes=np.array(classes), names=NAMES)


def run_assign(images: list[ImageRecord], regions: list[Region], rows: list[list[float]], classes: list[int]):  # type: ignore[no-untyped-def]
    probabilities = np.array(rows, dtype=np.float64).reshape(-1, len(classes))
    return assign(images, regions, probabilities, model_of(classes))


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


def test_an_image_of_something_else_is_of_no_class_whatever_was_found_in_it() -> None:
    images = [image(0), image(1, 2), image(2, error="bad"), image(3), image(4, 1)]
    regions = [region(1, 0), region(1, 1), region(4)]
    rows = np.array([[0, 0.9, 0.1], [1, 0, 0], [0, 0.9, 0.1]])
    foreign, outside = np.array([0.9, 0.8, 0.0, 0.2, 0.6]), np.array([True, True, False, False, False])
    found = assign(images, regions, rows, model_of([0, 1, 2]), foreign=foreign, outside=outside)
    assert found.labels.tolist() == [-1, -1, 0, 1]
    assert found.images["class_name"].tolist() == ["not this product", "not this product", "normal", "dent"]
    assert found.images["classes"].tolist() == ["-1", "-1", "0", "1"]
    assert found.images["foreign"].tolist() == [0.9, 0.8, 0.2, 0.6]
    np.testing.assert_allclose(found.probabilities, [[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0.9, 0.1]])
    assert found.regions["label"].tolist() == [-1, -1, 1] and found.regions["probability"].tolist() == [0, 0, 0.9]
    assert found.regions["class_name"].tolist() == ["not this product", "not this product", "dent"]


def test_the_papers_sum_counts_regions_that_look_normal() -> None:
    """Sec. 3.4 by hand: all known regions, weighted by softmax(√area / τ)."""
    nan = float("nan")
    images = [image(0, 2), image(1, 2), image(2, 1)]
    regions = [region(0, 0, 40_000.0), region(0, 1, 400.0), region(1, 0), region(1, 1), region(2)]
    rows = np.array([[0.95, 0.05, 0], [0.4, 0.6, 0], [nan, nan, nan], [0.2, 0, 0.8], [nan, nan, nan]])
    found = assign(images, regions, rows, model_of([0, 1, 2], temperature=100.0, normal_counts=True))
    weight = np.exp(200 / 100) / (np.exp(200 / 100) + np.exp(20 / 100))
    first = weight * rows[0] + (1 - weight) * rows[1]
    np.testing.assert_allclose(found.probabilities, [first, [0.2, 0, 0.8], [0, 0, 0]])
    assert found.labels.tolist() == [0, 2, -1]  # by default the first image has the class of its small defect
    assert assign(images, regions, rows, model_of([0, 1, 2])).labels.tolist() == [1, 2, -1]


@pytest.mark.parametrize("normal_counts", [False, True])
def test_an_unknown_region_outranks_normal_ones_and_no_known_defect(normal_counts: bool) -> None:
    unknown, normal, dent = [float("nan")] * 3, [0.9, 0.1, 0], [0.1, 0.9, 0]
    images = [image(0, 2), image(1, 3), image(2, 1)]
    regions = [region(0, 0, 9_000.0), region(0, 1), region(1, 0, 9_000.0), region(1, 1), region(1, 2), region(2)]
    rows = np.array([normal, unknown, normal, unknown, dent, normal])
    found = assign(images, regions, rows, model_of([0, 1, 2], normal_counts=normal_counts))
    assert found.labels.tolist() == [-1, 1, 0]
    np.testing.assert_allclose(found.probabilities, [[0, 0, 0], dent, normal])


def test_without_normal_the_first_class_is_1() -> None:
    found = run_assign([image(0, 1), image(1, 1)], [region(0), region(1)], [[0.6, 0.4], [0.3, 0.7]], [1, 2])
    assert found.labels.tolist() == [1, 2]
    assert list(found.images.columns)[-2:] == ["p_1", "p_2"]


def test_no_region_and_no_image_at_all() -> None:
    found = run_assign([image(0), image(1)], [], [], [0, 1, 2])
    assert found.labels.tolist() == [0, 0] and found.probabilities.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert len(found.regions) == 0 and list(found.regions.columns) == list(REGION_COLUMNS)
    assert run_assign([image(0, error="bad")], [], [], [0, 1, 2]).probabilities.shape == (0, 3)


def test_what_is_unknown_or_another_product_is_nothing_to_compare_with() -> None:
    asked: list[list[bool]] = []

    def product(scenes: object, known: np.ndarray) -> None:
        asked.append(known.tolist())
        raise StopIteration  # the rest does not matter here

    model = SimpleNamespace(
        fit_unknown=lambda features, regions, known: asked.append(known.tolist()), fit_product=product
    )
    store = SimpleNamespace(regions=[], scenes=None)
    flags = {"unknown": np.array([True, False]), "outside": np.array([False, True])}
    with pytest.raises(StopIteration):
        classify_stored(model, store, {}, pd.DataFrame(), truth={}, fixed={}, **flags)  # type: ignore[arg-type]
    assert asked == [[False, True], [True, False]]
