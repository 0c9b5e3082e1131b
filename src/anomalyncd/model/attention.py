"""Mask guidance (paper Sec. 3.3.1): which tokens a transformer block may look at, as timm's own additive attention mask."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor

Guidance = Literal["none", "all", "patch", "class"]


def guidance_mask(keep: Tensor, n_prefix: int, mode: Guidance) -> Tensor | None:
    """The additive attention mask of one guided block: 0 where a query may look, −∞ where it may not (Eq. 2 and 3).

    Prefix tokens (class token and registers) are always visible, so no row is ever all −∞ and an empty mask leaves the
    class token with the prefix only. `class` restricts the prefix rows, `patch` the patch rows, `all` every row.

    Parameters
    ----------
    keep : (B, P) bool, patches inside the mask
    n_prefix : number of tokens before the patches

    Returns
    -------
    (B, 1, N, N) float32 with N = n_prefix + P, or None for `none`

    Examples
    --------
    >>> guidance_mask(torch.tensor([[True, False]]), 1, "class")[0, 0].tolist()
    [[0.0, 0.0, -inf], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if mode not in get_args(Guidance):
        raise ValueError(f"guidance must be one of {', '.join(get_args(Guidance))}, but got {mode!r}.")
    if mode == "none":
        return None
    batch, patches = keep.shape
    hidden = torch.zeros(batch, n_prefix + patches, device=keep.device)
    hidden[:, n_prefix:].masked_fill_(~keep, float("-inf"))
    mask = hidden[:, None, None, :].repeat(1, 1, n_prefix + patches, 1)
    if mode == "class":
        mask[:, :, n_prefix:] = 0
    elif mode == "patch":
        mask[:, :, :n_prefix] = 0
    return mask


def class_token_block(block: Any, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """A timm transformer block for the class token only: queries, output projection and MLP of one token instead of all.

    Exact, because no token of a block's output depends on the other tokens' queries. Blocks with an attention other than
    timm's standard one are run in full.

    Parameters
    ----------
    tokens : (B, N, C), class token first
    mask : (B, 1, N, N) additive attention mask or None

    Returns
    -------
    (B, C), what `block(tokens, attn_mask=mask)[:, 0]` gives
    """
    attention = getattr(block, "attn", None)
    if type(block) is not Block or type(attention) is not Attention or getattr(attention, "gate", None) is not None:
        out: Tensor = block(tokens, attn_mask=mask)[:, 0]
        return out
    heads, dim = attention.num_heads, attention.head_dim
    width = heads * dim
    batch, count, _ = tokens.shape
    normed = block.norm1(tokens)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    q = F.linear(normed[:, :1], weight[:width], None if bias is None else bias[:width])
    kv = F.linear(normed, weight[width:], None if bias is None else bias[width:])
    q = q.view(batch, 1, heads, dim).transpose(1, 2)  # (B, heads, 1, d)
    k, v = kv.view(batch, count, 2, heads, dim).permute(2, 0, 3, 1, 4)  # (B, heads, N, d) each
    row = None if mask is None else mask[:, :, :1]
    mixed = F.scaled_dot_product_attention(attention.q_norm(q), attention.k_norm(k), v, attn_mask=row)
    mixed = attention.proj(attention.norm(mixed.transpose(1, 2).reshape(batch, 1, width)))
    x: Tensor = tokens[:, :1] + block.ls1(mixed)
    x = x + block.ls2(block.mlp(block.norm2(x)))
    return x[:, 0]
