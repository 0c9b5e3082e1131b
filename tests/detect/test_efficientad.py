"""EfficientAD: its losses, its scaling and its jitter against slow forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anomalyncd.detect import EfficientAD, efficientad
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


def test_one_block_at_half_of_the_depth_unless_others_are_asked_for() -> None:
    detector = EfficientAD(backbone="tiny", device="cpu")
    for n_blocks, expected in ((1, 0), (2, 0), (4, 1), (5, 1), (12, 5)):
        detector._vit = type("Trunk", (), {"n_blocks": n_blocks})()  # type: ignore[assignment]
        assert detector.used_blocks == (expected,)
    assert EfficientAD(backbone="tiny", device="cpu", blocks=(0, 2)).used_blocks == (0, 2)
    assert detector.steps == 1000


def test_how_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam, whose rate falls to a tenth for the last twentieth; quantiles of errors of what was not learned from."""
    seen: dict[str, Any] = {}

    def learn(self: Any, network: Any, optimiser: Any, grids: Any, loss: Any, *, batch: int, rate: Any) -> None:
        seen.update(optimiser=optimiser, grids=grids, batch=batch, loss=float(loss([1, 0]).detach()))
        seen["rates"] = [rate(share) for share in (0.0, 0.94, 0.95, 0.99)]
        tokens = self.stacked(grids, [1, 0]), self.stacked(seen["varied"], [1, 0])
        seen["expected"] = float(objective(network, *tokens).detach())

    original = EfficientAD.read

    def read(self: Any, pictures: Any, name: str) -> Any:
        found = original(self, pictures, name)
        seen.setdefault("names", []).append((name, len(pictures)))
        if name == "Teacher, jittered":
            seen["varied"] = found
        return found

    monkeypatch.setattr(EfficientAD, "learn", learn)
    monkeypatch.setattr(EfficientAD, "read", read)
    monkeypatch.setattr(efficientad, "objective", lambda network, *given: objective(network.eval(), *given))
    pictures = list(np.random.default_rng(0).integers(0, 256, (3, 32, 48, 3), dtype=np.uint8))
    detector = EfficientAD(backbone="tiny", size=48, device="cpu")
    network = detector.trained(pictures[:2], pictures[2:])
    assert seen["rates"] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4]) and seen["batch"] == 4
    assert isinstance(seen["optimiser"], torch.optim.Adam)
    (group,) = seen["optimiser"].param_groups
    assert group["weight_decay"] == 1e-5 and len(group["params"]) == len(list(network.parameters()))
    assert seen["names"] == [("Teacher", 2), ("Teacher, jittered", 2), ("Normal errors", 1)]
    assert seen["loss"] == pytest.approx(seen["expected"], rel=1e-5)
    rng = np.random.default_rng(0)  # the seed's
    varied = [jittered(picture, rng) for picture in pictures[:2]]
    for found, expected in zip(seen["varied"], original(detector, varied, ""), strict=True):
        assert found.equal(expected)
    tokens = torch.cat([grid[..., :48].flatten(1, 2) for grid in seen["grids"]], dim=1).double()
    torch.testing.assert_close(network.standard.mean[:, 0, 0].double(), tokens.mean(1), atol=1e-4, rtol=1e-4)
    with torch.inference_mode():
        errors = network.errors(detector.stacked(original(detector, pictures[2:], ""), [0]))
    torch.testing.assert_close(network.quantiles, scale([errors]), rtol=1e-4, atol=1e-5)


def test_a_loaded_network_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = EfficientAD(backbone="tiny", size=48, device="cpu")
    network = StudentTeacher(1, 48, (16, 16)).eval()
    again = detector.remember(dict(network.state_dict()))
    tokens = random(1, 2, 3, 48 + 768)
    assert not again.training
    with torch.inference_mode():
        torch.testing.assert_close(again(tokens), network(tokens))


def test_jitter_keeps_within_0_and_255_and_takes_its_chance_in_order() -> None:
    bright = np.full((2, 2, 3), 250, np.uint8)
    bright[0] = 3
    assert {int(jittered(bright, np.random.default_rng(seed)).max()) for seed in range(30)} >= {255}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        kind, factor = int(rng.integers(3)), float(rng.uniform(0.8, 1.2))
        picture = np.random.default_rng(9).integers(60, 180, (4, 4, 3), dtype=np.uint8)
        grey = (picture @ [0.299, 0.587, 0.114])[..., None]
        ground = (0, grey.mean(), grey)[kind]
        expected = ground + (picture - ground) * factor
        assert np.abs(jittered(picture, np.random.default_rng(seed)) - expected).max() <= 0.51


def test_black_stays_black_where_it_is_scaled() -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    assert all(not jittered(picture, np.random.default_rng(seed)).any() for seed in range(6))
