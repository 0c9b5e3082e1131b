"""The procedural inspection line: truth is true, maps are useful but imperfect, files are reproducible.

Covers defects, maps, scene, textures.
"""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd.demo import DEFECT_KINDS, TEXTURES, DemoImage, iter_line, make_image, make_line
from anomalyncd.errors import DataError, SettingsError

SMALL = {"n_per_class": 2, "n_normal": 2, "n_combined": 1, "size": 128}


def shoot(
    kinds: list[str], texture: str = "brushed_metal", seed: int = 0, size: tuple[int, int] = (160, 160)
) -> DemoImage:
    return make_image(kinds, texture=texture, rng=np.random.default_rng(seed), size=size)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def inside_and_outside(item: DemoImage) -> tuple[float, float]:
    """Mean of the map on the defect and away from it."""
    scores = cv2.resize(item.map, item.mask.shape[::-1], interpolation=cv2.INTER_LINEAR)
    far = cv2.dilate(item.mask.astype(np.uint8), np.ones((15, 15), np.uint8)) == 0
    return float(scores[item.mask].mean()), float(scores[far].mean())


@pytest.mark.parametrize("texture", TEXTURES)
@pytest.mark.parametrize("kind", DEFECT_KINDS)
def test_mask_is_where_the_defect_changed_the_image(kind: str, texture: str) -> None:
    for seed in range(3):
        clean, item = shoot([], texture, seed), shoot([kind], texture, seed)
        change = np.abs(item.image.astype(int) - clean.image).max(2)
        assert item.mask.sum() >= 15
        # 8 grey levels are visible; two more for rounding and for noise that grows with brightness
        assert change[~item.mask].max() < 16 and (change[~item.mask] > 10).mean() < 1e-3
        assert (change[item.mask] >= 6).mean() > 0.85


@pytest.mark.parametrize("kind", DEFECT_KINDS)
def test_a_kind_varies_in_size_and_contrast(kind: str) -> None:
    areas, contrasts = [], []
    for seed in range(14):
        clean, item = shoot([], seed=seed), shoot([kind], seed=seed)
        areas.append(item.mask.sum())
        contrasts.append(np.abs(item.image.astype(float) - clean.image).max(2)[item.mask].mean())
    assert max(areas) > 2.5 * min(areas)
    assert max(contrasts) > 1.2 * min(contrasts)


@pytest.mark.parametrize("texture", TEXTURES)
def test_good_image(texture: str) -> None:
    item = shoot([], texture)
    assert (item.label, item.kinds, item.name) == ("good", (), "good")
    assert not item.mask.any()
    assert item.image.dtype == np.uint8 and item.image.std() > 3
    assert (item.image == 0).mean() + (item.image == 255).mean() < 0.01


