"""Maps and image scores against the truth: labels, and masks where there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..binarize.prepare import binarize_map, binarizer_for, fit_binarizer, prepare_map
from ..config import Config
from ..data.dataset import NORMAL_NAMES, Dataset, Sample, load_dataset
from ..data.layouts import product_folder
from ..data.maps import read_map, read_mask
from ..errors import BadFileError, DataError
from ..metrics import PixelScores, box_rates, image_auroc
from ..places.names import place_of
from ..places.stored import File
from ..progress import Advance, Silent
from ..regions.records import and_more

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DetectionScores:
    """How well maps find defects; None for what the truth at hand does not tell.

    image_auroc : of image scores; pixel_auroc, aupro : of maps, the latter up to 30 % false positives
    box_fpr, box_fnr : false and missed boxes of the binarised maps, at an IoU of 0.1
    box_fpr_defective, box_fnr_images : the same, mildly read, see `metrics.box_rates`
    """

    n_images: int
    n_defective: int | None = None
    image_auroc: float | None = None
    pixel_auroc: float | None = None
    aupro: float | None = None
    box_fpr: float | None = None
    box_fnr: float | None = None
    box_fpr_defective: float | None = None
    box_fnr_images: float | None = None


def load_truth(images: str | File, masks: str | File | None, exclude: Collection[str], progress: Silent) -> Dataset:
    """Labels and masks of the images: masks that are given, of a table, or of `ground_truth/` beside `test/`."""
    if masks is not None:
        return load_dataset(images, masks=masks, exclude=exclude, with_maps=False)
    if (beside := _ground_truth(images)) is not None:
        try:
            return load_dataset(images, masks=beside, exclude=exclude, with_maps=False)
        except DataError as error:  # nobody asked for it, so it does not stop anything
            progress.warn(f"no ground truth is used: {error}")
    return load_dataset(images, exclude=exclude, with_maps=False)


def evaluate_maps(
    samples: Sequence[Sample], scores: pd.DataFrame, truth: Dataset, config: Config, progress: Silent
) -> DetectionScores | None:
    """Maps and image scores against masks and labels, one image in memory at a time; None where there is no truth.

    An image is normal by its label, where any label is a name of normal; else by its mask.

    Parameters
    ----------
    samples : with maps
    scores : maps/scores.csv of the same samples
    truth : labels, and masks where there are any, of the same images
    config : binarise and has_normal settings are used
    """
    read = scores[scores["message"] == ""].set_index("image")
    score_of = read["score"].astype(float).to_dict()
    named = any(_is_normal(sample) for sample in truth)
    defective = {s.id: not _is_normal(s) for s in truth if s.label is not None} if named else {}
    compared = None
    if truth.has_masks:
        try:
            compared = MaskComparison([s for s in samples if s.id in score_of], truth, read, config, progress)
        except DataError as error:
            progress.warn(str(error))  # the maps are there all the same
    if compared is None and not named:
        return None
    if compared is not None:
        defective = defective if named else compared.marked
        if unmarked := [name for name, found in compared.marked.items() if not found and defective.get(name)]:
            words = "no mask, or an empty one, though its label is a defect: all its pixels count as normal"
            progress.warn(f"{unmarked[0]}: {words}{and_more(unmarked)}.")
    if scoreless := [name for name, score in score_of.items() if np.isnan(score)]:
        words = "no score, so it is left out of the metrics of images"
        progress.warn(f"{scoreless[0]}: {words}{and_more(scoreless)}.")
    judged = [name for name, score in score_of.items() if name in defective and not np.isnan(score)]
    return DetectionScores(
        n_images=len(judged),
        n_defective=sum(defective[name] for name in judged),
        image_auroc=image_auroc([score_of[name] for name in judged], [defective[name] for name in judged]),
        **({} if compared is None else compared.figures()),
    )


class MaskComparison:
    """Maps against true masks; marked : id → whether its mask shows a defect.

    Parameters
    ----------
    samples : with maps; truth : masks of the same images
    sizes : height and width of each image, by its id
    """

    def __init__(
        self, samples: Sequence[Sample], truth: Dataset, sizes: pd.DataFrame, config: Config, progress: Silent
    ) -> None:
        self.mask_of, self.progress = {sample.id: sample.mask for sample in truth}, progress
        self.sizes = {name: (int(row["height"]), int(row["width"])) for name, row in sizes.iterrows()}
        self.marked: dict[str, bool] = {}
        self.map_size = config.binarize.min_map_size
        low, high = np.inf, -np.inf
        whole = []
        for sample in samples:
            values = read_map(sample.map)  # type: ignore[arg-type]
            if np.isnan(values).any():
                progress.warn(f"{sample.id}: its map holds NaN, so it is left out of the metrics of pixels.")
                continue
            whole.append(sample)
            finite = values[np.isfinite(values)]
            low, high = finite.min(initial=low), finite.max(initial=high)
        if not whole or low > high:
            raise DataError("no map has finite values and no NaN, so maps cannot be compared with masks.")
        self.binarizer = binarizer_for(config.binarize, has_normal=config.has_normal)
        fit_binarizer(self.binarizer, whole, self.map_size)
        self.low, self.high = float(low), float(high)
        self.pixels = PixelScores(self.low, self.high if high > low else self.low + 1)
        with progress.task("Metrics", len(whole)) as advance:
            first, second = tee(self._pairs(whole, advance))
            self.boxes = box_rates((found for found, _ in first), (true for _, true in second), iou=0.1)

    def figures(self) -> dict[str, float | None]:
        """Of pixels and boxes."""
        pixels = {"pixel_auroc": self.pixels.pixel_auroc(), "aupro": self.pixels.aupro(max_fpr=0.3)}
        boxes = {"box_fpr": self.boxes.fpr, "box_fnr": self.boxes.fnr}
        mild = {"box_fpr_defective": self.boxes.fpr_defective, "box_fnr_images": self.boxes.fnr_images}
        return {**pixels, **boxes, **mild}

    def _pairs(self, samples: Sequence[Sample], advance: Advance) -> Iterator[tuple[Mask, Mask]]:
        """Binarised map and true mask of each image; its pixels are counted on the way."""
        for sample in samples:
            advance()
            assert sample.map is not None
            mask = self.mask_of.get(sample.id)
            try:
                # Normal images count as many pixels as the others, however small their maps are.
                true = np.zeros(self.sizes[sample.id], bool) if mask is None else read_mask(mask)
            except BadFileError as error:
                self.progress.warn(f"skipped {error}")
                continue
            self.marked[sample.id] = bool(true.any())
            self.pixels.add(np.clip(read_map(sample.map), self.low, self.high), true)
            result, _ = binarize_map(self.binarizer, prepare_map(sample.map, self.map_size))
            yield result.mask, true


def _is_normal(sample: Sample) -> bool:
    return sample.label is not None and sample.label.lower() in NORMAL_NAMES


def _ground_truth(images: str | File) -> File | None:
    """Masks beside the images, as MVTec AD has them."""
    folder = place_of(images, "images")
    if not folder.is_dir():
        return None
    root = product_folder(folder.absolute(), "test")
    beside = root.parent / "ground_truth"
    return beside if root.name == "test" and beside.is_dir() else None
