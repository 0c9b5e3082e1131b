"""Ideas of newer detectors beside PatchCore and MuSc as they are, on the same tokens: does any lift the mean over products?

    python benchmarks/detector_ideas.py DATA/hazelnut DATA/leather … --work DIR [--precision bfloat16] [--only PATTERN]

Each DATA folder has MVTec AD's layout. Prints image AUROC and AUPRO (up to 30 % false positives) of each row, by product and
in the mean. Tokens of images, and rows that are finished, lie in DIR and are not computed again: another version of the
program wants another DIR.

Rows: one bank for each block; normal images also darker and brighter, and turned; other shares of a map as the image's
score; patches of the nearest normal images at about the same place only (RAD); windows weighted by likeness (MuSc-V2); two
small networks that map one block to another (L2BT); what is not foreground damped (AnomalyDINO); a bank without patches
that most of several small banks find odd (MeDS).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from common import EXCLUDED, evenly, machine, positive, print_table
from torch import Tensor, nn

from anomalyncd.data import load_dataset
from anomalyncd.data.gather import gather_normal
from anomalyncd.data.images import read_image
from anomalyncd.data.maps import read_mask
from anomalyncd.detect.patchcore import PatchBank, PatchCore, locally_aware, turns
from anomalyncd.grid import to_map, top_mean
from anomalyncd.metrics import PixelScores, image_auroc
from anomalyncd.model.coreset import RandomPool, greedy_coreset

BANK, POOL = 10_000, 100_000
SHARES = {"maximum": 0.0, "top 0.1 %": 0.001, "top 3 %": 0.03}
NEAREST = 10  # normal images that a patch is looked for in
STEPS, BATCH, HIDDEN = 2_000, 1024, 512  # of the networks that map one block to another
SMALL_BANKS, ODD = 8, 0.99
NEAR_SHARE = 0.3  # of the other images that a patch is compared with, MuSc's own

Grid = Tensor  # (L, h, w, C) float32, patch tokens after each block
Scores = Iterator[np.ndarray]  # (h, w) of each test image


@dataclass
class Tokens:
    """Tokens of a list of images, one file each."""

    files: list[Path]

    def __iter__(self) -> Iterator[Grid]:
        return (torch.from_numpy(np.load(file)).float() for file in self.files)

    def summaries(self) -> Tensor:
        """(N, C) class tokens of length 1."""
        found = [np.load(file.with_suffix(".class.npy")) for file in self.files]
        return F.normalize(torch.from_numpy(np.stack(found)).float(), dim=-1)


@dataclass
class Product:
    """What a detector may see of a product, and the truth beside it."""

    name: str
    normal: Tokens
    test: Tokens
    altered: Callable[[str], Tokens]  # normal images, each with its changed copies
    masks: list[np.ndarray | None]
    sizes: list[tuple[int, int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for tokens and rows that are finished")
    parser.add_argument("--only", default="*", help="rows to run")
    parser.add_argument("--normal", type=positive, default=100, help="normal images of a product, at most")
    parser.add_argument("--limit", type=positive, help="test images of a product")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    options = parser.parse_args()
    print(machine())
    print(f"at most {options.normal} normal images, bank {BANK}, seed 0, precision {options.precision}", flush=True)
    stored = options.work / "rows.json"
    rows = json.loads(stored.read_text()) if stored.exists() else {}
    for folder in options.data:
        wanted = [name for name in ROWS if fnmatch(name, options.only) and f"{name}/{folder.name}" not in rows]
        if not wanted:
            continue
        product = read_product(folder, options)
        for name in wanted:
            started = time.process_time()
            found = measure(product, ROWS[name](product))
            rows |= {f"{key}/{folder.name}": figures for key, figures in found(name).items()}
            stored.write_text(json.dumps(rows, indent=1))
            print(f"{folder.name:12s} {name:40s} {time.process_time() - started:6.0f} s", flush=True)
    show(rows, [folder.name for folder in options.data])


def show(rows: dict[str, list[float]], products: Sequence[str]) -> None:
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in rows))
    table = []
    for name in names:
        found = [rows.get(f"{name}/{product}") for product in products]
        cells = ["–" if pair is None else f"{pair[0]:.3f} / {pair[1]:.3f}" for pair in found]
        mean = np.mean([pair for pair in found if pair is not None], axis=0)
        table.append([name, *cells, f"{mean[0]:.4f} / {mean[1]:.4f}"])
    print("\nImage AUROC / AUPRO")
    print_table(["", *products, "mean"], table)


def measure(product: Product, scores: Scores) -> Callable[[str], dict[str, list[float]]]:
    """Figures of the row's maps; those of the default also with other image scores."""
    maps = [to_map(each, size, map_size=256, sigma=4) for each, size in zip(scores, product.sizes, strict=True)]
    low, high = min(each.min() for each in maps), max(each.max() for each in maps)
    pixels = PixelScores(float(low), float(high))
    for values, mask, size in zip(maps, product.masks, product.sizes, strict=True):
        pixels.add(values, np.zeros(size, bool) if mask is None else mask)
    is_defective = [mask is not None for mask in product.masks]

    def figures(name: str) -> dict[str, list[float]]:
        found = {name: image_auroc([top_mean(each) for each in maps], is_defective)}
        if name in (DEFAULT, MUSC):
            for share, part in SHARES.items():
                of_image = [float(each.max()) if not part else top_mean(each, part) for each in maps]
                found[f"{name}, {share}"] = image_auroc(of_image, is_defective)
        return {key: [float(value or 0), float(pixels.aupro() or 0)] for key, value in found.items()}

    return figures


