"""What built-in detectors share: tokens of images of any size, and their file (tokens.py, base.py)."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anomalyncd.detect import MuSc, PatchCore, load_detector
from anomalyncd.detect.base import FILE
from anomalyncd.detect.tokens import neighbourhood
from anomalyncd.errors import RunError, SettingsError
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

TINY = {"backbone": "tiny", "size": 64, "map_size": 48, "device": "cpu"}


def picture(height=64, width=64, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize("shape", [(4, 6), (1, 5), (2, 2)])
def test_neighbourhood(side, shape):
    tokens = torch.randn(2, *shape, 3, generator=torch.Generator().manual_seed(0))
    found = neighbourhood(tokens, side)
    reach = side // 2
    for k in range(2):
        for y in range(shape[0]):
            for x in range(shape[1]):
                inside = [
                    tokens[k, v, u]
                    for v in range(y - reach, y + reach + 1)
                    for u in range(x - reach, x + reach + 1)
                    if 0 <= v < shape[0] and 0 <= u < shape[1]
                ]
                torch.testing.assert_close(found[k, y, x], torch.stack(inside).mean(0))
    torch.testing.assert_close(neighbourhood(tokens[0], side), found[0])


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [(64, 64, (4, 4)), (32, 64, (2, 4)), (900, 300, (4, 1)), (3, 500, (1, 4)), (10, 14, (3, 4))],
)
def test_grid_keeps_the_aspect(height, width, grid):
    found = next(PatchCore(**TINY).reader([picture(height, width)]))
    assert found.shape == grid and found.size == (height, width)
    assert found.blocks.shape == (3, *grid, 48)


def test_tokens_are_the_networks():
    image = picture(32, 64)
    found = next(PatchCore(blocks=(3, 1), **TINY).reader([image]))
    vit = MaskGuidedViT(tiny_vit()).eval()
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]
    with torch.no_grad():
        expected = vit.patch_tokens(batch, (3, 1))[0]
    torch.testing.assert_close(found.blocks.flatten(1, 2), expected, atol=1e-3, rtol=1e-3)
    assert torch.equal(found.blocks, found.blocks.half().float())  # rounded as they are kept


@pytest.mark.parametrize(
    ("n_blocks", "expected"), [(12, (5, 8, 11)), (5, (1, 2, 4)), (24, (11, 17, 23)), (2, (0, 1)), (1, (0,))]
)
def test_default_blocks_are_spread_over_the_second_half(n_blocks, expected):
    detector = PatchCore(**TINY)
    detector._vit = SimpleNamespace(n_blocks=n_blocks)
    assert detector.used_blocks == expected


def test_mixed_shapes_keep_their_order():
    shapes = [(64, 64), (32, 64), (32, 64), (64, 64), (64, 64), (64, 64), (64, 20)]
    images = [picture(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    detector = PatchCore(batch_size=2, **TINY)
    together = list(detector.reader(iter(images)))
    assert [grid.size for grid in together] == shapes
    for image, grid in zip(images, together, strict=True):
        torch.testing.assert_close(grid.blocks, next(detector.reader([image])).blocks, atol=1e-5, rtol=1e-5)
    detector.fit(images)
    assert [values.shape for values in detector.maps(images)] == [
        (48, 48), (24, 48), (24, 48), (48, 48), (48, 48), (48, 48), (48, 15)
    ]  # fmt: skip


@pytest.mark.parametrize("make", [PatchCore, MuSc])
def test_grey_level_extremes(make):
    images = [np.full((64, 64, 3), level, np.uint8) for level in (0, 255, 0, 255, 128)]
    detector = make(**TINY).fit(images)
    assert all(np.isfinite(values).all() and values.min() >= 0 for values in detector.maps(images))


def ready(make, **settings):
    detector = make(**TINY, **settings).fit([picture(seed=seed) for seed in range(3)])
    list(detector.maps([picture(seed=seed) for seed in range(6)]))
    return detector


@pytest.mark.parametrize("make", [PatchCore, MuSc])
def test_round_trip(make, tmp_path):
    detector = ready(make, blocks=range(1, 3), sigma=2.0)
    detector.save(tmp_path / "detector")
    assert [path.name for path in (tmp_path / "detector").iterdir()] == [FILE]
    assert all(isinstance(value, torch.Tensor) for value in load_file(tmp_path / "detector" / FILE).values())
    new = [picture(48, 64, seed=50), picture(seed=51)]
    loaded = load_detector(make.name, tmp_path / "detector", device="cpu")
    assert type(loaded) is make and loaded.settings == detector.settings
    for values, expected in zip(loaded.maps(new), detector.maps(new), strict=True):
        np.testing.assert_allclose(values, expected, atol=1e-5)
    loaded.save(tmp_path / "detector")  # over the file that it came from
    for values, expected in zip(make.load(tmp_path / "detector").maps(new), detector.maps(new), strict=True):
        np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("make", [PatchCore, MuSc])
def test_round_trip_before_it_learned_anything(make, tmp_path):
    make(**TINY).save(tmp_path)
    loaded = make.load(tmp_path)
    assert not loaded.tensors()


def test_damaged_file(tmp_path):
    ready(PatchCore).save(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for content in (b"", b"nonsense" * 9, whole[:200], whole[:-50]):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(RunError, match=FILE):
            PatchCore.load(tmp_path)


@pytest.mark.parametrize("meta", [None, {"other": "1"}, {"anomalyncd": "{"}, {"anomalyncd": '{"name": "patchcore"}'}])
def test_file_of_something_else(meta, tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / FILE, metadata=meta)
    with pytest.raises(RunError, match="not a detector"):
        PatchCore.load(tmp_path)


def test_missing_file(tmp_path):
    with pytest.raises(RunError, match="missing"):
        MuSc.load(tmp_path)


def test_file_of_another_detector(tmp_path):
    MuSc(**TINY).save(tmp_path)
    with pytest.raises(RunError, match="expected a detector 'patchcore', but found 'musc'"):
        PatchCore.load(tmp_path)


def test_file_of_another_version(tmp_path):
    meta = {"name": "patchcore", "settings": {"a_setting_of_the_future": 1}}
    save_file({"format": torch.ones(1)}, tmp_path / FILE, metadata={"anomalyncd": json.dumps(meta)})
    with pytest.raises(RunError, match=r"another version.*a_setting_of_the_future"):
        PatchCore.load(tmp_path)


@pytest.mark.parametrize("blocks", [(5,), (1, 17), (-1,), (-1, 2)])
def test_blocks_out_of_range(blocks):
    detector = PatchCore(blocks=blocks, **TINY)
    for _ in range(2):  # the second time too
        with pytest.raises(SettingsError, match="blocks must be from 0 to 4"):
            detector.fit([picture()])


@pytest.mark.parametrize("name", ["size", "map_size", "batch_size"])
def test_bad_settings(name):
    with pytest.raises(SettingsError, match=f"{name} must be at least 1, but got 0"):
        PatchCore(**TINY | {name: 0})


def test_tiled_tokens_are_the_weighted_mean_of_the_tiles():
    detector = PatchCore(tile=32, **TINY)  # enlarged twice: a tile has 4 × 4 patches, the image 4 × 10
    image = picture(32, 80)
    found = next(detector.reader([image]))
    assert found.shape == (4, 10) and found.size == (32, 80)
    scaled = detector.reader.scaled(image)
    total, weights = torch.zeros(3, 4, 10, 48), torch.zeros(10)
    for start in (0, 3, 6):
        tile = scaled[:, start * 16 : start * 16 + 64]
        blocks = next(PatchCore(**TINY).reader([tile])).blocks
        for column, weight in enumerate((1, 2, 2, 1)):
            total[:, :, start + column] += blocks[:, :, column] * weight
            weights[start + column] += weight
    torch.testing.assert_close(found.blocks, total / weights[:, None], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [PatchCore, MuSc])
def test_tiles_show_a_small_defect_of_a_large_image_and_no_seams(kind):
    images = [np.full((300, 420, 3), 120, np.uint8) for _ in range(6)]
    for seed, image in enumerate(images):
        image += np.random.default_rng(seed).integers(0, 4, image.shape, dtype=np.uint8)
    odd = images[-1].copy()
    odd[130:142, 200:212] = (255, 0, 0)
    detector = kind(tile=100, sigma=0, **TINY).fit(images[:-1])
    found = list(detector.maps([*images[:-1], odd]))[-1]
    assert found.shape == (144, 202)  # 48 for each 100 pixels
    y, x = np.unravel_index(found.argmax(), found.shape)
    assert abs(y - 136 * 0.48) < 6 and abs(x - 206 * 0.48) < 6
    plain = next(iter(detector.maps(images)))
    # Steps between neighbours where tiles begin and end are no larger than elsewhere.
    steps = np.abs(np.diff(plain, axis=1)).mean(axis=0)
    assert steps.max() < 6 * np.median(steps) + 1e-3


def test_an_image_smaller_than_a_tile_keeps_its_scale():
    detector = PatchCore(tile=128, **TINY)
    assert next(detector.reader([picture(64, 64)])).shape == (2, 2)  # 64 of 128 pixels, 4 patches a tile


def test_tile_must_be_positive():
    with pytest.raises(SettingsError, match="tile"):
        PatchCore(tile=0, **TINY)
