"""What RD++ and EfficientAD train, against slow forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anomalyncd.model.distill import (
    AutoEncoder,
    InstanceNorm,
    Residual,
    ReverseDistillation,
    Standard,
    StudentTeacher,
    projector,
    to_size,
)
from anomalyncd.model.distill import student as make_student


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_standard_has_mean_0_and_deviation_1_on_what_it_was_fitted_to() -> None:
    grids = [3 * random(2, 4, 5, 6) + 7, random(2, 3, 2, 6)]
    standard = Standard(2, 6)
    standard.fit(grids)
    rows = torch.cat([standard(grid).flatten(1, 2) for grid in grids], dim=1).double()
    assert rows.mean(1).abs().max() < 1e-5
    assert (rows.std(1, unbiased=False) - 1).abs().max() < 1e-5
    standard.fit([torch.ones(2, 1, 1, 6)])  # a channel without any spread
    assert standard(torch.ones(2, 1, 1, 6)).isfinite().all()


def test_instance_norm_is_torchs() -> None:
    x = random(2, 3, 4, 5)
    torch.testing.assert_close(InstanceNorm()(x), torch.nn.InstanceNorm2d(3)(x))
    assert InstanceNorm()(random(2, 3, 1, 1)).isfinite().all()


def layers(network: torch.nn.Module) -> list[str]:
    """Convolutions as `in > out, side, stride, padding` with + for a bias, and the names of what has no weights."""
    found = []
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            sides = [
                "x".join(map(str, dict.fromkeys(pair))) for pair in (layer.kernel_size, layer.stride, layer.padding)
            ]
            found.append(f"{layer.in_channels}>{layer.out_channels} {' '.join(sides)}{' +' * (layer.bias is not None)}")
        elif not list(layer.children()):
            found.append(type(layer).__name__)
    return found


def test_standard_is_nothing_before_it_is_fitted_and_counts_patches() -> None:
    standard, tokens = Standard(2, 3), random(2, 4, 5, 3)
    torch.testing.assert_close(standard(tokens), tokens)
    grids = [torch.zeros(2, 2, 3, 3), torch.ones(2, 1, 2, 3)]  # 6 patches of 0, 2 of 1
    standard.fit(iter(grids))
    torch.testing.assert_close(standard.mean, torch.full((2, 1, 1, 3), 0.25))
    torch.testing.assert_close(standard.deviation, torch.full((2, 1, 1, 3), (0.25 * 0.75) ** 0.5))
    standard.fit([torch.ones(2, 1, 1, 3)])
    torch.testing.assert_close(standard.deviation, torch.full((2, 1, 1, 3), 1e-6))


def test_the_projector_narrows_and_widens() -> None:
    parts = ["InstanceNorm", "LeakyReLU"]
    sides = ("16>8", "8>4", "4>8", "8>16")
    assert layers(projector(16)) == [part for side in sides for part in (f"{side} 3 1 1 +", *parts)]


def test_a_residual_block_adds_and_cuts_off() -> None:
    block, x = Residual(8).eval(), random(2, 8, 3, 3)
    expected = ["8>4 1 1 0", "BatchNorm2d", "ReLU", "4>4 3 1 1", "BatchNorm2d", "ReLU", "4>8 1 1 0", "BatchNorm2d"]
    assert layers(block) == expected
    torch.testing.assert_close(block(x), (x + block.layers(x)).clamp(min=0))


def test_the_layers_of_reverse_distillation() -> None:
    network = ReverseDistillation(3, 8)
    assert layers(network.bottleneck)[:3] == ["24>8 3 2 1", "BatchNorm2d", "ReLU"]
    assert layers(network.bottleneck)[3:] == layers(Residual(8))
    assert [layers(blocks) for blocks in network.decoder] == [layers(Residual(8)) * 2] * 3
    assert [layers(head) for head in network.heads] == [["8>8 1 1 0 +"]] * 3
    assert len(network.projectors) == 3 and layers(network.projectors[0]) == layers(projector(8))


def test_the_deepest_level_is_decoded_first() -> None:
    network = ReverseDistillation(2, 8).eval()
    projected = random(1, 2, 8, 4, 6)
    with torch.inference_mode():
        found = network.decode(projected)
        x = to_size(network.bottleneck(projected.flatten(1, 2)), (4, 6))
        deep = network.decoder[1](x)
        torch.testing.assert_close(found[:, 1], network.heads[1](deep))
        torch.testing.assert_close(found[:, 0], network.heads[0](network.decoder[0](deep)))
        torch.testing.assert_close(network.project(projected)[:, 1], network.projectors[1](projected[:, 1]))


@pytest.mark.parametrize(
    ("patch", "first", "second"),
    [((14, 14), "3>128 7 7 0 +", "128>256 3 2 1 +"), ((3, 4), "3>128 3x2 3x2 0 +", "128>256 3 1x2 1 +")],
)
def test_the_layers_of_the_student(patch: tuple[int, int], first: str, second: str) -> None:
    inner = "256>256 3 1 1 +"
    expected = [first, "ReLU", second, "ReLU", inner, "ReLU", inner, "ReLU", "256>10 1 1 0 +"]
    assert layers(make_student(10, patch)) == expected
    network = StudentTeacher(2, 5, patch)
    assert layers(network.student)[-1] == "256>20 1 1 0 +" and layers(network.autoencoder)[-1] == "64>10 3 1 1 +"
    assert network.quantiles.tolist() == [pytest.approx([0, 0.1])] * 2


def test_the_layers_of_the_autoencoder() -> None:
    network = AutoEncoder(384)
    down = [f"{side} 4 2 1 +" for side in ("3>32", "32>32", "32>64", "64>64")]
    assert layers(network.encoder) == [part for side in down for part in (side, "ReLU")] + ["64>64 8 1 0 +"]
    assert layers(network.decoder) == ["64>64 3 1 1 +", "ReLU", "Dropout"] * 4
    assert {layer.p for layer in network.modules() if isinstance(layer, torch.nn.Dropout)} == {0.2}
    assert layers(network.head) == ["64>384 3 1 1 +"]


def test_the_autoencoder_goes_from_one_number_over_grids_of_4_8_and_16() -> None:
    seen: list[tuple[int, ...]] = []
    network = AutoEncoder(6).eval()
    for layer in network.decoder:
        layer.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape[2:])))
    network.encoder.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape[2:])))
    picture = random(1, 3, 40, 60)
    with torch.inference_mode():
        found = network(picture, (5, 7))
        halved = torch.nn.functional.avg_pool2d(picture, 2)
        x = network.encoder(torch.nn.functional.interpolate(halved, (128, 128), mode="bilinear"))
        assert x.shape[2:] == (1, 1)
        for layer, size in zip(network.decoder, [(4, 4), (8, 8), (16, 16), (5, 7)], strict=True):
            x = layer(torch.nn.functional.interpolate(x, size, mode="bilinear"))
        torch.testing.assert_close(found, network.head(x))
    assert seen[:5] == [(128, 128), (4, 4), (8, 8), (16, 16), (5, 7)]


@pytest.mark.parametrize("grid", [(1, 1), (3, 4), (6, 5)])
def test_reverse_distillation_scores_a_patch_by_one_minus_cosine(grid: tuple[int, int]) -> None:
    network = ReverseDistillation(2, 8).eval()
    tokens = random(2, *grid, 8)
    with torch.inference_mode():
        scores = network(tokens)
        given = network.decode(network.project(network.prepare(tokens[None])))[0].numpy()
    wanted = network.standard(tokens).numpy()
    for y, x in np.ndindex(*grid):
        expected = 0.0
        for level in range(2):
            a, b = wanted[level, y, x], given[level, :, y, x]
            expected += 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert float(scores[y, x]) == pytest.approx(expected, abs=1e-5)


def tokens_and_pixels(picture: np.ndarray, patch: tuple[int, int], n_blocks: int, width: int) -> Tensor:
    """Patch by patch: its tokens, then its pixels row by row."""
    height, breadth = picture.shape[0] // patch[0], picture.shape[1] // patch[1]
    out = random(n_blocks, height, breadth, width + 3 * patch[0] * patch[1])
    for y, x in np.ndindex(height, breadth):
        part = picture[y * patch[0] : (y + 1) * patch[0], x * patch[1] : (x + 1) * patch[1]]
        out[:, y, x, width:] = torch.from_numpy(part).flatten()
    return out


@pytest.mark.parametrize("patch", [(4, 4), (3, 5), (2, 4)])
def test_student_teacher(patch: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).random((3 * patch[0], 2 * patch[1], 3), dtype=np.float32)
    tokens = tokens_and_pixels(picture, patch, 2, 6)
    network = StudentTeacher(2, 6, patch).eval()
    network.quantiles.copy_(torch.tensor([[0.5, 1.5], [0.2, 0.3]]))
    teacher, pictures = network.split(tokens[None])
    np.testing.assert_array_equal(pictures[0].permute(1, 2, 0), picture)
    assert teacher[0, 6 + 4, 2, 1] == tokens[1, 2, 1, 4]  # not fitted, so as it is
    with torch.inference_mode():
        scores, student = network(tokens), network.student(pictures)[0].numpy()
        own = network.autoencoder(pictures, (3, 2))[0].numpy()
    assert student.shape == (24, 3, 2) and own.shape == (12, 3, 2)
    for y, x in np.ndindex(3, 2):
        first = np.mean((student[:12, y, x] - teacher[0, :, y, x].numpy()) ** 2)
        second = np.mean((student[12:, y, x] - own[:, y, x]) ** 2)
        expected = (0.1 * (first - 0.5) / 1.0 + 0.1 * (second - 0.2) / 0.1) / 2
        assert float(scores[y, x]) == pytest.approx(expected, abs=1e-5)


def test_the_autoencoder_sees_the_whole_picture() -> None:
    network = StudentTeacher(1, 6, (4, 4)).eval()
    picture = torch.zeros(1, 3, 32, 32)
    other = picture.clone()
    other[..., -4:, -4:] = 1
    with torch.inference_mode():
        student = (network.student(picture) != network.student(other)).any(dim=1)[0]
        own = (network.autoencoder(picture, (8, 8)) != network.autoencoder(other, (8, 8))).any(dim=1)[0]
    assert own.all() and student[-1, -1] and not student[:3].any()
