"""`--format onnx|openvino`: what it writes, and what it refuses (networks.py, onnx.py).

Covers onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.detect.base import AnomalyMap, Detector, Picture
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.export.networks import export_networks
from anomalyncd.runtime import Runtime
from anomalyncd.runtime.graphs import load_engine
from command import call, fail


class Bright(Detector):
    """A detector of one's own: what is bright is abnormal."""

    name = "bright"
    needs_normal = False

    def fit(self, normal_images: Iterable[Picture]) -> Bright:
        return self

    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        for image in images:
            yield image.mean(axis=2, dtype=np.float32)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Bright:
        return cls()


def test_openvino_in_float32_and_int8(fitted: Path, run: Path) -> None:
    expected = AnomalyNCD.load(run).predict(fitted / "images", masks=fitted / "masks")
    result = call("export", run, "--format", "openvino", "--quiet")
    assert f"MB: {run / 'export/openvino'}\nNext: anomalyncd predict " in result.stdout
    found = Runtime(run / "export/openvino").predict(fitted / "images", masks=fitted / "masks")
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-3)

    small = export_networks(run, "openvino", int8=True)
    assert small.folder == run / "export/openvino-int8" and not small.as_float
    assert (small.folder / "patches.bin").stat().st_size < 0.5 * (run / "export/openvino/patches.bin").stat().st_size
    runtime = Runtime(small.folder)
    assert runtime.precision == "int8"
    again = runtime.predict(fitted / "images", masks=fitted / "masks")
    assert 0 < np.abs(again.probabilities - expected.probabilities).max() < 0.3  # other numbers, but near
    assert not list(run.rglob("*.partial"))
    graph = load_engine("openvino").Core().read_model(small.folder / "patches.xml")
    rounded = {op.get_type_name() for op in graph.get_ops() if "FakeQuantize" in _sources(op)}
    assert "MatMul" in rounded and "Convolution" not in rounded  # pixels to patches: little work, most of the loss


def _sources(op: Any) -> set[str]:
    return {op.input_value(place).get_node().get_type_name() for place in range(op.get_input_size())}


def test_a_detector_of_ones_own_stays_outside(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 60, (64, 64, 3), dtype=np.uint8) for _ in range(8)]
    for index, image in enumerate(images[:6]):
        image[8:40, 8:40] = 255 if index % 2 else (255, 90, 90)
    settings = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 2}}
    AnomalyNCD(3, **settings).fit(images, detector=Bright(), run=tmp_path / "run")
    found = export_networks(tmp_path / "run", "onnx")
    assert not found.has_detector and found.detector and found.detector.endswith(":Bright")
    runtime = Runtime(found.folder)
    with pytest.raises(DataError, match=r"were made by .*:Bright, which is not part of the export"):
        runtime.predict(images)
    expected = AnomalyNCD.load(tmp_path / "run").labels_
    assert runtime.predict(images, maps=list(Bright().maps(images))).labels.tolist() == expected.tolist()


def test_options_that_do_not_go_together(run: Path, tmp_path: Path) -> None:
    assert "made for --format openvino" in fail("export", run, "--format", "onnx", "--int8")
    assert "goes with --int8 only" in fail("export", run, "--format", "openvino", "--calibration", tmp_path)
    assert "about images" in fail("export", run, "--format", "onnx", "--link")
    assert "about networks" in fail("export", run, "--format", "csv", "--int8")
    assert "expected a folder of images" in fail(
        "export", run, "--format", "openvino", "--int8", "--calibration", tmp_path / "nothing"
    )
    assert "expected a finished run" in fail("export", tmp_path / "nothing", "--format", "onnx")
    assert not (run / "export").exists()


def test_a_package_that_is_missing_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SettingsError, match=r"needs onnxscript .* pip install 'anomalyncd\[export\]'"):
        export_networks(run, "onnx")


def test_a_graph_that_differs_from_the_network_is_not_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anomalyncd.export.onnx.resampling", lambda new, old: np.ones((new, old), np.float32))
    with pytest.raises(SettingsError, match="gives other tokens than the backbone itself"):
        export_networks(run, "onnx")
    assert not (run / "export/onnx").exists() and not list(run.rglob("*.partial"))
