"""EfficientAD: its losses, its scaling and its jitter against slow forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anomalyncd.detect import EfficientAD
from anomalyncd.detect.efficientad import hard_mean, jittered, objective, scale
from anomalyncd.model.distill import StudentTeacher


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("shape", [(1,), (7,), (1001,), (4, 5, 6)])
def test_only_errors_from_the_quantile_on_count(share: float, shape: tuple[int, ...]) -> None:
    errors = random(*shape).double() ** 2
    limit = np.quantile(errors.numpy(), share)
    assert float(hard_mean(errors, share)) == pytest.approx(errors[errors >= limit - 1e-12].mean().item())


def test_quantiles_of_normal_errors_become_0_and_a_tenth() -> None:
    errors = [random(2, 2, 4, 4) ** 2, random(1, 2, 3, 5, seed=1) ** 2]
    found = scale(errors)
    for kind in range(2):
        values = np.concatenate([some[:, kind].numpy().ravel() for some in errors])
        assert found[kind].tolist() == pytest.approx([np.quantile(values, 0.9), np.quantile(values, 0.995)], rel=1e-5)
    low, high = scale([torch.ones(1, 2, 2, 2)]).T  # all alike: no division by nought
    assert (high > low).all()


def test_objective_term_by_term() -> None:
    network = StudentTeacher(1, 6, (4, 4)).eval()
    plain, varied = random(2, 1, 3, 2, 6 + 48), random(2, 1, 3, 2, 6 + 48, seed=1)
    with torch.inference_mode():
        teacher, pictures = network.split(plain)
        other, varied_pictures = network.split(varied)
        errors = ((network.student(pictures)[:, :6] - teacher) ** 2).numpy()
        own = network.autoencoder(varied_pictures, (3, 2))
        expected = errors[errors >= np.quantile(errors, 0.999)].mean()
        expected += float(((own - other) ** 2).mean())
        expected += float(((network.student(varied_pictures)[:, 6:] - own) ** 2).mean())
        assert float(objective(network, plain, varied)) == pytest.approx(float(expected), rel=1e-5)


def test_jitter_changes_brightness_contrast_or_saturation_by_up_to_a_fifth() -> None:
    picture = np.random.default_rng(0).integers(60, 180, (8, 8, 3), dtype=np.uint8)
    values, kinds = picture.astype(float), set()
    grey = (values @ [0.299, 0.587, 0.114])[..., None]
    for seed in range(30):
        found = jittered(picture, np.random.default_rng(seed)).astype(float)
        off = {}
        for kind, ground in {"brightness": 0.0, "contrast": grey.mean(), "saturation": grey}.items():
            away = values - ground
            factor = float((away * (found - ground)).sum() / (away**2).sum())
            off[kind] = (np.abs(found - ground - factor * away).max(), factor)
        kind = min(off, key=lambda name: off[name][0])
        assert off[kind][0] <= 1 and 0.78 < off[kind][1] < 1.22
        kinds.add(kind)
    assert kinds == {"brightness", "contrast", "saturation"}


def test_tokens_come_with_the_pixels_of_their_patches() -> None:
    detector = EfficientAD(backbone="tiny", size=48, device="cpu", blocks=(1, 3))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    tokens, _ = detector._tokens(images)
    assert tokens.shape == (2, 2, 2, 3, 48 + 3 * 16 * 16)
    expected = images[1, 16:32, 32:48].astype(np.float32).ravel() / 255
    np.testing.assert_allclose(tokens[1, 0, 1, 2, 48:], expected, rtol=1e-6)
    np.testing.assert_allclose(tokens[1, 1, 1, 2, 48:], expected, rtol=1e-6)
    assert EfficientAD(backbone="tiny", device="cpu").used_blocks == (1,)
