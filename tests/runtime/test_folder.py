"""The exported folder: checked when it is opened, and opened without torch (folder.py, graphs.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anomalyncd.runtime.graphs as engine_module
from anomalyncd import AnomalyNCD
from anomalyncd.errors import DataError, RunError, SettingsError
from anomalyncd.runtime import Runtime, is_exported

WITHOUT_TORCH = """
import sys
for name in ("torch", "timm", "torchvision", "sklearn", "scipy", "onnx", "matplotlib", "jinja2", "rich"):
    sys.modules[name] = None
import numpy as np
from anomalyncd.runtime import Runtime
folder, images, engine, out = sys.argv[1:]
pictures = [value for _, value in sorted(np.load(images).items())]
np.save(out, Runtime(folder, engine=engine).predict(pictures).probabilities)
"""


@pytest.fixture
def folder(exported, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(exported("maps").folder, tmp_path / "export"))


def change(folder: Path, **values: object) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_it_runs_where_torch_is_absent(exported, tmp_path, engine):
    there = exported("patchcore")
    np.savez(tmp_path / "images.npz", **{f"{index:03d}": image for index, image in enumerate(there.images)})
    script = [WITHOUT_TORCH, there.folder, tmp_path / "images.npz", engine, tmp_path / "found.npy"]
    subprocess.run([sys.executable, "-c", *map(str, script)], check=True, timeout=120, cwd=tmp_path)
    expected = AnomalyNCD.load(there.run).predict(there.images).probabilities
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-3)


def test_export_json_says_what_there_is(folder):
    assert is_exported(folder) and not is_exported(folder.parent)
    stored = json.loads((folder / "export.json").read_text())
    files = {path.name for path in folder.iterdir()} - {"export.json"}
    assert set(stored["sha256"]) == set(stored["files"]) == files
    assert stored["graphs"] == {"patches": "patches.onnx"} and stored["precision"] == "float32"
    assert stored["inputs_and_outputs"]["patches.onnx"]["inputs"]["images"] == "(batch, 16*h, 16*w, 3) uint8"
    assert "torch" in stored["made_with"]


def test_graphs_do_not_tell_where_they_were_made(folder):
    content = (folder / "patches.onnx").read_bytes()
    assert b"/site-packages/" not in content and b"stack_trace" not in content


@pytest.mark.parametrize("name", ["patches.onnx", "model.safetensors", "classes.json"])
def test_damaged_and_missing_files_are_said(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name}: damaged or changed"):
        Runtime(folder)
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"{name}: cannot be read"):
        Runtime(folder)


def test_folders_that_are_no_export(folder, tmp_path):
    with pytest.raises(RunError, match=r"expected an exported run with export.json, none found"):
        Runtime(tmp_path)
    change(folder, version=99)
    with pytest.raises(RunError, match="as version 99, but this one reads version 3"):
        Runtime(folder)
    change(folder, format="coco")
    with pytest.raises(RunError, match="is an export to coco, which holds no network"):
        Runtime(folder)
    (folder / "export.json").write_text("[1]")
    with pytest.raises(RunError, match=r"export.json: damaged"):
        Runtime(folder)
    assert is_exported(folder) and not is_exported(tmp_path)  # damaged, and so said; not taken for a run


@pytest.mark.parametrize(
    "values",
    [
        {"graphs": {"patches": "../run/patches.onnx"}},
        {"graphs": {"patches": "other.onnx"}},
        {"graphs": []},
        {"sha256": {"/etc/hostname": "0"}},
        {"network": {"n_blocks": 5}},
        {"network": None},
        {"detector": {}},
    ],
)
def test_an_odd_export_json_is_refused_before_a_file_is_opened(folder, values):
    change(folder, **values)
    with pytest.raises(RunError, match="damaged"):
        Runtime(folder)


@pytest.mark.parametrize("format", [[], {}, 5, None, ["onnx"]])
def test_a_format_that_is_no_word(folder, format):
    change(folder, format=format)
    assert not is_exported(folder)
    with pytest.raises(RunError, match="which holds no network"):
        Runtime(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes that anybody can make")
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_no_name_in_an_export_leads_out_of_it(folder, make):
    """Neither is waited for, nor read without end."""
    name = next(iter(json.loads((folder / "export.json").read_text())["sha256"]))
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(RunError, match="plain files and folders only"):
        Runtime(folder)


def test_an_export_json_of_20_gigabytes(folder):
    os.truncate(folder / "export.json", 20 << 30)
    assert is_exported(folder)
    with pytest.raises(RunError, match=r"export.json: damaged.*more than 10,000,000 bytes"):
        Runtime(folder)


def test_a_graph_that_no_engine_takes(folder, monkeypatch):
    (folder / "patches.onnx").write_bytes(b"no graph")
    monkeypatch.setattr("anomalyncd.runtime.folder.sha256", lambda path: sums[path.name])
    sums = json.loads((folder / "export.json").read_text())["sha256"]
    for engine in ("onnxruntime", "openvino"):
        with pytest.raises(RunError, match=f"patches.onnx: {engine} .* cannot load this graph"):
            Runtime(folder, engine=engine)


def test_settings_that_do_not_fit(folder, monkeypatch):
    with pytest.raises(SettingsError, match="engine must be one of onnxruntime, openvino, but got 'tflite'"):
        Runtime(folder, engine="tflite")
    with pytest.raises(SettingsError, match="precision must be one of"):
        Runtime(folder, precision="int4")
    with pytest.raises(SettingsError, match="needs the engine openvino"):
        Runtime(folder, engine="onnxruntime", precision="bfloat16")
    with pytest.raises(SettingsError, match="threads must be at least 1"):
        Runtime(folder, threads=0)

    def missing(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(engine_module, "import_module", missing)
    with pytest.raises(SettingsError, match=r"onnxruntime is not installed .* pip install onnxruntime"):
        Runtime(folder)


def test_what_predict_refuses(exported):
    there = exported("patchcore")
    with pytest.raises(DataError, match="its own detector, patchcore"):
        Runtime(there.folder).predict(there.images[:1], maps=[np.zeros((8, 8), np.float32)])
    runtime = Runtime(exported("maps").folder)
    with pytest.raises(DataError, match="give either maps"):
        runtime.predict(there.images[:1])


def test_an_unreadable_image_is_skipped(exported, tmp_path):
    there = exported("musc")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    found = Runtime(there.folder).predict([there.images[0], tmp_path / "bad.png"])
    assert len(found.labels) == 1 and list(found.skipped) == [str(tmp_path / "bad.png").replace(os.sep, "/")]