@pytest.mark.parametrize("size", [(96, 200), (200, 96), (129, 131), (64, 64)])
def test_sizes(size: tuple[int, int]) -> None:
    for kind in DEFECT_KINDS:
        item = shoot([kind], "terrazzo", size=size)
        assert item.image.shape == (*size, 3) and item.mask.shape == size
        assert item.map.shape == (size[0] // 2, size[1] // 2) and item.map.dtype == np.float32
        assert item.map.min() >= 0 and item.map.max() <= 1


@pytest.mark.parametrize("pair", list(itertools.combinations(DEFECT_KINDS, 2)))
def test_combined_defects_are_separate(pair: tuple[str, str]) -> None:
    item = shoot(list(pair), seed=7, size=(240, 240))
    assert (item.label, item.kinds) == ("combined", pair)
    # the letters of one print join; the gap of 8 % between two defects does not close
    joined = cv2.dilate(item.mask.astype(np.uint8), np.ones((17, 17), np.uint8))
    assert cv2.connectedComponents(joined, connectivity=8)[0] - 1 == 2


def test_maps_find_most_defects_but_not_perfectly() -> None:
    items = list(iter_line(n_per_class=12, n_normal=40, n_combined=0, size=160, seed=3))
    good = np.array([item.map.max() for item in items if item.label == "good"])
    bad = np.array([item.map.max() for item in items if item.label != "good"])
    pairs = np.array([inside_and_outside(item) for item in items if item.label != "good"])
    assert (pairs[:, 0] > 1.5 * pairs[:, 1]).mean() > 0.95
    auroc = (bad[:, None] > good).mean()
    assert 0.95 < auroc < 1
    assert np.median(good) < 0.5 * np.median(bad)
    assert good.max() > bad.min()


def test_score_follows_contrast() -> None:
    stains = [(shoot([], seed=s), shoot(["stain"], seed=s)) for s in range(25)]
    contrast = [np.abs(b.image.astype(float) - a.image).max(2)[b.mask].mean() for a, b in stains]
    assert np.corrcoef(contrast, [inside_and_outside(b)[0] for _, b in stains])[0, 1] > 0.5


def test_line_on_disk(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    out = make_line(tmp_path / "new" / "line", **SMALL, on_image=lambda done, total: calls.append((done, total)))
    total = 2 + 2 * len(DEFECT_KINDS) + 1
    assert calls == [(i, total) for i in range(1, total + 1)]

    with (out / "truth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["image"] for row in rows} == set(tree(out / "images")) and len(rows) == total
    for row in rows:
        assert Path(row["image"]).parent.name == row["label"]
        image = cv2.imread(str(out / "images" / row["image"]))
        scores = np.load((out / "maps" / row["image"]).with_suffix(".npy"))
        assert image.shape == (128, 128, 3) and scores.shape == (64, 64) and scores.dtype == np.float32
        kinds = row["kinds"].split(";") if row["kinds"] else []
        mask_file = out / "masks" / row["image"]
        assert mask_file.exists() == bool(kinds)
        if kinds:
            assert set(np.unique(cv2.imread(str(mask_file), cv2.IMREAD_UNCHANGED))) == {0, 255}
        if row["label"] == "combined":
            assert len(set(kinds)) == 2
        else:
            assert kinds == ([] if row["label"] == "good" else [row["label"]])
    item = next(item for item in iter_line(**SMALL) if item.name == "crack/001")
    assert np.array_equal(cv2.imread(str(out / "images/crack/001.png"))[..., ::-1], item.image)
    assert np.array_equal(cv2.imread(str(out / "masks/crack/001.png"), 0) > 0, item.mask)
    assert np.array_equal(np.load(out / "maps/crack/001.npy"), item.map)


def test_same_seed_same_bytes_for_any_number_of_images(tmp_path: Path) -> None:
    first = tree(make_line(tmp_path / "a", **SMALL))
    assert first == tree(make_line(tmp_path / "b", **SMALL))
    longer = tree(make_line(tmp_path / "c", **{**SMALL, "n_per_class": 3, "n_normal": 1, "n_combined": 2}))
    shared = [name for name in first.keys() & longer.keys() if name not in ("truth.csv", "demo.json")]
    assert len(shared) > 30 and all(first[name] == longer[name] for name in shared)
    other = tree(make_line(tmp_path / "d", **SMALL, seed=1))
    assert not any(first[name] == other[name] for name in first if name.startswith("images"))


def test_two_textures_take_turns_within_each_class() -> None:
    mixed = list(iter_line(**SMALL, texture=["brushed_metal", "wood_grain"]))
    metal, wood = (list(iter_line(**SMALL, texture=name)) for name in ("brushed_metal", "wood_grain"))
    for item, on_metal, on_wood in zip(mixed, metal, wood, strict=True):
        expected = on_wood if item.name.endswith("001") else on_metal
        assert np.array_equal(item.image, expected.image)


def test_reuse_repair_and_refusal(tmp_path: Path) -> None:
    settings = {"n_per_class": 1, "n_normal": 1, "n_combined": 0, "size": 64, "kinds": ["hole"]}
    out = make_line(tmp_path / "line", **settings)
    whole = tree(out)
    calls: list[int] = []
    make_line(out, **settings, on_image=lambda done, _: calls.append(done))
    assert calls == [] and tree(out) == whole

    (out / "truth.csv").unlink()
    (out / "maps/hole/000.npy").unlink()
    make_line(out, **settings)
    assert tree(out) == whole

    with pytest.raises(DataError, match=r"other settings \(seed=0\)"):
        make_line(out, **settings, seed=1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.txt").write_text("mine")
    for marker in (None, "[]", "{"):
        if marker is not None:
            (tmp_path / "photos" / "demo.json").write_text(marker)
        with pytest.raises(DataError, match="Choose another folder"):
            make_line(tmp_path / "photos", **settings)
    with pytest.raises(DataError, match="found a file"):
        make_line(tmp_path / "photos" / "holiday.txt", **settings)
    assert tree(out) == whole and json.loads(whole["demo.json"])["seed"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"texture": "velvet"}, "brushed_metal.*'velvet'"),
        ({"kinds": ["rust"], "n_combined": 0}, "scratch.*rust"),
        ({"kinds": ["hole"]}, "two kinds"),
        ({"size": 32}, "at least 64"),
        ({"n_normal": -1}, "negative"),
        ({"n_per_class": 0, "n_normal": 0, "n_combined": 0}, "at least one image"),
    ],
)
def test_bad_settings_leave_no_trace(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_line(tmp_path / "line", **{**SMALL, **settings})
    assert not (tmp_path / "line").exists()


def test_no_room() -> None:
    with pytest.raises(SettingsError, match="no room for 24"):
        shoot(["stain"] * 24, size=(64, 64))


def test_a_line_without_end_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="at most 1,000,000 images"):
        make_line(tmp_path / "line", n_per_class=2**63)