def read_product(folder: Path, options: argparse.Namespace) -> Product:
    dataset = load_dataset(folder / "test", masks=folder / "ground_truth", exclude=EXCLUDED)
    samples = evenly(list(dataset.samples), options.limit)
    normal = evenly([sample.image for sample in gather_normal(folder / "train" / "good").samples], options.normal)
    detector = PatchCore(precision=options.precision)
    home = options.work / folder.name

    def tokens(name: str, files: Sequence[Path], change: Callable[[np.ndarray], Iterator[np.ndarray]]) -> Tokens:
        found = []
        for number, file in enumerate(files):
            copies = change(read_image(file))
            for copy in range(COPIES[name]):
                place = home / name / f"{number:05d}-{copy}.npy"
                if not place.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    grid = next(iter(detector.reader([next(copies)])))
                    np.save(place.with_suffix(".class.npy"), grid.summary.numpy().astype(np.float16))
                    np.save(place, grid.blocks.numpy().astype(np.float16))
                found.append(place)
        return Tokens(found)

    masks = [None if sample.mask is None else read_mask(sample.mask) for sample in samples]
    return Product(
        folder.name,
        tokens("normal", normal, lambda image: iter([image])),
        tokens("test", [sample.image for sample in samples], lambda image: iter([image])),
        lambda name: tokens(name, normal, CHANGES[name]),
        [None if mask is None or not mask.any() else mask for mask in masks],
        [read_image(sample.image).shape[:2] for sample in samples],
    )


def brighter(image: np.ndarray) -> Iterator[np.ndarray]:
    return (cv2.convertScaleAbs(image, alpha=factor, beta=0) for factor in (1.0, 0.8, 1.2))


CHANGES: dict[str, Callable[[np.ndarray], Iterator[np.ndarray]]] = {
    "light": brighter,
    "turned": lambda image: turns(image, 4),
}
COPIES = {"normal": 1, "test": 1, "light": 3, "turned": 4}


def fitted(grids: Sequence[Tensor] | Iterator[Tensor], size: int = BANK) -> PatchBank:
    """A bank of (P, D) features of each normal image, as PatchCore's."""
    pool = RandomPool(POOL, 0)
    for owner, features in enumerate(grids):
        pool.add(features, owner)
    features, owner = pool.take()
    kept = greedy_coreset(features, size)
    return PatchBank(features[kept], owner=owner[kept])


def distances(bank: PatchBank, features: Tensor, shape: tuple[int, int]) -> np.ndarray:
    return bank.nearest(features)[0].view(shape).numpy()


def plain(product: Product, normal: str = "normal") -> Scores:
    """PatchCore as it is."""
    tokens = product.normal if normal == "normal" else product.altered(normal)
    bank = fitted(locally_aware(grid, 1) for grid in tokens)
    for grid in product.test:
        yield distances(bank, locally_aware(grid, 1), grid.shape[1:3])


