"""Blocks of maps → what their range is fitted on, and scores. No torch here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..binarize.base import Binarizer
from ..binarize.ignore import Shapes
from ..binarize.prepare import Figures, figures_of, prepare_map
from ..data.dataset import Sample
from ..errors import BadFileError, DataError
from .engine import Block, Engine, blocks_of

Ends = npt.NDArray[np.float32]
BLOCK = 64  # maps


@dataclass
class RangeWork:
    """What the range of all maps is fitted on."""

    min_size: int
    ignore: Shapes = ()

    def __call__(self, block: Block) -> Iterator[tuple[npt.NDArray[np.float32] | str, Figures | None]]:
        """Of each map its `ends`, and its score and largest value; or why it could not be read."""
        for _, sample in block:
            if sample.map is None:
                yield "", None
                continue
            try:
                values = prepare_map(sample.map, self.min_size, self.ignore)
            except BadFileError as error:
                yield str(error), None
                continue
            yield ends(values), figures_of(values)


def ends(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The smallest map, (1, 1) to (1, 3), that has the same range.

    Examples
    --------
    >>> ends(np.float32([[3, 1, np.inf], [2, 7, np.nan]])).tolist()
    [[1.0, 7.0, inf]]
    """
    finite = values[np.isfinite(values)]
    found = [finite.min(), finite.max()] if finite.size else []
    return np.array([[*found, *([np.inf] if (values == np.inf).any() else [])] or [-np.inf]], np.float32)


def map_ranges(
    engine: Engine,
    samples: Sequence[Sample],
    min_size: int,
    ignore: Shapes = (),
    on_maps: Callable[[int], None] = lambda _: None,
) -> tuple[list[Ends], list[Figures], str]:
    """Of each map that can be read, in order, its `ends` and its score and largest value; and why the first other cannot."""
    found: list[Ends] = []
    figures: list[Figures] = []
    reason, blocks = "", blocks_of(samples, BLOCK)
    for place, maps in engine.each(RangeWork(min_size, ignore), blocks, in_order=True):
        for (_, sample), (own, score_and_peak) in zip(blocks[place], maps, strict=True):
            if isinstance(own, str):  # reported when the image itself is worked on
                reason = reason or own
                engine.check_unread(sample)
            elif score_and_peak is not None:
                found.append(own)
                figures.append(score_and_peak)
        on_maps(len(blocks[place]))
    return found, figures, reason


def fit_range(binarizer: Binarizer, found: Sequence[Ends], n_maps: int, reason: str) -> Binarizer:
    """Fit the range of maps of which these are the ends; n_maps : that there are; reason : see `map_ranges`."""
    if not found:
        raise DataError(f"none of the {n_maps} anomaly maps could be read, the first because: {reason}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of holes: the record of an image says it
        return binarizer.fit(found)
