"""Measurements that end in pictures, on hand-made cases. Covers pictures.py too; whole files are in test_campaign.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.bench.datasets import load_base_set, load_product
from anomalyncd.bench.experiment import Experiment
from anomalyncd.bench.pictures import Case, ValuesOf, Vote, confused, draw_pair, draw_values, draw_votes
from anomalyncd.bench.runner import Bench
from anomalyncd.bench.studio import Supervised
from anomalyncd.bench.style import to_png
from anomalyncd.demo import make_line
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nut")
    line = make_line(root / "line", n_per_class=5, n_normal=5, n_combined=0, size=96, kinds=["hole", "print"])
    (line / "images").rename(root / "test")
    (line / "masks").rename(root / "ground_truth")
    shutil.copytree(root / "test" / "good", root / "train" / "good")
    return root


def measure(work: Path, product: Path, metrics: list[str], source: str = "line") -> dict[str, float | None]:
    asked = Experiment.model_validate(
        {
            "name": "own",
            "title": "",
            "sources": [source],
            "seeds": [0],
            "metrics": metrics,
            "rows": [{"name": "default"}],
        }
    )
    maps = {("nut", "line"): product / "line" / "maps"}
    settings = {"model": {"backbone": "tiny"}, "learn": {"epochs": 0}}
    (cell,) = Bench(work, {"nut": product}, maps=maps, settings=settings).run(asked).cells
    assert cell.state == "done" and all(path.read_bytes()[1:4] == b"PNG" for path in cell.pictures)
    return dict(cell.metrics)


def test_values_of_maps_are_those_of_a_loop(tmp_path: Path, product: Path):
    import cv2

    maps, inside, outside = {}, {}, []
    for path in sorted((product / "test").glob("*/*.png")):
        name = f"{path.parent.name}/{path.name}"
        maps[name] = np.load(product / "line" / "maps" / f"{path.parent.name}/{path.stem}.npy")
    low, high = min(m.min() for m in maps.values()), max(m.max() for m in maps.values())
    for name, values in maps.items():
        share = (values - low) / (high - low)
        found = list((product / "ground_truth" / name).parent.glob(f"{Path(name).stem}*"))
        mask = np.zeros(share.shape, bool)
        if found:
            mask = cv2.resize(cv2.imread(str(found[0]), 0), share.shape[::-1], interpolation=cv2.INTER_AREA) > 0
            inside[name] = share[mask].mean()
        outside.append(share[~mask].mean())
    found_metrics = measure(tmp_path, product, ["normal_value", "faintest_value", "strongest_value"])
    assert found_metrics["normal_value"] == pytest.approx(np.mean(outside), abs=0.01)
    assert found_metrics["faintest_value"] == pytest.approx(min(inside.values()), abs=0.03)
    assert found_metrics["strongest_value"] == pytest.approx(max(inside.values()), abs=0.03)


def test_a_guided_token_looks_nowhere_else(tmp_path: Path, product: Path):
    found = measure(
        tmp_path, product, ["inside_plain", "inside_guided", "inside_whole", "inside_supervised"], source="masks"
    )
    assert found["inside_guided"] == pytest.approx(1)
    for name in ("inside_plain", "inside_whole", "inside_supervised"):
        assert 0 < found[name] < 0.9  # type: ignore[operator]


def test_thresholds_lie_on_the_range_of_all_maps(tmp_path: Path, product: Path):
    found = measure(tmp_path, product, ["lowest_cut", "highest_cut"])
    assert 0 <= found["lowest_cut"] <= found["highest_cut"] <= 1  # type: ignore[operator]


def test_the_block_that_labels_teach_has_not_seen_the_region_that_it_looks_at():
    vit = MaskGuidedViT(tiny_vit())
    crops = np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), dtype=np.uint8)
    mask = np.ones((64, 64), bool)
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    labels = ["a", "a", "b", "b", "a", "b"]
    first, share = Supervised(vit, crops, labels).look(0, mask)
    other, _ = Supervised(vit, crops, ["b", *labels[1:]]).look(0, mask)
    taught, _ = Supervised(vit, crops, ["a", "b", "a", "a", "b", "b"]).look(0, mask)
    assert share == pytest.approx(1)
    np.testing.assert_array_equal(first, other)  # its own label has no say
    assert np.abs(first - taught).max() > 1e-7  # those of the others have
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())  # the network is as it was


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, max_size=30))
def test_the_confused_pair_is_that_of_all_pairs(rows: list[tuple[str, int]]):
    truth, found = [name for name, _ in rows], [cluster for _, cluster in rows]
    pair = confused(truth, found)

    def mixed(a: str, b: str) -> int:
        return sum(min(rows.count((a, cluster)), rows.count((b, cluster))) for cluster in range(4))

    pairs = [(a, b) for a in set(truth) for b in set(truth) if a < b]
    assert (pair is None) == (not pairs)
    assert pair is None or mixed(*pair) == max(mixed(*each) for each in pairs)


def test_votes_have_a_panel_for_each_region_and_each_way_of_merging():
    image = np.zeros((40, 40, 3), np.uint8)
    votes = [Vote((1, 2, 5, 6), np.array([0.1, 0.9])), Vote((20, 20, 9, 9), np.array([0.8, 0.2]))]
    merged = {"area": np.array([0.6, 0.4]), "average": np.array([0.45, 0.55])}
    figure = draw_votes([Case("a.png", image, votes, merged), Case("b.png", image, votes[:1], merged)], ["0", "1"])
    to_png(figure)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[1:5] == ["region 1", "region 2", "image, by area", "image, by average"]
    widths = [bar.get_width() for bar in figure.axes[1].patches]
    assert widths == [0.1, 0.9] and len(figure.axes[0].patches) == 2
    assert not figure.axes[7].axison  # the second image has one region


def test_pairs_and_values_are_drawn_as_they_are():
    counts = {"without": np.array([[3, 1], [2, 2]]), "with": np.array([[4, 0], [0, 4]])}
    figure = draw_pair({"cut": np.zeros((9, 9, 3), np.uint8), "poke": None}, counts)
    to_png(figure)
    assert [text.get_text() for text in figure.axes[2].texts] == ["3", "2", "1", "2"]
    inside, outside = np.full(50, 0.4), np.full(90, 0.1)
    (axis,) = draw_values([ValuesOf("a", inside, outside)], "musc").axes
    assert [text.get_text() for text in axis.texts] == ["0.10", "0.40"]


def test_a_limit_takes_some_of_each_class_and_knows_what_there_was(product: Path):
    whole, part = load_product("nut", product), load_product("nut", product, limit=9)
    counts = {label: list(part.labels.values()).count(label) for label in set(part.labels.values())}
    assert counts == {"good": 3, "hole": 3, "print": 3} and part.total == len(whole.labels) == 15
    assert [sample.id for sample in part.dataset] == [s.id for s in whole.dataset if s.id in part.labels]  # same order
    assert part.fingerprint != whole.fingerprint and len(part.normal) == 5
    assert len(load_product("nut", product, limit=2).normal) == 2
    assert load_product("nut", product, limit=99).fingerprint == whole.fingerprint
    base = load_base_set("nut", product, limit=6)
    assert len(base.dataset.samples) == 6 and base.total == 10