def by_block(product: Product) -> Scores:
    """A bank for each block; its distances in units of those of normal images to the others."""
    n_blocks = len(next(iter(product.normal)))
    banks, units = [], []
    for block in range(n_blocks):
        bank = fitted(locally_aware(grid[block : block + 1], 1) for grid in product.normal)
        some = [
            bank.nearest(locally_aware(grid[block : block + 1], 1), without=owner)[0]
            for owner, grid in enumerate(product.normal)
            if owner % 5 == 0
        ]
        banks.append(bank)
        units.append(float(torch.cat(some).mean()))
    for grid in product.test:
        found = [
            distances(bank, locally_aware(grid[block : block + 1], 1), grid.shape[1:3]) / units[block]
            for block, bank in enumerate(banks)
        ]
        yield np.mean(found, axis=0)


def alike_windows(blocks: Grid) -> Grid:
    """Mean over 3 × 3 patches, each weighted by exp(−‖f − f_centre‖) of tokens of length 1 (MuSc-V2)."""
    unit = F.normalize(blocks, dim=-1)
    padded = F.pad(unit, (0, 0, 1, 1, 1, 1))
    inside = F.pad(torch.ones(1, *unit.shape[1:3], 1), (0, 0, 1, 1, 1, 1))
    height, width = unit.shape[1:3]
    total, weights = torch.zeros_like(unit), torch.zeros(*unit.shape[:3], 1)
    for top in range(3):
        for left in range(3):
            here = padded[:, top : top + height, left : left + width]
            weight = (-(here - unit).norm(dim=-1, keepdim=True)).exp() * inside[
                :, top : top + height, left : left + width
            ]
            total, weights = total + weight * here, weights + weight
    return total / weights


def windows(product: Product) -> Scores:
    bank = fitted(locally_aware(alike_windows(grid), 1) for grid in product.normal)
    for grid in product.test:
        yield distances(bank, locally_aware(alike_windows(grid), 1), grid.shape[1:3])


def retrieval(product: Product) -> Scores:
    """The nearest patch within ± 1 position of the normal images whose class tokens are nearest."""
    normal, own = product.normal.summaries(), product.test.summaries()
    for grid, summary in zip(product.test, own, strict=True):
        height, width = grid.shape[1:3]
        features = locally_aware(grid, 1).view(height, width, -1)
        best = torch.full((height, width), -1.0)
        for place in (normal @ summary).topk(min(NEAREST, len(normal))).indices.tolist():
            other = torch.from_numpy(np.load(product.normal.files[place])).float()
            if other.shape != grid.shape:
                other = F.interpolate(other.permute(0, 3, 1, 2), (height, width), mode="bilinear").permute(0, 2, 3, 1)
            known = F.pad(locally_aware(other, 1).view(height, width, -1), (0, 0, 1, 1, 1, 1))
            for top in range(3):
                for left in range(3):
                    cosine = (features * known[top : top + height, left : left + width]).sum(-1)
                    best = torch.maximum(best, cosine)
        yield (2 - 2 * best).clamp(min=0).sqrt().numpy()


