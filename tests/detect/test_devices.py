"""What a detector learns lies where it was asked to: networks and tensors are brought to its device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from anomalyncd.detect import CPR, PNI, EfficientAD, PatchCore, RDPlusPlus
from anomalyncd.model.convolutional import ConvTrunk

NORMAL = list(np.random.default_rng(0).integers(90, 130, (2, 32, 32, 3), dtype=np.uint8))
SETTINGS: dict[str, Any] = {"backbone": "tiny", "size": 32, "map_size": 16, "device": "cpu", "sigma": 0}


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Names of the modules that were brought somewhere, and where to."""
    seen: list[tuple[str, Any]] = []
    original = nn.Module.to

    def to(self: nn.Module, *given: Any, **named: Any) -> nn.Module:
        seen.append((type(self).__name__, given[0]))
        return original(self, *given, **named)

    monkeypatch.setattr(nn.Module, "to", to)
    return seen


@pytest.mark.parametrize(
    ("kind", "settings", "names"),
    [
        (PatchCore, {}, ["MaskGuidedViT", "PatchBank"]),
        (PNI, {"epochs": 1, "kinds": 2, "window": 3}, ["MaskGuidedViT", "NormalPlaces"]),
        (CPR, {"steps": 1, "views": 1}, ["Gallery", "LocalBranch", "MaskGuidedViT"]),
        (EfficientAD, {"steps": 1}, ["MaskGuidedViT", "StudentTeacher", "StudentTeacher"]),
        (RDPlusPlus, {"steps": 1}, ["MaskGuidedViT", "ReverseDistillation", "ReverseDistillation"]),
    ],
)
def test_networks_are_brought_to_the_device(
    kind: Any, settings: dict[str, Any], names: list[str], brought: list[tuple[str, Any]]
) -> None:
    detector = kind(**SETTINGS, **settings).fit(NORMAL)
    assert sorted(name for name, _ in brought) == names and {str(where) for _, where in brought} == {"cpu"}
    assert len(list(detector.maps(NORMAL))) == 2


def test_the_summary_of_a_convolutional_trunk_is_the_mean_of_its_patches() -> None:
    detector = PatchCore(**{**SETTINGS, "blocks": (1, 2)})
    detector._vit = ConvTrunk(timm.create_model("resnet10t", num_classes=0).eval())
    tokens, summary = detector._tokens(np.stack(NORMAL))
    assert tokens.shape == (2, 2, 4, 4, 384)
    torch.testing.assert_close(summary, tokens[:, 1].flatten(1, 2).mean(dim=1), atol=1e-5, rtol=1e-4)
    plain = PatchCore(**SETTINGS)
    tokens, summary = plain._tokens(np.stack(NORMAL))
    found = plain.vit.block_tokens(torch.from_numpy(np.stack(NORMAL)).permute(0, 3, 1, 2), plain.used_blocks)
    torch.testing.assert_close(summary, found[4][:, 0])


@pytest.mark.parametrize(
    ("kind", "settings", "names"),
    [
        (PatchCore, {}, {"bank", "owner"}),
        (PNI, {"epochs": 1, "kinds": 2, "window": 3}, {"bank", "owner", "words", "place", "seen", "mean", "axes"}),
        (CPR, {"steps": 0}, {"centres", "histograms", "patches", "owner", "weight", "bias"}),
    ],
)
def test_only_what_cannot_be_computed_again_is_stored(kind: Any, settings: dict[str, Any], names: set[str]) -> None:
    tensors = kind(**SETTINGS, **settings).fit(NORMAL).tensors()
    assert {name for name in tensors if not name.startswith("net.")} == names
