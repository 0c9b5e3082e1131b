"""An exported run says what the run says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from timm.layers.pos_embed import resample_abs_pos_embed

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.detect.musc import MuSc
from anomalyncd.detect.patchcore import PatchBank, locally_aware
from anomalyncd.detect.tokens import neighbourhood as torch_neighbourhood
from anomalyncd.discovery.classify import Prediction, joined
from anomalyncd.grid import TokenGrid
from anomalyncd.runtime import Runtime
from anomalyncd.runtime.detectors import BankScores, MutualScores, neighbourhood
from anomalyncd.runtime.network import resampling


def assert_same(found: Prediction, expected: Prediction) -> None:
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-3)
    pd.testing.assert_frame_equal(found.regions, expected.regions, atol=1e-3, rtol=1e-3)  # a pixel of a mask may differ
    pd.testing.assert_frame_equal(found.images, expected.images, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["maps", "paper", "both", "patchcore", "musc"])
def test_engines_agree_with_the_run(exported, kind):
    there = exported(kind)
    expected = AnomalyNCD.load(there.run).predict(there.images, **there.given)
    assert len(set(expected.labels.tolist())) > 1 and len(expected.regions)
    for engine in ("onnxruntime", "openvino"):
        assert_same(Runtime(there.folder, engine=engine).predict(there.images, **there.given), expected)


def test_a_stream_is_the_same_in_pieces(exported):
    there = exported("maps")
    runtime = Runtime(there.folder, threads=1)
    inputs = gather(there.images * 3, there.given["maps"] * 3)
    pieces = list(runtime.stream(inputs))
    assert len(pieces) > 1
    assert_same(joined(pieces), runtime.predict(there.images * 3, maps=there.given["maps"] * 3))
    assert runtime.classes.tolist() == [0, 1, 2, 3] and runtime.names[0] == "normal"


@pytest.mark.parametrize("old", [(14, 14), (37, 37), (5, 9)])
@pytest.mark.parametrize("new", [(24, 24), (1, 4), (40, 7), (14, 14), (37, 37)])
def test_positions_are_resampled_as_timm_does(old, new):
    trained = torch.randn(1, 1 + old[0] * old[1], 3, generator=torch.Generator().manual_seed(0))
    expected = resample_abs_pos_embed(trained, new_size=list(new), old_size=list(old), num_prefix_tokens=1)[0, 1:]
    grid = trained[0, 1:].unflatten(0, old).numpy()
    found = np.einsum("hy,yxc,wx->hwc", resampling(new[0], old[0]), grid, resampling(new[1], old[1]))
    np.testing.assert_allclose(found.reshape(-1, 3), expected.numpy(), atol=1e-5)  # of values around 1


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 7, 4), (6, 5, 3)])
def test_neighbourhoods_are_torchs(side, shape):
    tokens = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = torch_neighbourhood(torch.from_numpy(tokens), side).numpy()
    np.testing.assert_allclose(neighbourhood(tokens, side), expected, atol=1e-6)


def token_grids(count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, 3 + index % 3, 4, 8)).astype(np.float16) for index in range(count)]


def test_bank_scores_are_patchcores():
    bank = torch.nn.functional.normalize(torch.randn(50, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    grids = [TokenGrid(blocks.astype(np.float32), None, (9, 9)) for blocks in token_grids(3, 0)]
    found = BankScores(bank.numpy(), radius=3)(grids)
    for scores, grid in zip(found, grids, strict=True):
        patches = locally_aware(TokenGrid(torch.from_numpy(grid.blocks), None, (9, 9)), 3)
        np.testing.assert_allclose(scores, PatchBank(bank).nearest(patches)[0].numpy(), atol=1e-5)


def test_mutual_scores_are_muscs_and_a_reference_is_not_compared_with_itself():
    references, new = token_grids(7, 0), token_grids(2, 9)
    images = [references[4], *new]
    grids = [TokenGrid(blocks.astype(np.float32), None, (9, 9)) for blocks in images]
    found = MutualScores(references, [1, 3])(grids)
    detector = MuSc(windows=(1, 3), backbone="tiny", device="cpu")
    tensors = [torch.from_numpy(blocks) for blocks in references]
    expected = detector._scores([torch.from_numpy(grid.blocks) for grid in grids], tensors, [4, None, None])
    for scores, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(scores, wanted.numpy(), atol=1e-5)
    with_itself = detector._scores([torch.from_numpy(grids[0].blocks)], tensors, [None])[0]
    assert np.abs(with_itself.numpy() - found[0]).max() > 0.1
