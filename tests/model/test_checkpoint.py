from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from anomalyncd.errors import WeightsError
from anomalyncd.model.checkpoint import load_state_dict, state_dict_from_onnx

WIDTH, HIDDEN, GRID = 8, 16, 3


def fake_onnx(n_blocks: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A tiny model with the names of the real export, and the torch state dict that should come out of it."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    expected: dict[str, np.ndarray] = {}

    def tensor(name: str, *shape: int) -> np.ndarray:
        arrays[name] = rng.normal(size=shape).astype(np.float32)
        return arrays[name]

    def linear(layer: str, n_in: int, n_out: int) -> np.ndarray:
        weight = tensor(f"onnx::MatMul_{len(nodes)}", n_in, n_out)
        nodes.append(helper.make_node("MatMul", ["x", f"onnx::MatMul_{len(nodes)}"], ["x"], name=layer + "/MatMul"))
        return weight.transpose()

    def kept(name: str, *shape: int) -> None:
        expected[name] = tensor(f"model.{name}", *shape)

    kept("cls_token", 1, 1, WIDTH)
    kept("patch_embed.proj.weight", WIDTH, 3, 14, 14)
    kept("patch_embed.proj.bias", WIDTH)
    expected["pos_embed"] = np.hstack([expected["cls_token"], tensor("onnx::Reshape_1360", 1, GRID**2, WIDTH)])
    for i in range(n_blocks):
        block, path = f"blocks.{i}.", f"/blocks.{i}/"
        # A MatMul of two activations, as attention has: it owns no weight and must be passed over.
        nodes.append(helper.make_node("MatMul", ["x", "x"], ["x"], name=path + "attn/MatMul"))
        sizes = {
            "attn/qkv": (WIDTH, 3 * WIDTH),
            "attn/proj": (WIDTH, WIDTH),
            "mlp/fc1": (WIDTH, HIDDEN),
            "mlp/fc2": (HIDDEN, WIDTH),
        }
        for layer, (n_in, n_out) in sizes.items():
            name = block + layer.replace("/", ".")
            expected[f"{name}.weight"] = linear(path + layer, n_in, n_out)
            kept(f"{name}.bias", n_out)
        for name in ("norm1.weight", "norm1.bias", "ls1.gamma", "norm2.weight", "norm2.bias", "ls2.gamma"):
            kept(block + name, WIDTH)
    kept("norm.weight", WIDTH)
    kept("norm.bias", WIDTH)
    tensor("onnx::Pad_7", 4)  # what is not the model's stays behind
    graph = helper.make_graph(
        nodes,
        "fake",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph), expected


def test_onnx_mapping_has_every_parameter_transposed_to_torch() -> None:
    model, expected = fake_onnx(n_blocks=2)
    state = state_dict_from_onnx(model)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
        assert state[name].flags.c_contiguous and state[name].dtype == np.float32


def test_an_onnx_file_has_the_tensors_of_timm_s_model(tmp_path: Path) -> None:
    import timm

    model, expected = fake_onnx(n_blocks=12)
    onnx.save(model, tmp_path / "vit.onnx")
    state = load_state_dict(tmp_path / "vit.onnx")
    assert state.keys() == timm.create_model("vit_small_patch14_dinov2", num_classes=0).state_dict().keys()
    assert all(np.array_equal(value.numpy(), expected[name]) for name, value in state.items())


def test_another_onnx_file_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph([], "other", [], [], [numpy_helper.from_array(np.zeros(2, np.float32), "model.x")])
    onnx.save(helper.make_model(graph), tmp_path / "other.onnx")
    with pytest.raises(WeightsError, match=r"other\.onnx: expected the weights of a vision transformer"):
        load_state_dict(tmp_path / "other.onnx")


@pytest.mark.parametrize("nest", ["", "state_dict", "model", "teacher"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone."])
@pytest.mark.parametrize("suffix", [".pt", ".PTH"])
def test_checkpoints_of_training_scripts(tmp_path: Path, nest: str, prefix: str, suffix: str) -> None:
    state = {prefix + "cls_token": torch.ones(1, 1, 4), prefix + "blocks.0.ls1.gamma": torch.arange(4.0)}
    if "backbone" in prefix:
        state["head.mlp.weight"] = torch.zeros(2)
    path = tmp_path / f"checkpoint{suffix}"
    torch.save({nest: state, "epoch": 3} if nest else state, path)
    loaded = load_state_dict(path)
    assert loaded.keys() == {"cls_token", "blocks.0.ls1.gamma"}
    assert torch.equal(loaded["blocks.0.ls1.gamma"], torch.arange(4.0))


def test_dinov2_with_registers_gives_the_same_tokens_as_timm_s_own_conversion(tmp_path: Path) -> None:
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = timm.create_model("vit_small_patch14_reg4_dinov2", num_classes=0, depth=1)
    meta = dict(model.state_dict())
    meta["register_tokens"] = meta.pop("reg_token")
    meta["mask_token"] = torch.zeros(1, 384)
    meta["pos_embed"] = torch.randn(1, 1 + 37 * 37, 384)
    torch.save(meta, tmp_path / "meta.pth")
    state = load_state_dict(tmp_path / "meta.pth")
    expected = checkpoint_filter_fn(meta, model)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert all(value.is_contiguous() for value in state.values())


class RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, marker = tmp_path / "evil.pt", tmp_path / "ran"
    torch.save({"cls_token": RunsCode(marker)}, path)
    with pytest.raises(WeightsError, match=r"evil\.pt: .*can run code"):
        load_state_dict(path)
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".onnx", ".txt", ""])
@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not weights at all", None])
def test_every_bad_file_is_an_error_that_names_it(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    path = tmp_path / f"broken{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match="broken"):
        load_state_dict(path)


@pytest.mark.parametrize("checkpoint", [[1, 2], {"epoch": 3}, {}, torch.zeros(3), {1: torch.zeros(1)}])
def test_a_pickle_without_named_tensors_is_refused(tmp_path: Path, checkpoint: object) -> None:
    torch.save(checkpoint, tmp_path / "odd.pt")
    with pytest.raises(WeightsError, match=r"odd\.pt"):
        load_state_dict(tmp_path / "odd.pt")


def test_an_archive_that_is_packed_is_refused(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.pt", tmp_path / "packed.pt"
    torch.save({"a": torch.zeros(10_000)}, plain)
    assert set(load_state_dict(plain)) == {"a"}
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(WeightsError, match="a packed archive"):
        load_state_dict(packed)
