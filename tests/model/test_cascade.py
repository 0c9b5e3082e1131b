"""CPR's parts, each formula against a slow, obvious form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anomalyncd.model.cascade import (
    ALIKE,
    SMOOTHING,
    UNLIKE,
    Gallery,
    Inception,
    LocalBranch,
    block_histograms,
    contrastive_hinge,
    describe,
    discriminant,
    distances,
    divergences,
    foreground,
    nearest_cosines,
    one_hot_words,
    places,
    resized,
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(24, 24), (7, 11), (3, 5)])
def test_block_histograms_are_shares_of_words(shape: tuple[int, int]) -> None:
    tokens, centres = noise(*shape, 4), noise(6, 4, seed=1)
    found = block_histograms(one_hot_words(tokens, centres))
    assert found.shape == (25, 6)
    counts = np.full((5, 5, 6), SMOOTHING)
    for y in range(shape[0]):
        for x in range(shape[1]):
            word = min(range(6), key=lambda w: float((tokens[y, x] - centres[w]).norm()))
            counts[int((y + 0.5) / shape[0] * 5), int((x + 0.5) / shape[1] * 5), word] += 1
    np.testing.assert_allclose(found, (counts / counts.sum(-1, keepdims=True)).reshape(25, 6), rtol=1e-5)
    several = block_histograms(one_hot_words(torch.stack([tokens, tokens * 2]), centres))
    torch.testing.assert_close(several[0], found)


def test_divergence_is_the_sum_of_the_lowest_four_fifths() -> None:
    one, others = noise(25, 6).softmax(-1), noise(3, 25, 6, seed=1).softmax(-1)
    for other, found in zip(others, divergences(one, others).tolist(), strict=True):
        each = [
            sum(float(p) * math.log(float(p) / float(q)) for p, q in zip(*block, strict=True))
            for block in zip(one, other, strict=True)
        ]
        assert found == pytest.approx(sum(sorted(each)[:20]), rel=1e-4)
    assert float(divergences(one, one[None])) == pytest.approx(0, abs=1e-6)


def test_the_hinge_pushes_alike_and_unlike_pairs_apart() -> None:
    cosines = torch.linspace(-1, 1, 41)
    alike = torch.arange(41) % 3 == 0
    near = [max(0.0, ALIKE - float(c)) ** 3 for c, same in zip(cosines, alike, strict=True) if same]
    far = [max(0.0, float(c) - UNLIKE) ** 3 for c, same in zip(cosines, alike, strict=True) if not same]
    expected = sum(near) / len(near) + sum(far) / len(far)
    assert float(contrastive_hinge(cosines, alike.float())) == pytest.approx(expected, rel=1e-5)
    assert float(contrastive_hinge(torch.tensor([0.85, -0.3]), torch.tensor([1.0, 0.0]))) == 0
    assert float(contrastive_hinge(torch.ones(3), torch.ones(3))) == 0  # no pair of the other kind


@pytest.mark.parametrize("side", [1, 3, 5])
def test_the_nearest_patch_is_looked_for_in_a_window(side: int) -> None:
    image, others = (F.normalize(noise(*shape, seed=side), dim=-1) for shape in ((1, 6, 4, 5), (3, 6, 4, 5)))
    found, reach = nearest_cosines(image, others, side), side // 2
    assert found.shape == (3, 6, 4)
    for k in range(3):
        for y in range(6):
            for x in range(4):
                window = others[k, max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1].reshape(-1, 5)
                assert float(found[k, y, x]) == pytest.approx(max(float(image[0, y, x] @ w) for w in window), abs=1e-5)


def test_the_discriminant_is_the_posterior_of_two_gaussians_of_one_covariance() -> None:
    generator = np.random.default_rng(0)
    spread = np.array([[2.0, 0.6], [0.6, 1.0]])
    front = generator.multivariate_normal([2, 1], spread, 4000)
    back = generator.multivariate_normal([-1, 0], spread, 4000)
    rows = torch.from_numpy(np.concatenate([front, back])).float()
    weight, bias = discriminant(rows, torch.arange(8000) < 4000)
    inverse = np.linalg.inv(spread)
    for point in ([0.0, 0.0], [1.0, -1.0], [3.0, 2.0]):
        density = [math.exp(-0.5 * (d := np.subtract(point, mean)) @ inverse @ d) for mean in ([2, 1], [-1, 0])]
        posterior = float((torch.tensor(point) @ weight + bias).sigmoid())
        assert posterior == pytest.approx(density[0] / sum(density), abs=0.03)


def scene(inside: float) -> tuple[Tensor, Tensor]:
    """A grid with a product of half its side in the middle, and the group of each patch."""
    grid = noise(12, 12, 3) * 0.1
    grid[3:9, 3:9, 0] += inside
    return grid, (grid[..., 0] > inside / 2).long()


def test_an_object_has_a_foreground_and_a_texture_none() -> None:
    grid, group = scene(5.0)
    for labels in (group, 1 - group):  # whichever group is called 1
        found = foreground([grid, grid], [labels, labels])
        assert found is not None
        front = (grid @ found[0] + found[1]).sigmoid()
        assert ((front > 0.5) == group.bool()).all()
    mixed = (noise(12, 12) > 0).long()
    assert foreground([grid], [mixed]) is None
    assert foreground([grid], [torch.zeros(12, 12, dtype=torch.long)]) is None  # the middle is as the border is


def gallery(count: int = 4, *, branch: bool = False, shape: tuple[int, int] = (6, 6), retrieved: int = 2) -> Gallery:
    tokens, centres = noise(count, 2, *shape, 8), noise(5, 8, seed=1)
    net = LocalBranch(2, 8).eval() if branch else None
    learned = {} if net is None else {f"branch.{name}": value for name, value in net.state_dict().items()}
    with torch.no_grad():
        patches = describe(net, tokens).half()
    return Gallery(
        {
            "centres": centres, "histograms": block_histograms(one_hot_words(tokens[:, 0], centres)), "patches": patches,
            "owner": torch.arange(count) * 2, "weight": torch.zeros(8), "bias": torch.tensor(50.0), **learned,
        },
        retrieved,
        3,
    )  # fmt: skip


@pytest.mark.parametrize("branch", [False, True])
def test_scores_are_sums_of_least_distances_to_the_images_retrieved(branch: bool) -> None:
    known = gallery(branch=branch)
    tokens = noise(2, 6, 6, 8, seed=9)
    far = divergences(block_histograms(one_hot_words(tokens[0], known.centres)), known.histograms).tolist()
    chosen = sorted(range(4), key=lambda k: far[k])[:2]
    assert sorted(known.retrieve(tokens[0]).tolist()) == sorted(chosen)
    with torch.no_grad():
        own = describe(known.branch, tokens[None])[0]
    found = known(tokens)
    for y in range(6):
        for x in range(6):
            total = 0.0
            for scale in range(2):
                near = (
                    known.patches[chosen, scale, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
                    .float()
                    .reshape(-1, own.shape[-1])
                )
                total += 1 - float((near @ own[scale, y, x]).max())
            assert float(found[y, x]) == pytest.approx(total, abs=1e-4)


def test_an_image_is_left_out_by_its_owner() -> None:
    known = gallery(retrieved=9)
    tokens = noise(2, 6, 6, 8, seed=9)
    assert sorted(known.retrieve(tokens[0], without=4).tolist()) == [0, 1, 3]
    assert sorted(known.retrieve(tokens[0], without=3).tolist()) == [0, 1, 2, 3]  # which is not in the gallery


def test_where_there_is_background_nothing_is_found() -> None:
    known = gallery()
    known.weight, known.bias = torch.zeros(8), torch.tensor(-50.0)
    assert float(known(noise(2, 6, 6, 8, seed=9)).max()) < 1e-6


def test_other_grids_are_compared_at_the_same_places() -> None:
    grids = noise(1, 2, 6, 6, 8)
    torch.testing.assert_close(resized(grids, (6, 6)), grids)
    assert resized(grids, (3, 9)).shape == (1, 2, 3, 9, 8)
    assert gallery()(noise(2, 4, 9, 8, seed=2)).shape == (4, 9)


def test_the_branch_gives_unit_vectors() -> None:
    found = LocalBranch(2, 8).eval()(noise(3, 2, 4, 5, 8))
    assert found.shape == (3, 2, 4, 5, 128)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(3, 2, 4, 5))


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (24, 24), (30, 5)])
def test_places_are_cells_that_the_middles_of_patches_lie_in(shape: tuple[int, int]) -> None:
    found = places(*shape, 4)
    for y, x in np.ndindex(*shape):
        assert found[y, x] == int((y + 0.5) / shape[0] * 4) * 4 + int((x + 0.5) / shape[1] * 4)


def test_distances_are_euclidean_and_never_below_0() -> None:
    rows, others = noise(5, 3), noise(4, 3, seed=1)
    torch.testing.assert_close(distances(rows, others), torch.cdist(rows, others))
    assert distances(1e3 * rows, 1e3 * rows).diagonal().isfinite().all()


def test_the_layers_of_the_branch() -> None:
    def layers(network: torch.nn.Module) -> list[str]:
        found = []
        for layer in network.modules():
            if isinstance(layer, torch.nn.Conv2d):
                found.append(f"{layer.in_channels}>{layer.out_channels} {layer.kernel_size[0]} {layer.padding[0]}")
            elif isinstance(layer, torch.nn.MaxPool2d):
                found.append(f"highest {layer.kernel_size} {layer.stride} {layer.padding}")
        return found

    inside = ["64>32 1 0", "64>48 1 0", "48>64 3 1", "64>8 1 0", "8>16 5 2", "highest 3 1 1", "64>16 1 0"]
    assert layers(Inception(64, 128)) == inside
    branch = LocalBranch(2, 8)
    assert layers(branch)[:1] + layers(branch)[-1:] == ["8>128 1 0", "128>128 1 0"]
    assert len(layers(branch)) == 2 * 9 and layers(branch)[:9] == layers(branch)[9:]
    norms = [layer.num_features for layer in Inception(64, 128).modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert norms == [32, 48, 64, 8, 16, 16]


def test_each_scale_goes_its_own_way() -> None:
    branch, tokens = LocalBranch(2, 8).eval(), noise(1, 2, 3, 4, 8)
    with torch.no_grad():
        found = branch(tokens)
        for scale in range(2):
            alone = branch.scales[scale](tokens[:, scale].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            torch.testing.assert_close(found[:, scale], F.normalize(alone, dim=-1))


def test_the_discriminant_by_its_formula() -> None:
    rows, front = noise(40, 3).double() @ noise(3, 3, seed=1).double(), torch.arange(40) < 15
    weight, bias = discriminant(rows.float(), front)
    x = rows.float().double().numpy()
    means = x[:15].mean(0), x[15:].mean(0)
    spread = sum(
        np.outer(row - mean, row - mean) for part, mean in zip((x[:15], x[15:]), means, strict=True) for row in part
    )
    spread = spread / 40 + 1e-3 * np.trace(spread / 40) / 3 * np.eye(3)
    expected = np.linalg.inv(spread) @ (means[0] - means[1])
    np.testing.assert_allclose(weight, expected, rtol=1e-4)
    assert float(bias) == pytest.approx(-(means[0] + means[1]) @ expected / 2, rel=1e-4)


def grouped(border: int, middle: int) -> Tensor:
    """12 × 12 patches: of the 44 outermost ones all but `border` are background, of the 36 inner ones `middle` are."""
    group = torch.ones(12, 12, dtype=torch.long)
    group[3:9, 3:9] = 0
    ring = [(y, x) for y in range(12) for x in range(12) if y in (0, 11) or x in (0, 11)]
    assert len(ring) == 44
    for y, x in ring[:border]:
        group[y, x] = 0
    for place in range(middle):
        group[3 + place // 6, 3 + place % 6] = 1
    return group


def test_an_object_leaves_most_of_the_border_and_fills_half_of_the_middle() -> None:
    grid = noise(12, 12, 3)
    assert foreground([grid], [grouped(4, 18)]) is not None  # 40 of 44 are 0.909, and 18 of 36 are just half
    assert foreground([grid], [grouped(5, 18)]) is None
    assert foreground([grid], [grouped(4, 19)]) is None


def test_the_discriminant_is_of_the_middle_against_the_border() -> None:
    grid, group = noise(12, 12, 3), grouped(3, 5)
    found = foreground([grid, grid + 1], [group, group])
    border = torch.ones(12, 12, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    front = [g[3:9, 3:9][group[3:9, 3:9] == 0] for g in (grid, grid + 1)]
    behind = [g[border & (group == 1)] for g in (grid, grid + 1)]
    expected = discriminant(torch.cat([*front, *behind]), torch.arange(2 * (31 + 41)) < 2 * 31)
    assert found is not None
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize(("shape", "top", "left"), [((12, 12), 3, 3), ((7, 10), 1, 2), ((3, 4), 0, 1), ((1, 2), 0, 0)])
def test_the_middle_is_half_of_each_side(shape: tuple[int, int], top: int, left: int) -> None:
    from anomalyncd.model.cascade import _border_and_middle

    border, middle = _border_and_middle(*shape)
    for y, x in np.ndindex(*shape):
        assert bool(border[y, x]) == (y in (0, shape[0] - 1) or x in (0, shape[1] - 1))
        assert bool(middle[y, x]) == (top <= y < shape[0] - top and left <= x < shape[1] - left)


def test_a_patch_beside_the_product_counts_as_the_product() -> None:
    known, tokens = gallery(), noise(6, 5, 8)
    known.weight, known.bias = noise(8, seed=4), torch.tensor(0.3)
    found = known.product(tokens)
    front = (tokens @ known.weight + known.bias).sigmoid()
    for y, x in np.ndindex(6, 5):
        assert float(found[y, x]) == pytest.approx(float(front[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max()))


def test_as_many_are_retrieved_as_asked_for_or_there_are() -> None:
    tokens = noise(6, 6, 8, seed=9)
    for count, retrieved, without, expected in (
        (4, 3, None, 3),
        (4, 9, None, 4),
        (4, 3, 0, 3),
        (4, 4, 0, 3),
        (2, 2, 2, 1),
    ):
        assert len(gallery(count, retrieved=retrieved).retrieve(tokens, without)) == expected
    far = divergences(block_histograms(one_hot_words(tokens, gallery().centres)), gallery().histograms)
    assert gallery(retrieved=4).retrieve(tokens).tolist() == far.argsort().tolist()


def test_tokens_of_another_grid_are_interpolated_as_opencv_does() -> None:
    import cv2

    grids = noise(2, 3, 4, 6, 5)
    found = resized(grids, (8, 12))
    for n, level in np.ndindex(2, 3):
        for channel in range(5):
            whole = cv2.resize(grids[n, level, ..., channel].numpy(), (12, 8), interpolation=cv2.INTER_LINEAR)
            np.testing.assert_allclose(found[n, level, ..., channel], whole, atol=1e-5)


def test_without_a_metric_tokens_are_compared_as_they_are() -> None:
    tokens = 3 * noise(1, 2, 3, 3, 8)
    torch.testing.assert_close(describe(None, tokens), tokens / tokens.norm(dim=-1, keepdim=True))
    assert gallery().branch is None and gallery(branch=True).branch is not None
    assert not gallery(branch=True).branch.training
    assert {name for name, _ in gallery(branch=True).named_buffers(recurse=False)} == {
        "centres", "histograms", "patches", "owner", "weight", "bias",
    }  # fmt: skip
