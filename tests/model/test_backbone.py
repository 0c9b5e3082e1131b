"""The backbone, by name or from a file, and what it gives."""

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from anomalyncd.errors import SettingsError, WeightsError
from anomalyncd.model import registry, weights
from anomalyncd.model.backbone import MaskGuidedViT, load_vit, resolve_name, tiny_vit


def test_auto_is_the_embedded_backbone_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_name("auto") == registry.EMBEDDED


def test_auto_takes_the_papers_backbone_only_with_gpu_and_weights(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(weights, "available", lambda name: False)
    assert resolve_name("auto") == registry.EMBEDDED
    monkeypatch.setattr(weights, "available", lambda name: True)
    assert resolve_name("auto") == "dino_vitb8"


def test_any_timm_vit_from_a_local_file(tmp_path):
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", num_classes=10)
    save_file(made.state_dict(), tmp_path / "w.safetensors")
    vit = load_vit("vit_tiny_patch16_224", file=tmp_path / "w.safetensors")
    assert not any(p.requires_grad for p in vit.parameters())
    x = torch.rand(1, 3, 224, 224)
    expected = made.eval().forward_features((x - 0.5) / 0.5)[:, 0]
    out = MaskGuidedViT(vit)(x, torch.ones(1, 224, 224))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_weights_of_another_model_are_refused(tmp_path):
    save_file(tiny_vit().state_dict(), tmp_path / "tiny.safetensors")
    with pytest.raises(WeightsError, match=r"tiny\.safetensors.*Choose the backbone"):
        load_vit("vit_tiny_patch16_224", file=tmp_path / "tiny.safetensors")


def test_a_network_that_is_no_vit_is_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises((SettingsError, WeightsError)):
        load_vit("resnet18.a1_in1k", file=tmp_path / "x.safetensors")


def test_patch_tokens_and_taps_agree_because_class_guidance_leaves_patches_alone():
    model = MaskGuidedViT(tiny_vit())
    images = torch.rand(2, 3, 64, 64)
    masks = torch.zeros(2, 64, 64)
    masks[:, :32, :32] = 1
    with torch.no_grad():
        tokens, keep, none = model.trunk(images, masks)
        assert none.shape == (2, 0, 16, 48)
        for blocks in ((1,), (3, 1)):  # up to the first guided one: behind it patches see a class token that was guided
            entering, _, patches = model.trunk(images, masks, taps=blocks)
            torch.testing.assert_close(patches, model.patch_tokens(images, blocks))
            assert patches.shape == (2, len(blocks), 16, 48) and torch.equal(entering, tokens)
        last = model.vit.blocks[-1](tokens, attn_mask=model.attention_mask(keep, model.n_blocks - 1))
        torch.testing.assert_close(model.class_token(tokens, keep), model.vit.norm(last)[:, 0])
        entering, _, patches = model.trunk(images, masks, taps=(4, 2))
        assert torch.equal(entering, tokens) and torch.equal(patches[:, 0], last[:, 1:])


@pytest.mark.parametrize(("blocks", "n_run"), [((1,), 2), ((3, 0), 4), ((2, 4), 5)])
def test_patch_tokens_are_timms_and_nothing_behind_the_last_of_them_is_run(blocks, n_run, monkeypatch):
    model = MaskGuidedViT(tiny_vit())
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        expected = model.vit.forward_intermediates(
            model.normalize(images), indices=sorted(blocks), intermediates_only=True, output_fmt="NLC"
        )
        run = []
        for index, block in enumerate(model.vit.blocks):
            block.register_forward_hook(lambda *_, index=index: run.append(index))
        found = model.patch_tokens(images, blocks)
    for place, block in enumerate(blocks):
        torch.testing.assert_close(found[:, place], expected[sorted(blocks).index(block)])
    assert run == list(range(n_run))


def test_the_last_block_is_run_for_all_tokens_only_where_they_are_wanted():
    model = MaskGuidedViT(tiny_vit())
    run = []
    model.vit.blocks[-1].register_forward_hook(lambda *_: run.append(True))
    images, masks = np.zeros((1, 64, 64, 3), np.uint8), np.ones((1, 64, 64), bool)
    alone, none = model.guided(images, masks, ())
    token, patches = model.guided(images, masks, (2, 3))
    assert not run and none.shape == (1, 0, 16, 48) and patches.shape == (1, 2, 16, 48)
    both, patches = model.guided(images, masks, (2, 4))
    assert len(run) == 1 and patches.shape == (1, 2, 16, 48)
    for other in (token, both):
        np.testing.assert_allclose(other, alone, atol=1e-6)


def test_other_input_sizes_than_the_native_one():
    model = MaskGuidedViT(tiny_vit())
    assert model.fit_size(250) == 256
    assert model(torch.rand(1, 3, 96, 96), torch.ones(1, 96, 96)).shape == (1, 48)
