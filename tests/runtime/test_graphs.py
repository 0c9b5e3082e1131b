"""An exported run says what the run says (graphs.py, runtime.py).

Covers runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from timm.layers.pos_embed import resample_abs_pos_embed

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.detect.musc import MuSc
from anomalyncd.detect.patchcore import PatchBank, locally_aware
from anomalyncd.detect.tokens import neighbourhood
from anomalyncd.discovery.classify import Prediction, joined
from anomalyncd.export.onnx import write_compare, write_lowest, write_scores
from anomalyncd.runtime import Runtime
from anomalyncd.runtime.folder import GridInfo
from anomalyncd.runtime.graphs import ENGINES, GraphDetector, in_bands, open_graph, resampling


def assert_same(found: Prediction, expected: Prediction, atol: float = 1e-5) -> None:
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=atol)
    pd.testing.assert_frame_equal(found.regions, expected.regions, atol=1e-3, rtol=1e-3)  # a pixel of a mask may differ
    pd.testing.assert_frame_equal(found.images, expected.images, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["maps", "paper", "both", "patchcore", "musc", "efficientad", "rd++", "pni", "cpr"])
def test_engines_agree_with_the_run(exported, kind):
    there = exported(kind)
    expected = AnomalyNCD.load(there.run).predict(there.images, **there.given)
    assert len(set(expected.labels.tolist())) > 1 and len(expected.regions)
    for engine in ("onnxruntime", "openvino"):
        # A detector's tokens are rounded to float16; engines differ in the last bits, so some fall on the other side.
        found = Runtime(there.folder, engine=engine).predict(there.images, **there.given)
        assert_same(found, expected, 1e-5 if there.given else 1e-4)


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


def token_grids(count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, 3 + index % 3, 4, 8)).astype(np.float16) for index in range(count)]


def graph_detector(folder: Path, engine: str, **writers: Callable[[Path], Any]) -> GraphDetector:
    graphs = {}
    for name, write in writers.items():
        write(folder / f"{name}.onnx")
        graphs[name] = open_graph(folder / f"{name}.onnx", engine)
    info = GridInfo(
        grid=(1, 1), patch_size=(1, 1), halo=1, size=1, tile=None, batch_size=1, map_size=1, sigma=0
    )  # fmt: skip
    return GraphDetector(folder, info, graphs)


@pytest.mark.parametrize("engine", ENGINES)
def test_bank_scores_are_patchcores(engine, tmp_path):
    rows = torch.nn.functional.normalize(torch.randn(50, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    bank = PatchBank(rows.half(), radius=3)
    detector = graph_detector(tmp_path, engine, scores=lambda path: write_scores(path, bank, 2, 8))
    for blocks in token_grids(3, 0):
        tokens = blocks.astype(np.float32)
        wanted = bank.nearest(locally_aware(torch.from_numpy(tokens), 3))[0].numpy()
        np.testing.assert_allclose(detector.scores(tokens).ravel(), wanted, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_mutual_scores_are_muscs_and_a_reference_is_not_compared_with_itself(engine, tmp_path):
    tensors = [torch.from_numpy(blocks) for blocks in token_grids(7, 0)]
    musc = MuSc(windows=(1, 3), backbone="tiny", device="cpu")
    musc.restore(
        {f"reference_{place:05d}": blocks for place, blocks in enumerate(tensors)}
        | {"summaries": torch.zeros(7, 1), "scores": torch.zeros(7)}
    )
    musc.save(tmp_path)
    detector = graph_detector(
        tmp_path, engine, compare=lambda path: write_compare(path, musc.memory), lowest=write_lowest
    )
    images = [blocks.float() for blocks in (tensors[4], *map(torch.from_numpy, token_grids(2, 9)))]
    found = [detector.scores(image.numpy()).ravel() for image in images]
    for scores, wanted in zip(found, musc._scores(images, tensors, [4, None, None]), strict=True):
        np.testing.assert_allclose(scores, wanted.numpy(), atol=1e-5)
    with_itself = musc._scores(images[:1], tensors, [None])[0]
    assert np.abs(with_itself.numpy() - found[0]).max() > 0.1


@pytest.mark.parametrize("shape", [(1, 7), (5, 4), (12, 3)])
@pytest.mark.parametrize("side", [1, 3, 5])
def test_bands_see_what_the_whole_grid_sees(shape, side):
    blocks = np.random.default_rng(0).normal(size=(2, *shape, 3)).astype(np.float32)

    def score(band: np.ndarray) -> np.ndarray:
        seen.append(band.shape[1])
        return neighbourhood(torch.from_numpy(band), side)[0, ..., 0].numpy()

    for most in (1, 8, 20, 1000):
        seen: list[int] = []
        np.testing.assert_allclose(in_bands(score, blocks, side // 2, most), score(blocks), atol=1e-6)
        assert max(seen[:-1]) <= max(1, most // shape[1]) + 2 * (side // 2)
