"""Convolutional networks as trunks of detectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from anomalyncd.detect import EfficientAD, PatchCore, RDPlusPlus
from anomalyncd.errors import SettingsError, WeightsError
from anomalyncd.model.convolutional import ConvTrunk, load_trunk


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        safetensors.torch.save_file(timm.create_model("resnet10t").state_dict(), file)
    return file


def test_tokens_are_the_stages_on_one_grid(weights: Path) -> None:
    trunk = load_trunk("resnet10t", file=weights)
    assert isinstance(trunk, ConvTrunk) and not any(p.requires_grad for p in trunk.parameters())
    images = torch.randint(0, 256, (2, 3, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = trunk.block_tokens(images, (3, 1, 2))
    with torch.inference_mode():
        stages = trunk.network.forward_intermediates((images / 255 - trunk.mean) / trunk.std, intermediates_only=True)
    same = torch.nn.functional.adaptive_avg_pool1d(stages[2].flatten(2).transpose(1, 2), 384)  # it has patches of 8 px
    torch.testing.assert_close(found[2], same)
    fine = stages[1]  # of 4 px: 2 × 2 of them are a patch
    mean = fine.unflatten(3, (6, 2)).unflatten(2, (4, 2)).mean((3, 5)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found[1], torch.nn.functional.adaptive_avg_pool1d(mean, 384))
    assert found[3].shape == (2, 24, 384) and set(found) == {1, 2, 3}


def test_a_stage_that_is_coarser_one_way_only_is_interpolated(weights: Path) -> None:
    trunk = load_trunk("resnet10t", file=weights)
    assert isinstance(trunk, ConvTrunk)
    trunk.width = 1
    for shape, grid in (((4, 2), (4, 4)), ((2, 4), (4, 4))):
        stage = torch.arange(8.0).view(1, 1, *shape)
        expected = torch.nn.functional.interpolate(stage, size=grid, mode="bilinear", align_corners=False)
        torch.testing.assert_close(trunk._tokens(stage, grid), expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("kind", [PatchCore, RDPlusPlus, EfficientAD])
def test_detectors_look_through_them(kind: type, weights: Path, tmp_path: Path) -> None:
    more = {} if kind is PatchCore else {"steps": 2}
    detector = kind(backbone="resnet10t", weights=str(weights), size=48, map_size=48, device="cpu", **more)
    images = list(np.random.default_rng(0).integers(0, 256, (2, 48, 32, 3), dtype=np.uint8))
    expected = list(detector.fit(images).maps(images))
    assert expected[0].shape == (48, 32)
    assert detector.used_blocks == ((1, 2, 3) if kind is not EfficientAD else (1,))
    detector.save(tmp_path / "stored")
    np.testing.assert_array_equal(list(kind.load(tmp_path / "stored", device="cpu").maps(images)), expected)


def test_what_cannot_be(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="blocks must be from 0 to 4"):
        _ = PatchCore(backbone="resnet10t", weights=str(weights), blocks=(7,), device="cpu").vit
    with pytest.raises(WeightsError, match=r"wide\.safetensors: expected weights"):
        safetensors.torch.save_file({"one": torch.ones(1)}, tmp_path / "wide.safetensors")
        load_trunk("resnet10t", file=tmp_path / "wide.safetensors")
    with pytest.raises(WeightsError, match="unknown weights 'no_such_network'"):
        load_trunk("no_such_network")
