"""The networks of a run as plain graphs that need no torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import vision_transformer
from torch import Tensor, nn
from torch.export import Dim

from ..detect.musc import Lowest, References
from ..detect.patchcore import PatchBank
from ..errors import SettingsError
from ..model.backbone import MaskGuidedViT
from ..runtime.detectors import resampling
from ..runtime.engine import open_graph

Description = dict[str, dict[str, str]]  # of a graph for people: `inputs` and `outputs`, name → shape, type and meaning
MOST_BYTES = 1_800_000_000  # a protobuf holds 2 GB; larger weights lie beside the graph
CLOSE = 1e-3  # how far numbers of a graph may be from the network's, as a share of the largest
BATCH, HEIGHT, WIDTH = Dim("batch"), Dim("h", min=1), Dim("w", min=1)  # sides that may have any length


class PatchGraph(nn.Module):
    """images (B, H, W, 3) uint8 of one size → patch tokens after one block (B, P, C)."""

    def __init__(self, vit: MaskGuidedViT, block: int, size: int) -> None:
        super().__init__()
        self.vit, self.block = vit, block
        self.register_buffer("position", fixed_position(vit, size), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        with positions(self.position):
            return self.vit.patch_tokens(images.permute(0, 3, 1, 2), self.block)


class GuidedGraph(nn.Module):
    """images as above, keep (B, P) bool, the patches inside the mask → class token (B, C), patch tokens (B, P, C)."""

    def __init__(self, vit: MaskGuidedViT, block: int, size: int) -> None:
        super().__init__()
        self.vit, self.block = vit, block
        self.register_buffer("position", fixed_position(vit, size), persistent=False)

    def forward(self, images: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        with positions(self.position):
            out = self.vit.trunk(images.permute(0, 3, 1, 2), keep, taps=(self.block,))
        return self.vit.class_token(out.tokens, out.keep), out.taps[self.block]


class GridGraph(nn.Module):
    """images (B, H, W, 3) uint8 of any size, rows (h, h0), columns (w, w0) → patch tokens (B, L, h, w, C).

    The trained positions are h0 × w0; rows and columns, see `resampling`, bring them to the h × w patches of the image.
    """

    def __init__(self, vit: MaskGuidedViT, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.vit, self.blocks = vit, blocks

    def forward(self, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        trained, n_prefix = self.vit.vit.pos_embed, position_prefix(self.vit)
        grid = trained[0, n_prefix:].unflatten(0, trained_grid(self.vit))  # (h0, w0, C)
        grid = torch.einsum("hy,yxc->hxc", rows, grid)
        grid = torch.einsum("wx,hxc->hwc", columns, grid)
        with positions(torch.cat([trained[:, :n_prefix], grid.flatten(0, 1)[None]], dim=1)):
            found = self.vit.block_tokens(images.permute(0, 3, 1, 2), self.blocks)
        tokens = torch.stack([found[block][:, self.vit.n_prefix :] for block in self.blocks], dim=1)
        grids: Tensor = tokens.unflatten(2, (rows.shape[0], columns.shape[0]))
        return grids


def write_patches(path: Path, vit: MaskGuidedViT, block: int, size: int) -> Description:
    """Write the graph `images → tokens` for square images."""
    images = {"images": _noise(2, size, size)}
    write_graph(path, PatchGraph(vit, block, size), images, ["tokens"], {"images": {0: BATCH}})
    images = {"images": _noise(1, size, size)}
    _check(path, images, [vit.patch_tokens(images["images"].permute(0, 3, 1, 2), block)])
    return {"inputs": _square_images(size), "outputs": _block_tokens(vit, block, size)}


def write_guided(path: Path, vit: MaskGuidedViT, block: int, size: int) -> Description:
    """Write the graph `images, keep → class_token, tokens` for square images."""
    n_patches = size // vit.patch_size[0] * (size // vit.patch_size[1])
    inputs = {"images": _noise(2, size, size), "keep": torch.arange(2 * n_patches).view(2, -1) % 3 == 0}
    outputs = ["class_token", "tokens"]
    write_graph(path, GuidedGraph(vit, block, size), inputs, outputs, {"images": {0: BATCH}, "keep": {0: BATCH}})
    images, keep = _noise(1, size, size), inputs["keep"][:1]
    out = vit.trunk(images.permute(0, 3, 1, 2), keep, taps=(block,))
    _check(path, {"images": images, "keep": keep}, [vit.class_token(out.tokens, keep), out.taps[block]])
    return {
        "inputs": {**_square_images(size), "keep": f"(B, {n_patches}) bool, patches inside the mask"},
        "outputs": {
            "class_token": f"(B, {vit.width}) float32, of the last block",
            **_block_tokens(vit, block, size),
        },
    }


def write_grid(path: Path, vit: MaskGuidedViT, blocks: tuple[int, ...]) -> Description:
    """Write the graph `images, rows, columns → tokens` for images of any size."""
    (ph, pw), (h0, w0) = vit.patch_size, trained_grid(vit)

    def inputs(count: int, height: int, width: int) -> dict[str, Tensor]:
        rows, columns = torch.from_numpy(resampling(height, h0)), torch.from_numpy(resampling(width, w0))
        return {"images": _noise(count, ph * height, pw * width), "rows": rows, "columns": columns}

    free = {"images": {0: BATCH, 1: ph * HEIGHT, 2: pw * WIDTH}, "rows": {0: HEIGHT}, "columns": {0: WIDTH}}
    write_graph(path, GridGraph(vit, blocks), inputs(2, 6, 5), ["tokens"], free)
    other = inputs(1, 3, 8)
    found = vit.block_tokens(other["images"].permute(0, 3, 1, 2), blocks)
    tokens = torch.stack([found[block][:, vit.n_prefix :] for block in blocks], dim=1)
    _check(path, other, [tokens.unflatten(2, (3, 8))])
    after = ", ".join(map(str, blocks))
    return {
        "inputs": {
            "images": f"(B, H, W, 3) uint8, RGB, H = {ph} h and W = {pw} w",
            "rows": f"(h, {h0}) float32 and",
            "columns": f"(w, {w0}) float32: anomalyncd.runtime.detectors.resampling",
        },
        "outputs": {
            "tokens": f"(B, {len(blocks)}, h, w, {vit.width}) float32, patch tokens after blocks {after} from 0"
        },
    }


def write_scores(path: Path, bank: PatchBank, n_blocks: int) -> Description:
    """Write PatchCore's graph `tokens → scores`, with its bank."""
    width = bank.rows.shape[1] // n_blocks
    free = {"tokens": {1: HEIGHT, 2: WIDTH}}
    write_graph(path, bank, {"tokens": _normal(n_blocks, 6, 5, width)}, ["scores"], free)
    tokens = _normal(n_blocks, 3, 8, width)
    _check(path, {"tokens": tokens}, [bank(tokens)])
    scores = "(h, w) float32, distance of each patch to the nearest one of the bank"
    return {"inputs": {"tokens": f"({n_blocks}, h, w, {width}) float32, of one image"}, "outputs": {"scores": scores}}


