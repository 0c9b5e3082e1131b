"""The backbone around its blocks: sizes, pixels, which blocks are guided; and weights that do not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch

from anomalyncd.errors import SettingsError, WeightsError
from anomalyncd.model import backbone as module
from anomalyncd.model.backbone import MaskGuidedViT, image_tensor, load_weights, mask_tensor, tiny_vit


@pytest.fixture(scope="module")
def model() -> MaskGuidedViT:
    return MaskGuidedViT(tiny_vit())


def test_what_it_is_made_of(model: MaskGuidedViT) -> None:
    assert (model.n_blocks, model.width, model.n_prefix, model.patch_size) == (5, 48, 1, (16, 16))
    assert model.first_guided == 3 and model.guidance == "class" and model.precision == "float32"
    assert [model.fit_size(size) for size in (1, 7, 24, 25, 40, 41, 224)] == [16, 16, 32, 32, 32, 48, 224]
    assert model.vit.blocks[0].attn.num_heads == 3 and model.vit.num_classes == 0
    assert "mean" not in model.state_dict()


@pytest.mark.parametrize(("guided", "first"), [(None, 3), (0, 5), (1, 4), (5, 0)])
def test_the_last_blocks_are_guided(guided: int | None, first: int) -> None:
    model = MaskGuidedViT(tiny_vit(), guided_blocks=guided)
    assert model.first_guided == first
    keep = torch.tensor([[True, False, True, False]])
    masks = [model.attention_mask(keep, block) for block in range(5)]
    assert [mask is not None for mask in masks] == [block >= first for block in range(5)]


@pytest.mark.parametrize("guided", [-1, 6])
def test_no_more_blocks_are_guided_than_there_are(guided: int) -> None:
    with pytest.raises(SettingsError, match=f"guided_blocks must be between 0 and 5, .* but got {guided}"):
        MaskGuidedViT(tiny_vit(), guided_blocks=guided)
    for wrong in (SimpleNamespace(cls_token=None, blocks=[]), SimpleNamespace(cls_token=1)):
        with pytest.raises(SettingsError, match="must be a vision transformer with a class token"):
            MaskGuidedViT(wrong)


def test_a_shallow_trunk_guides_its_last_block() -> None:
    vit = tiny_vit()
    vit.blocks = vit.blocks[:2]
    assert MaskGuidedViT(vit).first_guided == 1


def test_pixels_are_brought_to_the_range_of_training(model: MaskGuidedViT) -> None:
    images = torch.randint(0, 256, (1, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = (images / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    torch.testing.assert_close(model.normalize(images), expected)
    torch.testing.assert_close(model.normalize(images.float() / 255), expected)
    array = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    assert image_tensor(array, torch.device("cpu"))[0, 2, 1, 3] == array[0, 1, 3, 2]
    assert mask_tensor(array[..., 0] > 3, torch.device("cpu")).tolist() == (array[..., 0] > 3).tolist()


def test_patches_inside_the_mask_of_an_image_that_is_not_square(model: MaskGuidedViT) -> None:
    masks = torch.zeros(2, 32, 64)
    masks[0, 16:, 48:] = 1  # the last patch of the second row
    masks[1, :16, 16:40] = 1  # the second, and half of the third
    keep = model.pool(masks)
    assert keep.shape == (2, 8) and keep[0].nonzero().flatten().tolist() == [7]
    assert keep[1].nonzero().flatten().tolist() == [1, 2]
    vit = SimpleNamespace(patch_size=(8, 16), mask_threshold=0.5, keep_thin=False)
    assert MaskGuidedViT.pool(vit, masks).shape == (2, 4 * 4)  # type: ignore[arg-type]


def test_tokens_after_blocks_and_without_any(model: MaskGuidedViT) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    masks = np.zeros((2, 32, 48), bool)
    masks[:, :16] = True
    token, patches = model.guided(images, masks, ())
    assert token.shape == (2, 48) and patches.shape == (2, 0, 6, 48) and token.dtype == np.float32
    again, some = model.guided(images, masks, (4, 1))
    assert some.shape == (2, 2, 6, 48)
    np.testing.assert_allclose(again, token, atol=1e-5)
    plain = model.patches(images, (1, 4))
    np.testing.assert_allclose(some[:, 1], plain[:, 0], atol=1e-5)
    with torch.inference_mode():
        whole = model(image_tensor(images, torch.device("cpu")), mask_tensor(masks, torch.device("cpu")))
        kept = model.pool(mask_tensor(masks, torch.device("cpu")))
        same, _, _ = model.trunk(image_tensor(images, torch.device("cpu")), kept)
        np.testing.assert_allclose(model.class_token(same, kept), token, atol=1e-5)
    np.testing.assert_allclose(whole, token, atol=1e-5)
    other = model.guided(images, ~masks, ())[0]
    assert np.abs(other - token).max() > 1e-3
    unguided = MaskGuidedViT(model.vit, guided_blocks=0)
    np.testing.assert_allclose(unguided.guided(images, masks, ())[0], unguided.guided(images, ~masks, ())[0], atol=1e-6)


def test_a_random_network_is_always_the_same_and_leaves_chance_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = tiny_vit(), tiny_vit()
    assert torch.rand(1).equal(expected) and not one.training
    assert all(a.equal(b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_weights_that_do_not_fit_are_said_and_more_of_them_do_not_matter(tmp_path: Path) -> None:
    vit, file = tiny_vit(), tmp_path / "w.safetensors"
    state = {name: value + 1 for name, value in vit.state_dict().items()}
    safetensors.torch.save_file({**state, "head.weight": torch.zeros(3)}, file)
    load_weights(vit, file)
    assert vit.state_dict()["cls_token"].equal(state["cls_token"])
    less = {name: value for name, value in state.items() if name != "norm.bias"}
    safetensors.torch.save_file(less, file)
    with pytest.raises(
        WeightsError, match=r"expected weights of VisionTransformer with \d+ tensors, but norm\.bias is missing"
    ):
        load_weights(vit, file)
    safetensors.torch.save_file({**state, "norm.bias": torch.zeros(7)}, file)
    with pytest.raises(WeightsError, match=r"norm\.bias has shape \(7,\)"):
        load_weights(vit, file)


@pytest.mark.parametrize(
    ("gpu", "there", "name"),
    [(True, True, "dino_vitb8"), (True, False, "dinov2_vits14"), (False, True, "dinov2_vits14")],
)
def test_the_papers_backbone_where_it_can_be_used(
    gpu: bool, there: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(module.weights, "available", lambda asked: there and asked == "dino_vitb8")
    assert module.resolve_name("auto") == (name if name == "dino_vitb8" else module.registry.EMBEDDED)
    assert module.resolve_name("tiny") == "tiny"
