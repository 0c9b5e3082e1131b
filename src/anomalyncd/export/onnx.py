"""The networks of a run, and what its detector compares with, as plain graphs that need no torch."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
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
from ..detect.tokens import add_pixels
from ..errors import SettingsError
from ..model.backbone import MaskGuidedViT
from ..runtime.graphs import open_graph, resampling

Description = dict[str, dict[str, str]]  # of a graph: `inputs` and `outputs`, name → shape and type
MOST_BYTES = 1_800_000_000  # a protobuf holds 2 GB; larger weights lie beside the graph
CLOSE = 1e-3  # how far numbers of a graph may be from the network's, as a share of the largest
BATCH, HEIGHT, WIDTH = Dim("batch"), Dim("h", min=1), Dim("w", min=1)  # sides that may have any length


class GuidedGraph(nn.Module):
    """images (B, H, W, 3) uint8 of one size, keep (B, P) bool, the patches inside the mask → class token (B, C), and patch
    tokens after the blocks (B, L, P, C) where there are any; position : None for timm's own."""

    def __init__(self, vit: MaskGuidedViT, blocks: tuple[int, ...], position: Tensor | None) -> None:
        super().__init__()
        self.vit, self.blocks = vit, blocks
        self.register_buffer("position", position, persistent=False)

    def forward(self, images: Tensor, keep: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        with positions(self.position):
            tokens, _, patches = self.vit.trunk(images.permute(0, 3, 1, 2), keep, taps=self.blocks)
        class_token = self.vit.class_token(tokens, keep)
        return (class_token, patches) if self.blocks else class_token


class GridGraph(nn.Module):
    """images (B, H, W, 3) uint8 of any size, rows (h, h0), columns (w, w0) → patch tokens (B, L, h, w, C), `pixels` behind.

    The trained positions are h0 × w0; rows and columns, see `resampling`, bring them to the h × w patches of the image,
    unless it is left to timm (`own`).
    """

    def __init__(self, vit: MaskGuidedViT, blocks: tuple[int, ...], pixels: bool, *, own: bool = False) -> None:
        super().__init__()
        self.vit, self.blocks, self.pixels, self.own = vit, blocks, pixels, own

    def forward(self, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        trained, n_prefix = self.vit.vit.pos_embed, position_prefix(self.vit)
        grid = trained[0, n_prefix:].unflatten(0, trained_grid(self.vit))  # (h0, w0, C)
        grid = torch.einsum("hy,yxc->hxc", rows, grid)
        grid = torch.einsum("wx,hxc->hwc", columns, grid)
        position = torch.cat([trained[:, :n_prefix], grid.flatten(0, 1)[None]], dim=1)
        with positions(None if self.own else position):
            tokens = self.vit.patch_tokens(images.permute(0, 3, 1, 2), self.blocks)
        grids: Tensor = tokens.unflatten(2, (rows.shape[0], columns.shape[0]))
        return add_pixels(grids, images.permute(0, 3, 1, 2)) if self.pixels else grids


def write_guided(path: Path, vit: MaskGuidedViT, blocks: tuple[int, ...], size: int) -> Description:
    """Write the graph `images, keep → class_token, tokens` for square images; without blocks there are no tokens."""
    n_patches = size // vit.patch_size[0] * (size // vit.patch_size[1])
    keep = torch.arange(2 * n_patches).view(2, -1) % 3 == 0
    examples = [{"images": _noise(count, size, size), "keep": keep[:count]} for count in (2, 1)]
    module, same = (GuidedGraph(vit, blocks, position) for position in (fixed_position(vit, size), None))
    free = {"images": {0: BATCH}, "keep": {0: BATCH}}
    return write_graph(path, module, examples, ["class_token", "tokens"][: 1 + bool(blocks)], free, same)


def write_grid(path: Path, vit: MaskGuidedViT, blocks: tuple[int, ...], pixels: bool = False) -> Description:
    """Write the graph `images, rows, columns → tokens` for images of any size."""
    (ph, pw), (h0, w0) = vit.patch_size, trained_grid(vit)

    def inputs(count: int, height: int, width: int) -> dict[str, Tensor]:
        rows, columns = torch.from_numpy(resampling(height, h0)), torch.from_numpy(resampling(width, w0))
        return {"images": _noise(count, ph * height, pw * width), "rows": rows, "columns": columns}

    examples = [inputs(2, 6, 5), inputs(1, 3, 8)]
    free = {"images": {0: BATCH, 1: ph * HEIGHT, 2: pw * WIDTH}, "rows": {0: HEIGHT}, "columns": {0: WIDTH}}
    same = GridGraph(vit, blocks, pixels, own=True)
    return write_graph(path, GridGraph(vit, blocks, pixels), examples, ["tokens"], free, same)


def write_scores(path: Path, memory: nn.Module, n_blocks: int, width: int) -> Description:
    """Write the graph `tokens → scores` of what a detector has learned, a module that does just that."""
    examples = [{"tokens": _normal(n_blocks, *grid, width)} for grid in ((6, 5), (3, 8))]
    return write_graph(path, memory, examples, ["scores"], {"tokens": {1: HEIGHT, 2: WIDTH}}, memory)


def write_compare(path: Path, references: References) -> Description:
    """Write MuSc's graph `tokens, reference → cosines`."""
    n_blocks, _, _, width = references.references[0].shape
    examples = [
        {"tokens": _normal(n_blocks, *grid, width), "reference": _normal(n_blocks, *other, width).half()}
        for grid, other in (((6, 5), (4, 7)), ((3, 8), (5, 2)))
    ]
    free = {"tokens": {1: HEIGHT, 2: WIDTH}, "reference": {1: Dim("y", min=1), 2: Dim("x", min=1)}}
    return write_graph(path, references, examples, ["cosines"], free, references)


def write_lowest(path: Path) -> Description:
    """Write MuSc's graph `cosines → scores`."""
    examples = [{"cosines": _normal(*shape).tanh()} for shape in ((2, 6, 5, 20), (3, 8, 7, 3))]
    free = {"cosines": {0: Dim("n", min=1), 1: HEIGHT, 2: WIDTH, 3: Dim("references", min=1)}}
    return write_graph(path, Lowest(), examples, ["scores"], free, Lowest())


def write_graph(
    path: Path,
    module: nn.Module,
    examples: list[dict[str, Tensor]],
    outputs: list[str],
    free: dict[str, dict[int, Any]],
    same: nn.Module,
) -> Description:
    """Trace a module into an ONNX file, and run it: what an engine does otherwise must be found here and not on the line.

    examples : two sets of inputs, by the names of the module's arguments: to trace with, and to run
    free : input → which of its sides may have another length; same : what the file must do
    """
    inputs, tried = examples
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
    found, wanted = open_graph(path, "onnxruntime")({k: v.numpy() for k, v in tried.items()}), same(**tried)
    for values, known in zip(found, [wanted] if isinstance(wanted, Tensor) else wanted, strict=True):
        off = np.abs(values - known.detach().numpy()).max() / known.abs().max().item()
        if not off < CLOSE:
            raise SettingsError(
                f"the graph of this backbone gives other tokens than the backbone itself (off by {off:.1e}), so it cannot "
                "be exported. Backbones of timm's class VisionTransformer can."
            )
    return {
        kind: {value.name: f"({', '.join(map(str, value.shape))}) {value.dtype.numpy()}" for value in values}
        for kind, values in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }


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


def positions(position: Any) -> AbstractContextManager[Any]:
    """Let timm take these position embeddings where it would resample its own, which few engines can do as it does."""
    if position is None:
        return nullcontext()
    return mock.patch.object(vision_transformer, "resample_abs_pos_embed", lambda *_, **__: position)
