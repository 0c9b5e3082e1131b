"""Anomaly maps on their way to the binariser. No torch here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from ..config import BinarizeConfig, Config
from ..data.dataset import Sample, Source
from ..data.maps import read_map
from ..errors import BadFileError, DataError
from ..grid import top_mean
from .base import Binarizer, BinarizeResult
from .fixed import FixedThreshold
from .ignore import Shapes, without
from .mebin import MEBin
from .otsu import Otsu

FloatMap = npt.NDArray[np.float32]


def binarizer_for(config: BinarizeConfig, *, has_normal: bool) -> Binarizer:
    """The configured binariser, not fitted yet.

    Examples
    --------
    >>> binarizer_for(BinarizeConfig(method="fixed", fixed_threshold=0.7), has_normal=True).threshold
    0.7
    """
    if config.method == "otsu":
        return Otsu()
    if config.method == "fixed":
        return FixedThreshold(config.fixed_threshold)
    sweep = (config.n_thresholds, config.min_interval, config.erosion)
    return MEBin(*sweep, rule=config.rule, has_normal=has_normal)


def restore_binarizer(config: Config, state: Mapping[str, float]) -> Binarizer:
    """The configured binariser with a range fitted earlier."""
    return binarizer_for(config.binarize, has_normal=config.has_normal).set_state(state)


def prepare_map(source: Source, min_size: int, ignore: Shapes = ()) -> FloatMap:
    """Read a map and enlarge a small one, because erosion would eat it. NaN and infinity stay where they are.

    ignore : parts in which nothing is looked for, see `ignored`: there it is as low as it gets

    Examples
    --------
    >>> prepare_map(np.zeros((32, 16), np.float32), 256).shape
    (256, 128)
    """
    values = read_map(source)
    if np.isnan(values).all():
        name = "map array" if isinstance(source, np.ndarray) else source
        raise BadFileError(f"{name}: expected an anomaly map, but every pixel is NaN")
    values = without(values, ignore)
    scale = min_size / max(values.shape)
    if scale <= 1:
        return values
    size = (max(1, round(values.shape[1] * scale)), max(1, round(values.shape[0] * scale)))
    large = cv2.resize(filled(values), size, interpolation=cv2.INTER_LINEAR).astype(np.float32, copy=False)
    nearest = cv2.resize(values, size, interpolation=cv2.INTER_NEAREST)
    return without(np.where(np.isfinite(nearest), large, nearest), ignore)


def filled(values: FloatMap, high: float = -np.inf) -> FloatMap:
    """A map without NaN, which becomes as low as the finite values get, and without infinity, as low or as high as they get.

    high : +infinity becomes at least this

    Examples
    --------
    >>> filled(np.float32([[1, 2, np.nan, np.inf, -np.inf]]), high=7).tolist()
    [[1.0, 2.0, 1.0, 7.0, 1.0]]
    """
    finite = np.isfinite(values)
    if finite.all():
        return values
    low, most = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    return np.nan_to_num(values, nan=low, neginf=low, posinf=max(most, high))


def note_on_map(values: FloatMap) -> str:
    """What the manifest says about a map that has holes, or no highest value."""
    holes, highest = float(np.isnan(values).mean()), float((values == np.inf).mean())
    notes = [f"{holes:.2%} of its map is NaN and counts as not anomalous"] if holes else []
    notes += [f"{highest:.2%} of its map is infinite and counts as most anomalous"] if highest else []
    return "; ".join(notes)


def binarize_map(binarizer: Binarizer, values: FloatMap) -> tuple[BinarizeResult, FloatMap]:
    """Mask of a prepared map, and the map on the fitted range (0 … 1); holes are in neither."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of holes: `note_on_map` says it, with the image's name
        return binarizer.binarize(values), binarizer.normalize(values)


Figures = tuple[float | None, float | None]


def figures_of(values: FloatMap) -> Figures:
    """Score and largest value, in the map's units; None where it is infinite, for which JSON has no number."""
    score, peak = top_mean(values), float(np.nanmax(values))
    return score if np.isfinite(score) else None, peak if np.isfinite(peak) else None


def map_figures(items: Sequence[Sample], min_size: int, ignore: Shapes = ()) -> list[Figures]:
    """Score and largest value, in the maps' units, of each map that can be read; None where it is infinite."""
    found = []
    for item in items:
        try:
            values = prepare_map(item.map, min_size, ignore) if item.map is not None else None
        except BadFileError:
            continue
        if values is not None:
            found.append(figures_of(values))
    return found


def fit_binarizer(
    binarizer: Binarizer,
    items: Sequence[Sample],
    min_size: int,
    on_map: Callable[[], None] | None = None,
    figures: list[Figures] | None = None,
    ignore: Shapes = (),
) -> Binarizer:
    """Fit the range on all readable maps, one at a time; score and largest value of each are added to `figures`."""
    n_read, reason = 0, ""

    def maps() -> Iterable[FloatMap]:
        nonlocal n_read, reason
        for item in items:
            if on_map:
                on_map()
            try:
                if item.map is not None:
                    values = prepare_map(item.map, min_size, ignore)
                    n_read += 1
                    if figures is not None:
                        figures.append(figures_of(values))
                    yield values
            except BadFileError as error:  # reported when the image itself is worked on
                reason = reason or str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        try:
            return binarizer.fit(maps())
        except DataError:
            if n_read:
                raise
            raise DataError(
                f"none of the {len(items)} anomaly maps could be read, the first because: {reason}"
            ) from None
