from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from anomalyncd.errors import WeightsError
from anomalyncd.model.checkpoint import N_EMBEDDED_BLOCKS, load_state_dict, state_dict_from_onnx

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

    embeddings = "backbone.embeddings."
    expected["cls_token"] = tensor(embeddings + "cls_token", 1, 1, WIDTH)
    class_position, positions = (
        tensor("onnx::Concat_1957", 1, 1, WIDTH),
        tensor("onnx::Reshape_1962", 1, GRID**2, WIDTH),
    )
    expected["pos_embed"] = np.hstack([class_position, positions])
    for kind, shape in (("weight", (WIDTH, 3, 14, 14)), ("bias", (WIDTH,))):
        projection = tensor(f"{embeddings}patch_embeddings.projection.{kind}", *shape)
        expected[f"patch_embed.proj.{kind}"] = projection
    for i in range(n_blocks):
        old, path, new = f"backbone.encoder.layer.{i}.", f"/backbone/encoder/layer.{i}/", f"blocks.{i}."
        query = linear(path + "attention/attention/query", WIDTH, WIDTH)
        key = linear(path + "attention/attention/key", WIDTH, WIDTH)
        value = linear(path + "attention/attention/value", WIDTH, WIDTH)
        # A MatMul of two activations, as attention has: it owns no weight and must be passed over.
        nodes.append(helper.make_node("MatMul", ["x", "x"], ["x"], name=path + "attention/attention/MatMul"))
        expected[new + "attn.qkv.weight"] = np.vstack([query, key, value])
        biases = [tensor(f"{old}attention.attention.{x}.bias", WIDTH) for x in ("query", "key", "value")]
        expected[new + "attn.qkv.bias"] = np.hstack(biases)
        expected[new + "attn.proj.weight"] = linear(path + "attention/output/dense", WIDTH, WIDTH)
        expected[new + "attn.proj.bias"] = tensor(old + "attention.output.dense.bias", WIDTH)
        expected[new + "mlp.fc1.weight"] = linear(path + "mlp/fc1", WIDTH, HIDDEN)
        expected[new + "mlp.fc1.bias"] = tensor(old + "mlp.fc1.bias", HIDDEN)
        expected[new + "mlp.fc2.weight"] = linear(path + "mlp/fc2", HIDDEN, WIDTH)
        expected[new + "mlp.fc2.bias"] = tensor(old + "mlp.fc2.bias", WIDTH)
        for norm in ("norm1", "norm2"):
            expected[f"{new}{norm}.weight"] = tensor(f"{old}{norm}.weight", WIDTH)
            expected[f"{new}{norm}.bias"] = tensor(f"{old}{norm}.bias", WIDTH)
        expected[new + "ls1.gamma"] = tensor(old + "layer_scale1.lambda1", WIDTH)
        expected[new + "ls2.gamma"] = tensor(old + "layer_scale2.lambda1", WIDTH)
    tensor("decoder.weight", 4, 4)  # what is not the backbone stays behind
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
    state = state_dict_from_onnx(model, n_blocks=2)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
        assert state[name].flags.c_contiguous and state[name].dtype == np.float32


def test_an_onnx_file_is_read_up_to_the_last_block_that_is_used(tmp_path: Path) -> None:
    model, expected = fake_onnx(n_blocks=N_EMBEDDED_BLOCKS + 2)
    onnx.save(model, tmp_path / "vit.onnx")
    state = load_state_dict(tmp_path / "vit.onnx")
    unused = tuple(f"blocks.{N_EMBEDDED_BLOCKS + i}." for i in range(2))
    assert state.keys() == {name for name in expected if not name.startswith(unused)}
    assert all(np.array_equal(value.numpy(), expected[name]) for name, value in state.items())


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
