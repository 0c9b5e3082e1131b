"""What RD++ and EfficientAD train, against slow forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anomalyncd.model.distill import AutoEncoder, InstanceNorm, ReverseDistillation, Standard, StudentTeacher, projector


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


def test_the_projector_narrows_and_widens() -> None:
    sides = [(layer.in_channels, layer.out_channels) for layer in projector(16) if isinstance(layer, torch.nn.Conv2d)]
    assert sides == [(16, 8), (8, 4), (4, 8), (8, 16)]


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


def test_the_autoencoder_has_the_widths_of_its_paper() -> None:
    layers = [layer for layer in AutoEncoder(384).encoder if isinstance(layer, torch.nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in layers] == [
        (3, 32),
        (32, 32),
        (32, 64),
        (64, 64),
        (64, 64),
    ]
