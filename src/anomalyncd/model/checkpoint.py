"""Reading weight files: whatever a checkpoint looks like, out come tensors by timm's names."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.torch
import torch
from onnx import numpy_helper

from ..errors import MissingWeightsError, WeightsError


def load_state_dict(path: str | Path) -> dict[str, torch.Tensor]:
    """Read weights from a local file: .safetensors, .pt/.pth/.bin, or the .onnx file of the default backbone.

    Pickled checkpoints are read without running code. Nesting under `state_dict`, `model` or `teacher`, the
    prefixes `module.` and `backbone.` and the layout of Meta's DINOv2 files are turned into timm's naming.

    Returns
    -------
    Contiguous CPU tensors by timm's names, for example `blocks.0.attn.qkv.weight` (3·width, width)

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "dino.pth"
    ...     torch.save({"teacher": {"module.backbone.cls_token": torch.zeros(1, 1, 8)}}, path)
    ...     load_state_dict(path)["cls_token"].shape
    torch.Size([1, 1, 8])
    """
    readers: dict[str, Callable[[Path], Mapping[str, Any]]] = {
        ".safetensors": safetensors.torch.load_file,
        ".onnx": _read_onnx,
        **dict.fromkeys((".pt", ".pth", ".bin"), _read_pickle),
    }
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise WeightsError(f"{path}: expected weights as {', '.join(readers)}, but got {suffix or 'no suffix'!r}.")
    if not os.path.isfile(path):
        raise MissingWeightsError(f"{path}: expected a file with weights, none found.")
    try:
        return _timm_names(readers[suffix](path))
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: expected nothing but tensors, but the file is damaged or holds Python objects, which "
            f"are not loaded because they can run code. Save model.state_dict() alone, best as .safetensors."
        ) from error
    except Exception as error:  # each reader has its own errors; to the user all mean the same
        raise WeightsError(
            f"{path}: expected the weights of a vision transformer, but got {type(error).__name__}: {error}"
        ) from error


def _read_pickle(path: Path) -> Any:
    if zipfile.is_zipfile(path):  # torch stores tensors as they are: packed ones may unpack to any size
        with zipfile.ZipFile(path) as archive:
            if sum(file.file_size for file in archive.infolist()) > path.stat().st_size:
                raise TypeError("a packed archive")
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_onnx(path: Path) -> dict[str, torch.Tensor]:
    # External data could name any file of this machine; the expected model has none.
    model = onnx.load(path, load_external_data=False)
    return {key: torch.tensor(value) for key, value in state_dict_from_onnx(model).items()}


def state_dict_from_onnx(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """DINOv2 ViT-S/14 of the ONNX file, named as timm's `vit_small_patch14_dinov2`.

    Returns
    -------
    Contiguous float32 arrays
    """
    arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    state = {name.removeprefix("model."): array for name, array in arrays.items() if name.startswith("model.")}
    # Linear weights lost their names in the export: the MatMul that uses one still has it, as /blocks.0/attn/qkv/MatMul.
    # Transposed they are as torch keeps them, (out, in).
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            layer = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            state[f"{layer}.weight"] = arrays[node.input[1]].T
    # The class token and its position are the same vector in DINOv2, and the export kept it once.
    state["pos_embed"] = np.concatenate([state["cls_token"], arrays["onnx::Reshape_1360"]], axis=1)
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in state.items()}


def _timm_names(checkpoint: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Unpack the nesting of common training scripts and rename Meta's DINOv2 parameters to timm's."""
    while nested := [checkpoint[key] for key in ("state_dict", "model", "teacher") if key in checkpoint]:
        checkpoint = nested[0]
    state = {key.removeprefix("module."): value for key, value in checkpoint.items()}
    if any(key.startswith("backbone.") for key in state):  # what is beside the backbone is a training head
        state = {key.removeprefix("backbone."): v for key, v in state.items() if key.startswith("backbone.")}
    if not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise TypeError("a checkpoint that is not a table of named tensors")
    state.pop("mask_token", None)  # used in DINOv2's training only
    if "register_tokens" in state:
        # timm adds no position to the class token of models with registers, so it goes into the token itself.
        state["reg_token"] = state.pop("register_tokens")
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:]
    return {
        key.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2."): value.contiguous()
        for key, value in state.items()
    }