def block_to_block(product: Product) -> Scores:
    """Two networks map the first block to the last and back, learned on normal patches; their error (L2BT)."""
    torch.manual_seed(0)
    pool = RandomPool(POOL, 0)
    for owner, grid in enumerate(product.normal):
        pool.add(grid[[0, -1]].permute(1, 2, 0, 3).flatten(0, 1).flatten(1), owner)
    features = pool.take()[0].float()
    width = features.shape[1] // 2

    def network() -> nn.Sequential:
        sides = (width, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, width)
        layers = [layer for pair in sides for layer in (nn.Linear(*pair), nn.GELU())]
        return nn.Sequential(*layers[:-1])

    there, back = network(), network()
    steps = torch.optim.Adam([*there.parameters(), *back.parameters()], lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def errors(early: Tensor, late: Tensor) -> tuple[Tensor, Tensor]:
        return 1 - F.cosine_similarity(there(early), late, dim=-1), 1 - F.cosine_similarity(back(late), early, dim=-1)

    for _ in range(STEPS):
        some = features[torch.randint(len(features), (BATCH,), generator=generator)]
        loss = sum(error.mean() for error in errors(some[:, :width], some[:, width:]))
        steps.zero_grad()
        loss.backward()
        steps.step()
    with torch.inference_mode():
        for grid in product.test:
            forward, backward = errors(grid[0].flatten(0, 1), grid[-1].flatten(0, 1))
            yield (forward + backward).sqrt().view(grid.shape[1:3]).numpy()


def foreground(product: Product) -> Scores:
    """PatchCore's distances, halved where the first principal component of normal tokens says background."""
    pool = RandomPool(20_000, 0)
    for owner, grid in enumerate(product.normal):
        pool.add(grid[-1].flatten(0, 1), owner)
    tokens = pool.take()[0].float()
    mean = tokens.mean(0)
    axis = torch.linalg.svd(tokens - mean, full_matrices=False)[2][0]
    centres, borders = [], []
    for grid in product.normal:
        along = (grid[-1] - mean) @ axis
        height, width = along.shape
        middle = along[height // 4 : -(height // 4), width // 4 : -(width // 4)]
        centres.append(float(middle.mean()))
        borders.append(float((along.sum() - middle.sum()) / (along.numel() - middle.numel())))
    sign = 1.0 if np.mean(centres) > np.mean(borders) else -1.0
    for grid, values in zip(product.test, plain(product), strict=True):
        inside = ((grid[-1] - mean) @ axis * sign > 0).numpy().astype(np.uint8)
        inside = cv2.dilate(inside, np.ones((3, 3), np.uint8))
        yield values * np.where(inside, 1.0, 0.5).astype(np.float32)


def without_odd(product: Product) -> Scores:
    """A bank without the patches that most of several small banks, each of other images, find odd (MeDS)."""
    grids = [locally_aware(grid, 1) for grid in product.normal]
    rng = np.random.default_rng(0)
    votes = [torch.zeros(len(grid)) for grid in grids]
    asked = np.zeros(len(grids))
    for _ in range(SMALL_BANKS):
        chosen = set(rng.choice(len(grids), max(1, len(grids) // 4), replace=False).tolist())
        bank = fitted([grids[place] for place in sorted(chosen)], 1000)
        others = [place for place in range(len(grids)) if place not in chosen]
        found = {place: bank.nearest(grids[place])[0] for place in others}
        limit = torch.cat(list(found.values())).double().quantile(ODD) if others else np.inf
        for place, values in found.items():
            votes[place] += values > limit
            asked[place] += 1
    bank = fitted(grid[vote <= asked_ / 2] for grid, vote, asked_ in zip(grids, votes, asked, strict=True))
    for grid in product.test:
        yield distances(bank, locally_aware(grid, 1), grid.shape[1:3])


def mutual(product: Product, window: bool = False) -> Scores:
    """MuSc without its second look at image scores: mean of the smallest 30 % of the distances to other test images."""
    grids = [F.normalize(alike_windows(grid) if window else grid, dim=-1) for grid in product.test]
    places = evenly(range(len(grids)), 200)
    for number, grid in enumerate(grids):
        parts = []
        for block in range(len(grid)):
            own = grid[block].flatten(0, 1)
            nearest = [(own @ grids[other][block].flatten(0, 1).T).amax(dim=1) for other in places if other != number]
            ordered = (2 - 2 * torch.stack(nearest)).clamp(min=0).sqrt().sort(dim=0).values
            parts.append(ordered[: max(1, int(NEAR_SHARE * len(ordered)))].mean(dim=0))
        yield torch.stack(parts).mean(dim=0).view(grid.shape[1:3]).numpy()


DEFAULT, MUSC = "PatchCore", "MuSc"
ROWS: dict[str, Callable[[Product], Scores]] = {
    DEFAULT: plain,
    "PatchCore, a bank for each block": by_block,
    "PatchCore, also darker and brighter": partial(plain, normal="light"),
    "PatchCore, also turned by quarters": partial(plain, normal="turned"),
    "PatchCore, windows by likeness": windows,
    "PatchCore, background halved": foreground,
    "PatchCore, without odd patches": without_odd,
    "nearest images, ± 1 position": retrieval,
    "one block to another": block_to_block,
    MUSC: mutual,
    "MuSc, windows by likeness": partial(mutual, window=True),
}


if __name__ == "__main__":
    main()
