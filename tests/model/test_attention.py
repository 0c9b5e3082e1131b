import pytest
import timm
import torch
from torch import nn

from anomalyncd.errors import SettingsError
from anomalyncd.model.attention import class_token_block, guidance_mask
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit


def random_batch(batch=3, size=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, 3, size, size, generator=generator)
    masks = torch.zeros(batch, size, size)
    masks[:, 16:48, 16:32] = 1
    return images, masks


def vit_with(**settings):
    torch.manual_seed(1)
    defaults = {"img_size": 64, "patch_size": 16, "embed_dim": 32, "depth": 4, "num_heads": 4, "num_classes": 0}
    return timm.models.vision_transformer.VisionTransformer(**{**defaults, **settings}, dynamic_img_size=True).eval()


VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 2},
    "layer scale": {"init_values": 0.1},
    "query norm": {"qk_norm": True},
    "no bias": {"qkv_bias": False},
}


@pytest.mark.parametrize("mode", ["none", "all", "patch", "class"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_full_mask_equals_the_plain_vit(mode, variant):
    vit = vit_with(**VARIANTS[variant])
    images, _ = random_batch()
    model = MaskGuidedViT(vit, guidance=mode, guided_blocks=4)
    plain = vit.forward_features(model.normalize(images))[:, 0]
    with torch.no_grad():
        torch.testing.assert_close(model(images, torch.ones(3, 64, 64)), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["plain", "registers"])
def test_tokens_outside_the_mask_do_not_reach_a_guided_class_token(variant):
    vit = vit_with(**VARIANTS[variant])
    model = MaskGuidedViT(vit, guided_blocks=4)
    _, masks = random_batch()
    keep = model.pool(masks)
    tokens = torch.randn(3, model.n_prefix + 16, 32)
    changed = tokens.clone()
    changed[:, model.n_prefix :][~keep] += 5
    mask = guidance_mask(keep, model.n_prefix, "class")
    for block in vit.blocks:
        before, after = block(tokens, attn_mask=mask), block(changed, attn_mask=mask)
        assert torch.equal(before[:, : model.n_prefix], after[:, : model.n_prefix])
        assert not torch.allclose(before[:, model.n_prefix :], after[:, model.n_prefix :])


def test_guidance_equals_attention_written_out():
    """One guided block with softmax over visible keys only, by hand."""
    vit = vit_with(depth=1)
    block, heads = vit.blocks[0], 4
    keep = torch.tensor([[True, False, True, False]])
    tokens = torch.randn(1, 5, 32)
    x = block.norm1(tokens)
    q, k, v = block.attn.qkv(x).reshape(5, 3, heads, 8).permute(1, 2, 0, 3)
    rows = []
    for query in range(5):
        visible = [0, 1, 3] if query == 0 else range(5)
        out = []
        for head in range(heads):
            weights = torch.stack([q[head, query] @ k[head, key] / 8**0.5 for key in visible]).softmax(0)
            out.append(sum(w * v[head, key] for w, key in zip(weights, visible, strict=True)))
        rows.append(torch.cat(out))
    y = tokens + block.attn.proj(torch.stack(rows))
    y = y + block.mlp(block.norm2(y))
    torch.testing.assert_close(block(tokens, attn_mask=guidance_mask(keep, 1, "class")), y, atol=1e-5, rtol=1e-5)


def test_mask_rows_of_each_mode():
    keep = torch.tensor([[True, False]])
    open_row, closed_row = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, float("-inf")]
    expected = {
        "all": [closed_row] * 4,
        "class": [closed_row] * 2 + [open_row] * 2,
        "patch": [open_row] * 2 + [closed_row] * 2,
    }
    for mode, rows in expected.items():
        assert guidance_mask(keep, 2, mode)[0, 0].tolist() == rows
    assert guidance_mask(keep, 2, "none") is None
    with pytest.raises(ValueError, match="none, all, patch, class"):
        guidance_mask(keep, 1, "everything")


@pytest.mark.parametrize("mode", ["all", "patch", "class"])
@pytest.mark.parametrize("reg_tokens", [0, 3])
def test_empty_mask_gives_numbers(mode, reg_tokens):
    model = MaskGuidedViT(vit_with(reg_tokens=reg_tokens), guidance=mode, guided_blocks=4)
    images, masks = random_batch()
    assert torch.isfinite(model(images, torch.zeros_like(masks))).all()


def test_empty_mask_leaves_the_class_token_with_itself_only():
    model = MaskGuidedViT(vit_with(), guided_blocks=4)
    one, _ = random_batch(seed=1)
    two, _ = random_batch(seed=2)
    empty = torch.zeros(3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(one, empty), model(two, empty))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["none", "all", "patch", "class"])
def test_class_only_block_equals_the_full_block_with_gradients(variant, mode):
    vit = vit_with(**VARIANTS[variant])
    block = vit.blocks[-1]
    prefix = vit.num_prefix_tokens
    keep = torch.rand(3, 16, generator=torch.Generator().manual_seed(4)) > 0.6
    mask = guidance_mask(keep, prefix, mode)
    results = []
    for run in (lambda x: class_token_block(block, x, mask), lambda x: block(x, attn_mask=mask)[:, 0]):
        tokens = torch.randn(3, prefix + 16, 32, generator=torch.Generator().manual_seed(5)).requires_grad_()
        block.zero_grad()
        out = run(tokens)
        out.square().sum().backward()
        results.append((out.detach(), tokens.grad, {n: p.grad.clone() for n, p in block.named_parameters()}))
    (cheap, cheap_in, cheap_grads), (full, full_in, full_grads) = results
    torch.testing.assert_close(cheap, full, atol=1e-5, rtol=0)
    torch.testing.assert_close(cheap_in, full_in, atol=1e-5, rtol=1e-4)
    for name, gradient in full_grads.items():
        torch.testing.assert_close(cheap_grads[name], gradient, atol=1e-4, rtol=1e-4)


def test_unusual_blocks_are_run_in_full():
    class Other(nn.Module):
        def forward(self, x, attn_mask=None):
            return x.mean(1, keepdim=True).expand_as(x) * 2

    tokens = torch.randn(2, 5, 8)
    torch.testing.assert_close(class_token_block(Other(), tokens, None), tokens.mean(1) * 2)


def test_only_the_last_blocks_are_guided():
    images, masks = random_batch()
    vit = vit_with()
    plain = MaskGuidedViT(vit, guidance="none")(images, masks)
    assert torch.equal(MaskGuidedViT(vit, guided_blocks=0)(images, masks), plain)
    assert not torch.allclose(MaskGuidedViT(vit, guided_blocks=1)(images, masks), plain)
    assert MaskGuidedViT(vit_with(depth=12)).first_guided == 3
    with pytest.raises(SettingsError, match="between 0 and 4"):
        MaskGuidedViT(vit, guided_blocks=5)


def test_a_backbone_without_class_token_is_refused():
    with pytest.raises(SettingsError, match="class token"):
        MaskGuidedViT(vit_with(class_token=False, global_pool="avg"))


def test_the_tiny_vit_is_always_the_same_and_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = tiny_vit(), tiny_vit()
    assert torch.equal(torch.rand(1), expected)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