def write_compare(path: Path, references: References) -> Description:
    """Write MuSc's graph `tokens, reference → cosines`."""
    n_blocks, _, _, width = references.references[0].shape
    free = {"tokens": {1: HEIGHT, 2: WIDTH}, "reference": {1: Dim("y", min=1), 2: Dim("x", min=1)}}
    inputs = {"tokens": _normal(n_blocks, 6, 5, width), "reference": _normal(n_blocks, 4, 7, width).half()}
    write_graph(path, references, inputs, ["cosines"], free)
    inputs = {"tokens": _normal(n_blocks, 3, 8, width), "reference": _normal(n_blocks, 5, 2, width).half()}
    _check(path, inputs, [references(**inputs)])
    return {
        "inputs": {
            "tokens": f"({n_blocks}, h, w, {width}) float32, of one image",
            "reference": f"({n_blocks}, y, x, {width}) float16, of another",
        },
        "outputs": {
            "cosines": f"({n_blocks * len(references.windows)}, h, w) float32, of each patch and the nearest of the other"
        },
    }


def write_lowest(path: Path) -> Description:
    """Write MuSc's graph `cosines → scores`."""
    lowest, free = Lowest(), {"cosines": {0: Dim("n", min=1), 1: HEIGHT, 2: WIDTH, 3: Dim("r", min=1)}}
    write_graph(path, lowest, {"cosines": _normal(2, 6, 5, 20).tanh()}, ["scores"], free)
    cosines = _normal(3, 8, 7, 3).tanh()
    _check(path, {"cosines": cosines}, [lowest(cosines)])
    return {
        "inputs": {"cosines": "(n, h, w, R) float32, with each of R references"},
        "outputs": {"scores": "(h, w) float32, mean of the lowest 30 % of the distances"},
    }


