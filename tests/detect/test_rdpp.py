"""RD++: its losses against slow forms, and its noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from anomalyncd.detect import rdpp
from anomalyncd.detect.rdpp import apart, noised, objective, projection_loss, sinkhorn_divergence
from anomalyncd.model.distill import ReverseDistillation


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, other: Tensor) -> float:
    a, b = one.flatten().double().numpy(), other.flatten().double().numpy()
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def test_apart_is_one_minus_cosine_of_all_numbers_of_a_level() -> None:
    one, other = random(3, 2, 4, 5, 6), random(3, 2, 4, 5, 6, seed=1)
    expected = [[1 - cosine(one[b, level], other[b, level]) for level in range(2)] for b in range(3)]
    torch.testing.assert_close(apart(one, other), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def slow_transport(one: Tensor, other: Tensor, epsilon: float) -> float:
    """Entropic transport of equal weights by scaling a kernel to its margins, then its cost and its divergence."""
    x, y = one.double().numpy(), other.double().numpy()
    cost = np.array([[((a - b) ** 2).sum() / 2 for b in y] for a in x])
    kernel, u, v = np.exp(-cost / epsilon) / cost.size, np.ones(len(x)), np.ones(len(y))
    for _ in range(5000):
        u = (1 / len(x)) / (kernel @ v)
        v = (1 / len(y)) / (kernel.T @ u)
    plan = u[:, None] * kernel * v
    return float((plan * cost).sum() + epsilon * (plan * np.log(plan * cost.size)).sum())


@pytest.mark.parametrize("blur", [0.3, 1.0])
def test_sinkhorn_divergence(blur: float) -> None:
    one, other = random(4, 3), random(5, 3, seed=1) + 0.5
    expected = (
        slow_transport(one, other, blur**2)
        - (slow_transport(one, one, blur**2) + slow_transport(other, other, blur**2)) / 2
    )
    found = sinkhorn_divergence(one.double(), other.double(), blur, iterations=500)
    assert float(found) == pytest.approx(expected, rel=1e-3)


def test_with_little_blur_it_is_the_best_pairing() -> None:
    one, other = random(4, 2).double(), random(4, 2, seed=1).double()
    pairings = itertools.permutations(range(4))
    expected = min(float(((one - other[list(order)]) ** 2).sum(1).mean() / 2) for order in pairings)
    assert float(sinkhorn_divergence(one, other, 0.05, iterations=3000)) == pytest.approx(expected, rel=0.02)


def test_a_batch_and_its_shuffle_are_the_same_cloud() -> None:
    points = random(6, 5)
    assert float(sinkhorn_divergence(points, points[[3, 1, 5, 0, 2, 4]])) == pytest.approx(0, abs=1e-6)


def test_the_divergence_pulls_clouds_together() -> None:
    one, other = random(3, 2).requires_grad_(), random(3, 2, seed=1) + 5
    sinkhorn_divergence(one, other, 0.5).backward()
    assert ((other.mean(0) - one.detach().mean(0)) * -one.grad.sum(0) > 0).all()  # type: ignore[union-attr]


def test_projection_loss_term_by_term() -> None:
    noisy, projected_noisy, projected = (random(4, 2, 3, 2, 2, seed=seed) for seed in range(3))
    projected[0] += 2 * noisy[0]  # so that one of them is too much like what came in
    expected = 0.0
    for level in range(2):
        points = projected[:, level].flatten(1).softmax(dim=1)
        expected += float(sinkhorn_divergence(points[:2], points[2:]))
        expected += 0.01 * np.mean([1 - cosine(projected_noisy[b, level], projected[b, level]) for b in range(4)])
        unlike = torch.nn.CosineEmbeddingLoss(margin=0.5)
        expected += 0.1 * float(unlike(noisy[:, level].flatten(1), projected[:, level].flatten(1), -torch.ones(4)))
    assert float(projection_loss(noisy, projected_noisy, projected)) == pytest.approx(expected / 1.11, abs=1e-6)


def test_objective_is_distillation_and_a_fifth_of_the_projection_loss() -> None:
    network = ReverseDistillation(2, 8).eval()
    clean, noisy = random(4, 2, 3, 3, 8), random(4, 2, 3, 3, 8, seed=1)
    with torch.inference_mode():
        wanted, disturbed = network.prepare(clean), network.prepare(noisy)
        projected = network.project(wanted)
        given = network.decode(projected)
        expected = sum(
            np.mean([1 - cosine(wanted[b, level], given[b, level]) for b in range(4)]) for level in range(2)
        ) + 0.2 * float(projection_loss(disturbed, network.project(disturbed), projected))
        assert float(objective(network, clean, noisy)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", [(256, 256), (128, 512), (20, 300), (5, 3)])
def test_noise_stays_in_one_rectangle(shape: tuple[int, int]) -> None:
    picture = np.full((*shape, 3), 128, np.uint8)
    seen = []
    for seed in range(30):
        other = noised(picture, np.random.default_rng(seed))
        assert other.dtype == np.uint8 and other.shape == picture.shape
        rows, columns = np.nonzero((other != picture).any(axis=2))
        if len(rows):
            seen.append((int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1))
        assert np.abs(other.astype(int) - picture).max() <= 255 * 0.2 * 2.4 + 1  # all octaves at their highest
    scale, sides = max(shape) / 256, np.array(seen)
    assert len(seen) > 20 and (sides <= np.minimum(shape, np.round(31 * scale))).all()
    if min(shape) >= 128:
        assert sides.max() >= 25 * scale and sides.min() >= 8 * scale  # an outermost line may happen to be 0
    assert (picture == 128).all()
    same = [noised(picture, np.random.default_rng(3)) for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_the_rectangle_is_as_large_as_in_a_picture_of_256_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(rdpp, "octaves", lambda shape, rng: seen.append(shape) or np.zeros(shape, np.float32))
    for seed in range(30):
        noised(np.zeros((2560, 2560, 3), np.uint8), np.random.default_rng(seed))
    sides = np.array(seen)[:, 1:]
    assert (sides % 10 == 0).all() and sides.min() >= 100 and sides.max() == 310


def test_the_rates_are_those_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def learn(self: object, network: object, optimiser: torch.optim.Optimizer, *given: object, **named: object) -> None:
        rate = named["rate"]
        seen.append([rate(0.0) * group.get("share", 1) for group in optimiser.param_groups])  # type: ignore[operator]

    monkeypatch.setattr(rdpp.RDPlusPlus, "learn", learn)
    picture = np.zeros((48, 48, 3), np.uint8)
    rdpp.RDPlusPlus(backbone="tiny", size=48, device="cpu").trained([picture] * 2, [picture])
    assert [sorted(rates) for rates in seen] == [pytest.approx([1e-3, 5e-3])]
