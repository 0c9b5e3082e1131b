"""Covers cards.py, network.py and source.py: parts of the page, against a slow, obvious way."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd import large
from anomalyncd.model.attention import Guidance
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit
from anomalyncd.report import cards
from anomalyncd.report.cards import choose
from anomalyncd.report.network import MARGIN, SIDE, class_attention, project, sprite, subsample
from anomalyncd.report.source import ReportSource, outline


@pytest.mark.parametrize("guidance", ["none", "all", "patch", "class"])
def test_attention_is_what_the_last_block_uses(guidance: Guidance) -> None:
    vit = MaskGuidedViT(tiny_vit(), guidance="class")
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 64, 48, generator=rng)
    masks = torch.zeros(2, 64, 48, dtype=torch.bool)
    masks[0, :32, :20], masks[1, 40:, 16:] = True, True
    found = class_attention(vit, images, masks, guidance)
    assert vit.guidance == "class" and found.shape == (2, 4, 3)

    # timm's own plain attention, watched where it drops none of its weights.
    slow = MaskGuidedViT(tiny_vit(), guidance=guidance)
    seen: list[torch.Tensor] = []
    slow.vit.blocks[-1].attn.fused_attn = False
    slow.vit.blocks[-1].attn.attn_drop.register_forward_hook(lambda _module, given, _out: seen.append(given[0]))
    with torch.inference_mode():
        tokens, keep, _ = slow.trunk(images, masks)
        slow.vit.blocks[-1](tokens, attn_mask=slow.attention_mask(keep, slow.n_blocks - 1))
    expected = seen[0][:, :, 0, 1:].mean(dim=1).reshape(2, 4, 3)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    inside = keep.reshape(2, 4, 3).numpy()
    if guidance in ("class", "all"):
        assert (found[~inside] == 0).all() and (found[inside] > 0).all()
    else:
        assert (found > 0).all()


def test_classes_stay_apart_on_the_map() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), 20)
    vectors = (np.eye(3, 12)[labels] + 0.05 * rng.normal(size=(60, 12))).astype(np.float32)
    place = project(vectors)
    distances = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).all()
    np.testing.assert_array_equal(place, project(vectors))
    assert place.min() == pytest.approx(MARGIN, abs=1e-6) and place.max() == pytest.approx(SIDE - MARGIN, abs=1e-6)


@pytest.mark.parametrize("kind", ["alike", "line", "random"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 11])
def test_few_regions_have_a_place_too(count: int, kind: str) -> None:
    rng = np.random.default_rng(count)
    vectors = {
        "alike": np.ones((count, 4)),
        "line": np.arange(count)[:, None] * np.ones((1, 1)),
        "random": rng.normal(size=(count, 1200)),
    }[kind].astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place = project(vectors)
    assert place.shape == (count, 2) and np.isfinite(place).all()
    assert (place >= MARGIN - 1e-6).all() and (place <= SIDE - MARGIN + 1e-6).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=400), st.integers(130, 300))
@settings(deadline=None)
def test_a_part_of_the_regions_keeps_small_classes(labels: list[int], most: int) -> None:
    values = np.array(labels)
    kept = subsample(values, most)
    assert len(kept) == len(set(kept.tolist())) == min(most, len(values)) and (np.diff(kept) > 0).all()
    for label in set(labels):
        assert (values[kept] == label).sum() >= min(20, (values == label).sum())


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 10)), min_size=0, max_size=60),
    st.integers(0, 12),
    st.integers(0, 6),
)
@settings(deadline=None)
def test_chosen_regions_are_the_surest_and_the_least_sure(rows: list[Any], n_first: int, n_last: int) -> None:
    table = pd.DataFrame(rows, columns=["image", "tenths"]).assign(region=range(len(rows)))
    table["probability"] = table["tenths"].astype(float) / 10
    table.index = pd.Index(range(100, 100 + len(rows)))
    first, last = choose(table, np.zeros(len(rows)), n_first, n_last)
    assert len(first) == min(n_first, len(rows)) and len(last) == max(0, min(n_last, len(rows) - n_first))
    assert not set(first) & set(last)
    if last:
        assert table.loc[last, "probability"].tolist() == sorted(table["probability"])[: len(last)]
    rest = table.drop(index=last)
    n_images = rest["image"].nunique()
    assert rest.loc[first[:n_images], "image"].is_unique  # each image once before any comes again
    best = rest.groupby("image")["probability"].max().sort_values(ascending=False)
    chosen = rest.loc[first[: min(n_first, n_images)], "probability"]
    assert chosen.tolist() == best.tolist()[: len(chosen)]


def test_how_typical_a_region_is_of_many_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    labels = rng.integers(0, 3, 400)

    def typical(vectors: Any) -> np.ndarray:
        source = object.__new__(ReportSource)
        source.regions = pd.DataFrame({"label": labels})
        source.__dict__["vectors"] = vectors
        return source.typical

    middles = [x[labels == label].mean(axis=0) for label in range(3)]
    expected = [row @ middles[label] / np.linalg.norm(middles[label]) for row, label in zip(x, labels, strict=True)]
    np.testing.assert_allclose(typical(x), expected, atol=1e-5)
    monkeypatch.setattr(large, "LARGE", 50)
    np.testing.assert_allclose(typical(large.Lazy(lambda rows: x[rows], x.shape)), expected, atol=1e-5)


def test_of_equally_sure_regions_the_typical_come_first() -> None:
    table = pd.DataFrame({"image": list("abc"), "region": 0, "probability": 1.0})
    assert choose(table, [0.1, 0.9, 0.5], 2, 1) == ([1, 2], [0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_every_probability_is_in_a_bar(values: list[float]) -> None:
    chart = cards.confidence(values)
    assert sum(int(title.rpartition(" ")[2]) for *_, title in chart["bars"]) == len(values)
    assert all(x >= 0 and x + width <= cards.WIDTH for x, _, width, *_ in chart["bars"])
    assert all(y + height == pytest.approx(cards.HEIGHT, abs=0.11) for _, y, _, height, _ in chart["bars"])


@given(st.lists(st.floats(0.01, 1e8), min_size=1, max_size=50))
def test_every_area_is_in_a_bar(values: list[float]) -> None:
    chart = cards.area(values, min(values), max(values))
    assert sum(int(title.rpartition(" ")[2]) for *_, title in chart["bars"]) == len(values)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=400), st.floats(0.01, 100))
@settings(deadline=None)
def test_places_stay_in_the_frame(points: list[tuple[float, float]], aspect: float) -> None:
    chart = cards.places([x for x, _ in points], [y for _, y in points], aspect)
    assert max(chart["width"], chart["height"]) == 120 and min(chart["width"], chart["height"]) >= 30
    for x, y, side, share in chart["cells"]:
        assert 0 <= x <= chart["width"] - side and 0 <= y <= chart["height"] - side and 0 < share <= 1
    assert len(chart["cells"]) <= len(points) and chart["dots"].count("M") == min(len(points), cards.MOST_DOTS)


def test_terms_that_are_nought_or_endless_have_no_curve() -> None:
    history = [{"epoch": 0, "loss": 1.0, "zero": 0.0, "broken": float("nan")}] * 3
    curves, low, high = cards.loss_curves(history)
    assert [name for name, *_ in curves] == ["loss"] and low == high == 1.0
    assert cards.loss_curves([])[0] == []
    assert cards.loss_curves(history[:1])[0][0][1] == "M0 0L640 0"


def test_each_part_of_a_mask_has_the_colour_of_its_region() -> None:
    mask = np.zeros((60, 90), bool)
    mask[5:15, 5:15] = mask[30:50, 40:80] = True
    picture = np.full((60, 90, 3), 90, np.uint8)
    boxes = np.array([[40.0, 30, 40, 20], [5, 5, 10, 10]])
    outline(picture, mask, boxes, ["#ff0000", "#00ff00"])
    red, green = ((picture == colour).all(axis=2) for colour in ((255, 0, 0), (0, 255, 0)))
    assert red.any() and green.any() and not red[:20].any() and not green[24:].any()
    assert (picture[8:12, 8:12] == 90).all() and (picture[36:44, 46:74] == 90).all()  # the defect stays visible


def test_the_sprite_holds_every_tile() -> None:
    tiles = [np.full((2, 2, 3), number, np.uint8) for number in range(7)]
    sheet, columns = sprite(tiles)
    for number in range(7):
        y, x = divmod(number, columns)
        assert (sheet[2 * y : 2 * y + 2, 2 * x : 2 * x + 2] == number).all()