def write_graph(
    path: Path,
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: list[str],
    free: dict[str, dict[int, Any]],
) -> None:
    """Trace a module into an ONNX file.

    inputs : examples, by the names of the module's arguments; free : input → which of its sides may have another length
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), tuple(inputs.values()), dynamo=True, verbose=False, dynamic_shapes=free,
            input_names=list(inputs), output_names=outputs, external_data=False,
        )  # fmt: skip
    assert program is not None
    for node in program.model.graph.all_nodes():  # where each line of code lay on this machine is nobody's business
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    n_bytes = sum(values.numel() * values.element_size() for values in (*module.parameters(), *module.buffers()))
    program.save(path, external_data=n_bytes > MOST_BYTES)


def _square_images(size: int) -> dict[str, str]:
    return {"images": f"(B, {size}, {size}, 3) uint8, RGB"}


def _block_tokens(vit: MaskGuidedViT, block: int, size: int) -> dict[str, str]:
    n_patches = size // vit.patch_size[0] * (size // vit.patch_size[1])
    return {"tokens": f"(B, {n_patches}, {vit.width}) float32, patch tokens after block {block} from 0"}


def _normal(*shape: int) -> Tensor:
    """Random float32 numbers, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _noise(count: int, height: int, width: int) -> Tensor:
    """(count, height, width, 3) uint8 noise, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=generator)


def position_prefix(vit: MaskGuidedViT) -> int:
    """How many of the trained positions belong to no patch."""
    return 0 if vit.vit.no_embed_class else int(vit.n_prefix)


def trained_grid(vit: MaskGuidedViT) -> tuple[int, int]:
    """Patches (h0, w0) that the network has positions for."""
    height, width = vit.vit.patch_embed.grid_size
    return int(height), int(width)


def fixed_position(vit: MaskGuidedViT, size: int) -> Tensor:
    """Position embeddings of square images with sides of `size` pixels."""
    new = [size // vit.patch_size[0], size // vit.patch_size[1]]
    position: Tensor = resample_abs_pos_embed(
        vit.vit.pos_embed, new_size=new, old_size=list(trained_grid(vit)), num_prefix_tokens=position_prefix(vit)
    )
    return position.detach().clone()


@contextmanager
def positions(position: Any) -> Iterator[None]:
    """Let timm take these position embeddings where it would resample its own, which few engines can do as it does."""
    with mock.patch.object(vision_transformer, "resample_abs_pos_embed", lambda *_, **__: position):
        yield


def _check(path: Path, inputs: dict[str, Tensor], expected: list[Tensor]) -> None:
    """Run the file once: an operation that an engine does otherwise must be found here and not on the line."""
    found = open_graph(path, "onnxruntime")({name: value.numpy() for name, value in inputs.items()})
    for values, wanted in zip(found, expected, strict=True):
        off = np.abs(values - wanted.detach().numpy()).max() / wanted.abs().max().item()
        if not off < CLOSE:
            raise SettingsError(
                f"the graph of this backbone gives other tokens than the backbone itself (off by {off:.1e}), so it cannot "
                "be exported. Backbones of timm's class VisionTransformer can."
            )
