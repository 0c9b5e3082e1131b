"""Heads and the projector: what they begin as, and what they give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anomalyncd.model.heads import PrototypeHeads, make_projector


def test_logits_are_cosines_of_each_head() -> None:
    heads = PrototypeHeads(8, n_outputs=3, n_heads=2)
    features = 5 * torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    found = heads(features).detach()
    assert found.shape == (2, 4, 3)
    for head in range(2):
        for row in range(4):
            for output in range(3):
                expected = F.cosine_similarity(features[row], heads.directions[head, output].detach(), dim=0)
                assert float(found[head, row, output]) == pytest.approx(float(expected), abs=1e-6)
    torch.testing.assert_close(heads.weight.norm(dim=-1), torch.ones(2, 3))


def test_directions_begin_as_long_as_those_of_torch() -> None:
    heads = PrototypeHeads(8, n_outputs=3, n_heads=2)
    torch.testing.assert_close(heads.directions.norm(dim=-1), torch.full((2, 3), 3**-0.5))
    assert heads.directions.requires_grad and PrototypeHeads(8, 3).directions.shape == (1, 3, 8)


def test_one_head_starts_from_centres() -> None:
    heads = PrototypeHeads(4, n_outputs=2, n_heads=3)
    before = heads.directions.detach().clone()
    heads.start_from(1, torch.tensor([[3.0, 4, 0, 0], [0, 0, 0, 2]]))
    torch.testing.assert_close(heads.directions[1].detach(), torch.tensor([[0.6, 0.8, 0, 0], [0, 0, 0, 1]]))
    assert heads.directions[[0, 2]].equal(before[[0, 2]]) and heads.directions.requires_grad


def test_the_projector_has_three_layers_that_begin_small_and_without_bias() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = make_projector(96, hidden=64, out=32)
    names = [type(layer).__name__ for layer in layers]
    assert names == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(96, 64), (64, 64), (64, 32)]
    for layer in linear:
        assert not layer.bias.any() and float(layer.weight.std()) == pytest.approx(0.02, rel=0.1)
    assert [(layer.in_features, layer.out_features) for layer in make_projector(4)[::2]] == [
        (4, 2048), (2048, 2048), (2048, 256),
    ]  # fmt: skip
