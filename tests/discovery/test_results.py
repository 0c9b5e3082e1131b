"""From classes of regions to classes of images and their tables."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anomalyncd.assign.false_alarms import FalseAlarms, NormalScores
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


def test_unknown_and_false_alarm_of_images_are_those_of_their_regions() -> None:
    images = [image(0), image(1, 2), image(2, 1)]
    regions = [region(1, 0), region(1, 1), region(2)]
    rows = np.array([[0, 0.9, 0.1], [0, 0.8, 0.2], [0.4, 0.6, 0]])
    unknown, chance = np.array([0.1, 0.3, 0.1234567]), np.array([0.02, 0.01, 0.5])
    model = model_of([0, 1, 2])
    found = assign(images, regions, rows, model, unknown, chance, {"0.png": "good", "2.png": "x"})
    assert found.images["unknown"].tolist() == [0, 0.3, 0.123457]  # the largest
    assert found.images["false_alarm"].tolist() == [1, 0.01, 0.5]  # the smallest
    assert found.regions["unknown"].tolist() == [0.1, 0.3, 0.123457]
    assert found.regions["false_alarm"].tolist() == [0.02, 0.01, 0.5]
    assert found.images["true_label"].fillna("").tolist() == ["good", "", "x"] and found.images["foreign"].tolist() == [
        0,
        0,
        0,
    ]
    model.false_alarms = FalseAlarms(NormalScores(0.5, 0.1, 30), NormalScores(0.5, 0.1, 30))
    again = assign(images, regions, rows, model, unknown, chance)
    assert again.images["false_alarm"].tolist() == [0.5, 0.01, 0.5]  # of an image without a region by its score
    assert "true_label" not in again.images
    plain = assign(images, regions, rows, model_of([0, 1, 2]))
    assert plain.images["unknown"].tolist() == [0, 0, 0] and plain.images["false_alarm"].tolist() == [1, 0, 0]
    assert plain.regions["unknown"].tolist() == plain.regions["false_alarm"].tolist() == [0, 0, 0]
    assert plain.images["probability"].tolist() == [1, 0.85, 0.6]  # equal areas count alike
    assert plain.images[["p_0", "p_1", "p_2"]].to_numpy().tolist() == [[1, 0, 0], [0, 0.85, 0.15], [0.4, 0.6, 0]]


def test_figures_are_rounded_and_a_table_without_rows_has_the_same_types() -> None:
    odd = Region(index=0, image="0.png", region=0, box=(1, 2, 3, 4), square=(5, 6, 7), area=12.3456, score=0.12345678)
    some = run_assign([image(0, 1)], [odd], [[0, 0.12345678, 0.87654322]], [0, 1, 2]).regions
    none = run_assign([image(0)], [], [], [0, 1, 2]).regions
    assert some.iloc[0].tolist()[:11] == ["0.png", 0, 1, 2, 3, 4, 5, 6, 7, 12.35, 0.123457]
    assert some["probability"].tolist() == [0.876543] and none.dtypes.to_dict() == some.dtypes.to_dict()


class Known:
    """A model of three classes, of which nothing was learned but what is said here."""

    def __init__(self, **more: object) -> None:
        self.classes, self.names, self.config = np.array([0, 1, 2]), NAMES, make_config({})
        self.false_alarms = self.binarizer = self.classifier = None
        self.learns_normal = False
        self.__dict__.update(more)

    def fit_unknown(self, features: object, regions: object, known: object) -> np.ndarray:
        assert known is None
        return np.array([0.1, 0.2, 0.3])

    def fit_product(self, scenes: object, known: object) -> np.ndarray:
        assert scenes == "scenes" and known is None
        return np.array([0.4, 0.5, 0.0])

    def region_probabilities(self, *given: object) -> np.ndarray:
        return np.array([[0.1, 0.9, 0], [0.1, 0.8, 0.1], [0, 0.3, 0.7]])

    def false_alarm_probability(self, *given: object) -> np.ndarray:
        return np.array([0.01, 0.02, 0.03])


def stored() -> SimpleNamespace:
    return SimpleNamespace(
        regions=[region(0, 0), region(0, 1), region(1, 0)], images=[image(0, 2), image(1, 1), image(2, error="bad")],
        scenes="scenes", crop_name=lambda region: f"crop {region.index} {region.region}",
        run=SimpleNamespace(read_json=lambda name: {"normal_scores": [0.1, 0.2]}),
    )  # fmt: skip


def test_what_a_person_decided_outranks_what_was_learned() -> None:
    rows = pd.DataFrame({"image": ["0.png"]})
    fixed = {("0.png", 1): 2, ("1.png", 0): 0, ("9.png", 0): 1}
    found, files = classify_stored(Known(), stored(), {}, rows, truth={}, fixed=fixed)  # type: ignore[arg-type]
    assert found.regions["label"].tolist() == [1, 2, 0] and found.regions["probability"].tolist() == [0.9, 1, 1]
    assert found.regions["crop"].tolist() == ["crop 0 0", "crop 0 1", "crop 1 0"]
    assert found.regions["unknown"].tolist() == [0.1, 0.2, 0.3] and found.images["foreign"].tolist() == [0.4, 0.5]
    assert found.regions["false_alarm"].tolist() == [0.01, 0.02, 0.03]
    assert {*files} == {"classes.json", "manifest.csv", "regions.csv", "groups.csv", "images.csv", "tree.json"}
    assert json.loads(files["tree.json"]) == {"merges": [], "splits": []}
    assert (
        files["groups.csv"] == b"group,image,region,label,class_name\n" and files["manifest.csv"] == b"image\n0.png\n"
    )


def test_regions_that_are_said_to_be_unknown_are_of_no_class() -> None:
    model = Known(fit_unknown=lambda *given: np.zeros(3), fit_product=lambda *given: None)
    flags = {"unknown": np.array([True, False, True]), "outside": np.zeros(3, bool)}
    found, _ = classify_stored(
        model,
        stored(),
        {},
        pd.DataFrame(),
        truth={"1.png": "x"},
        fixed={("0.png", 0): 1},
        **flags,  # type: ignore[arg-type]
    )
    assert found.regions["label"].tolist() == [-1, 1, -1] and found.images["true_label"].fillna("").tolist() == [
        "",
        "x",
    ]


@pytest.mark.parametrize("learns", [True, False])
def test_the_line_between_normal_and_defect_is_kept(learns: bool) -> None:
    line = NormalScores(0.5, 0.1, 30)
    alarms = FalseAlarms(line, line, source="mixture")
    store = stored()
    store.images[1].score = float("inf")
    for known, source, level in ((None, "looks" if learns else "none", None), (alarms, "mixture", line.level(0.02))):
        model = Known(binarizer=object(), learns_normal=learns, false_alarms=known)
        model.config = make_config({"detect": {"false_alarms": 0.02}})
        found, files = classify_stored(model, store, {}, pd.DataFrame(), truth={}, fixed={})  # type: ignore[arg-type]
        kept = json.loads(files["normal.json"])
        assert kept["source"] == source and kept["rate"] == 0.02 and kept["line"] == level
        assert kept["normal_scores"] == [0.1, 0.2] and kept["scores"] == [0.5, None]
        assert kept["labels"] == found.labels.tolist()
    store.run = SimpleNamespace(read_json=lambda name: None)
    _, files = classify_stored(model, store, {}, pd.DataFrame(), truth={}, fixed={})  # type: ignore[arg-type]
    assert json.loads(files["normal.json"])["normal_scores"] == []
    model.config = make_config({"has_normal": False, "n_classes": 3})
    assert "normal.json" not in classify_stored(model, store, {}, pd.DataFrame(), truth={}, fixed={})[1]  # type: ignore[arg-type]


def test_groups_and_the_tree_are_of_the_regions_features(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr("anomalyncd.assign.outliers.outlier_groups", lambda vectors, seed: [[2], [1, 0]])
    monkeypatch.setattr("anomalyncd.assign.tree.class_tree", lambda *given: (seen.append(given), {"merges": [1]})[1])
    features = {"patches": np.zeros((3, 1, 1, 2))}
    space = SimpleNamespace(transform=lambda features: ("vectors of", features))
    model = Known(classifier=SimpleNamespace(space=space))
    _, files = classify_stored(model, stored(), features, pd.DataFrame(), truth={}, fixed={})  # type: ignore[arg-type]
    lines = files["groups.csv"].decode().splitlines()
    assert lines[1:] == ["1,1.png,0,2,class 2", "2,0.png,1,1,dent", "2,0.png,0,1,dent"]
    ((vectors, labels, keys),) = seen
    assert vectors[1] is features and labels.tolist() == [1, 1, 2]  # type: ignore[attr-defined]
    assert keys == [("0.png", 0), ("0.png", 1), ("1.png", 0)] and json.loads(files["tree.json"]) == {"merges": [1]}
