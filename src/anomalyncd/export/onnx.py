"""The networks of a run, and what its detector compares with, as plain graphs that need no torch."""

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

Description = dict[str, dict[str, str]]  # of a graph: `inputs` and `outputs`, name → shape and type
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


class GuidedGraph(PatchGraph):
    """images as above, keep (B, P) bool, the patches inside the mask → class token (B, C), patch tokens (B, P, C)."""

    def forward(self, images: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with positions(self.position):
            tokens, _, patches = self.vit.trunk(images.permute(0, 3, 1, 2), keep, tap=self.block)
        return self.vit.class_token(tokens, keep), patches


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
            return _block_grids(self.vit, self.blocks, images, (rows.shape[0], columns.shape[0]))


def write_patches(path: Path, vit: MaskGuidedViT, block: int, size: int) -> Description:
    """Write the graph `images → tokens` for square images."""
    images = _noise(2, size, size)
    expected = vit.patch_tokens(images[:1].permute(0, 3, 1, 2), block)
    free = {"images": {0: BATCH}}
    found = write_graph(path, PatchGraph(vit, block, size), {"images": images}, ["tokens"], free)
    _check(path, {"images": images[:1]}, [expected])
    return found


def write_guided(path: Path, vit: MaskGuidedViT, block: int, size: int) -> Description:
    """Write the graph `images, keep → class_token, tokens` for square images."""
    n_patches = size // vit.patch_size[0] * (size // vit.patch_size[1])
    images, keep = _noise(2, size, size), torch.arange(2 * n_patches).view(2, -1) % 3 == 0
    tokens, _, patches = vit.trunk(images[:1].permute(0, 3, 1, 2), keep[:1], tap=block)
    free = {"images": {0: BATCH}, "keep": {0: BATCH}}
    inputs, outputs = {"images": images, "keep": keep}, ["class_token", "tokens"]
    found = write_graph(path, GuidedGraph(vit, block, size), inputs, outputs, free)
    _check(path, {"images": images[:1], "keep": keep[:1]}, [vit.class_token(tokens, keep[:1]), patches])
    return found


def write_grid(path: Path, vit: MaskGuidedViT, blocks: tuple[int, ...]) -> Description:
    """Write the graph `images, rows, columns → tokens` for images of any size."""
    (ph, pw), (h0, w0) = vit.patch_size, trained_grid(vit)

    def inputs(count: int, height: int, width: int) -> dict[str, Tensor]:
        rows, columns = torch.from_numpy(resampling(height, h0)), torch.from_numpy(resampling(width, w0))
        return {"images": _noise(count, ph * height, pw * width), "rows": rows, "columns": columns}

    free = {"images": {0: BATCH, 1: ph * HEIGHT, 2: pw * WIDTH}, "rows": {0: HEIGHT}, "columns": {0: WIDTH}}
    found = write_graph(path, GridGraph(vit, blocks), inputs(2, 6, 5), ["tokens"], free)
    other = inputs(1, 3, 8)
    _check(path, other, [_block_grids(vit, blocks, other["images"], (3, 8))])
    return found


def write_scores(path: Path, bank: PatchBank, n_blocks: int) -> Description:
    """Write PatchCore's graph `tokens → scores`, with its bank."""
    width = bank.rows.shape[1] // n_blocks
    examples = [{"tokens": _normal(n_blocks, *grid, width)} for grid in ((6, 5), (3, 8))]
    return _write_own(path, bank, examples, "scores", {"tokens": {1: HEIGHT, 2: WIDTH}})


def write_compare(path: Path, references: References) -> Description:
    """Write MuSc's graph `tokens, reference → cosines`."""
    n_blocks, _, _, width = references.references[0].shape
    examples = [
        {"tokens": _normal(n_blocks, *grid, width), "reference": _normal(n_blocks, *other, width).half()}
        for grid, other in (((6, 5), (4, 7)), ((3, 8), (5, 2)))
    ]
    free = {"tokens": {1: HEIGHT, 2: WIDTH}, "reference": {1: Dim("y", min=1), 2: Dim("x", min=1)}}
    return _write_own(path, references, examples, "cosines", free)


def write_lowest(path: Path) -> Description:
    """Write MuSc's graph `cosines → scores`."""
    examples = [{"cosines": _normal(*shape).tanh()} for shape in ((2, 6, 5, 20), (3, 8, 7, 3))]
    free = {"cosines": {0: Dim("n", min=1), 1: HEIGHT, 2: WIDTH, 3: Dim("references", min=1)}}
    return _write_own(path, Lowest(), examples, "scores", free)


def write_graph(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], outputs: list[str], free: dict[str, dict[int, Any]]
) -> Description:
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
    graph: Any = program.model.graph
    for node in graph.all_nodes():  # where each line of code lay on this machine is nobody's business
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    n_bytes = sum(values.numel() * values.element_size() for values in (*module.parameters(), *module.buffers()))
    program.save(path, external_data=n_bytes > MOST_BYTES)
    return {
        kind: {value.name: f"({', '.join(map(str, value.shape))}) {value.dtype.numpy()}" for value in values}
        for kind, values in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }


def _write_own(
    path: Path, module: nn.Module, examples: list[dict[str, Tensor]], output: str, free: dict[str, dict[int, Any]]
) -> Description:
    """Trace a module with the first example, and compare the file with it on the second."""
    found = write_graph(path, module, examples[0], [output], free)
    _check(path, examples[1], [module(**examples[1])])
    return found


def _block_grids(vit: MaskGuidedViT, blocks: tuple[int, ...], images: Tensor, grid: tuple[int, int]) -> Tensor:
    """images (B, H, W, 3) → patch tokens after each block (B, L, h, w, C)."""
    found = vit.block_tokens(images.permute(0, 3, 1, 2), blocks)
    tokens = torch.stack([found[block][:, vit.n_prefix :] for block in blocks], dim=1)
    grids: Tensor = tokens.unflatten(2, grid)
    return grids


def _noise(count: int, height: int, width: int) -> Tensor:
    """(count, height, width, 3) uint8 noise, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=generator)


def _normal(*shape: int) -> Tensor:
    """Random float32 numbers, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


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
