"""Every cache key and resume rule of a run: what each stage is made from, and when it need not be done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from .. import __version__
from ..blocks.engine import Engine
from ..checksums import sha256, stable_hash
from ..config import Config
from ..data.dataset import Dataset, Picture, Sample, Source
from ..data.maps import StackRow
from ..detect import Detector
from ..model.backbone import resolve_name
from ..model.seen import Seen
from ..places.stored import File
from ..progress import Silent
from .detector import DETECTOR, state_of
from .folder import COUNT, FORMAT, HISTORY, MODEL_FILE, RANGE, RETRAINED, RunFolder
from .store import RegionStore
from .tables import to_csv

T = TypeVar("T")
LOOK = 2  # raised when the same network and settings give other maps or features
MAP_FIGURES = ("scores", "peaks", "normal_scores", "normal_peaks")  # of each map, in its units; None if infinite


class Stages:
    """The stages of one run, each of which is done once for the same inputs and settings.

    Parameters
    ----------
    folder : of the run, open for writing
    config : its settings
    progress : how work is shown
    engine : where work on images is done; here by default

    Attributes
    ----------
    seconds : stage → time that it took in this call
    normal : images of normal products, with maps, by which the run tells normal from defect
    seen : where the detector leaves what it saw in whole images; None where nobody needs it
    """

    def __init__(self, folder: RunFolder, config: Config, progress: Silent, engine: Engine | None = None) -> None:
        self.folder, self.config, self.progress = folder, definite(config), progress
        self.engine = engine or Engine()
        self.seconds: dict[str, float] = {}
        self.normal: Sequence[Sample] = ()
        self.seen: Seen | None = None
        self._keys: list[tuple[Dataset, str]] = []

    def once(self, stage: str, key: str, read: Callable[[], T | None], make: Callable[[], T], *outputs: str) -> T:
        """What an earlier call made from the same inputs; made now where there is nothing, or `read` finds it damaged.

        outputs : files that are taken away before they are made from other inputs
        """
        if self.folder.is_done(stage, key) and (known := read()) is not None:
            return known
        self.folder.start(stage, key, *outputs)
        made = make()
        self.folder.finish(stage, key)
        return made

    def range(self, dataset: Dataset, fit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The fitted range of the maps, `low` and `high`, and `MAP_FIGURES`."""

        def make() -> dict[str, Any]:
            state = fit()
            self.folder.write_json(RANGE, state)
            return state

        def read() -> dict[str, Any] | None:
            state = self.folder.read_json(RANGE)
            try:
                lists = {name: [n if n is None else float(n) for n in state[name]] for name in MAP_FIGURES}
                return {"low": float(state["low"]), "high": float(state["high"]), **lists}
            except (KeyError, TypeError, ValueError, OverflowError):
                return None

        return self.once("range", self.range_key(dataset), read, make, RANGE)

    def learning(
        self,
        dataset: Dataset,
        base: Dataset | None,
        regions: RegionStore,
        known: Sequence[Any],
        read: Callable[[], T | None],
        make: Callable[[], T],
    ) -> T:
        """What was learned from the regions, as `once` gives it; known : what was told of them."""
        return self.once("learn", self.learn_key(dataset, base, regions, known), read, make, RETRAINED)

    def keep_learned(
        self, model: bytes, history: Sequence[Mapping[str, float]], count: Mapping[str, Any] | None
    ) -> None:
        """Write the model, the losses where anything was trained, and how classes were counted where nobody said it."""
        if count is not None:
            self.folder.write_json(COUNT, count)
        if history:
            self.folder.write_text(HISTORY, to_csv(pd.DataFrame(history)))
        self.folder.write(MODEL_FILE, model)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure a stage; the time of stages within it is theirs."""
        started, others = time.perf_counter(), sum(self.seconds.values())
        yield
        inside = sum(self.seconds.values()) - others
        self.seconds[stage] = time.perf_counter() - started - inside
        self.progress.note(f"{stage}: {self.seconds[stage]:.1f} s")

    def maps_key(
        self, samples: Sequence[Sample], normal: Sequence[Sample], detector: Detector | None, fitted: Path | None
    ) -> str:
        """Of the maps: images, normal images, and the detector as configured, as made by a caller, or of an earlier run."""
        config, own = self.config, self.config.detect.settings.get("weights")
        files = [] if fitted is None else [fitted / name for name in RunFolder(fitted).files(DETECTOR)]
        files += [Path(own)] if isinstance(own, str) else []
        return stable_hash(
            self._network(), config.detect.model_dump(exclude={"false_alarms"}), config.random_state,
            fingerprint(samples), fingerprint(normal),
            [file_identity(file) for file in files], [] if detector is None else state_of(detector), *self._ignore(),
        )  # fmt: skip

    def range_key(self, dataset: Dataset) -> str:
        """Of the range of the maps."""
        rest = [FORMAT, __version__, self.config.has_normal, self.config.binarize.model_dump(), *self._ignore()]
        run = self.folder.path
        return self._key(dataset, lambda: stable_hash(*rest, fingerprint(dataset, run), fingerprint(self.normal, run)))

    def regions_key(self, dataset: Dataset) -> str:
        """Of the regions and their features; where none is stable, they depend on how normal images are told."""
        return stable_hash(self.range_key(dataset), self._features(), self.config.learn.normal)

    def normal_key(self) -> str:
        """Of the looks of normal images."""
        return stable_hash(self._features(), fingerprint(self.normal, self.folder.path), *self._ignore())

    def base_key(self, base: Dataset | None) -> str:
        """Of the regions of a labelled base set."""
        if base is None:
            return ""
        return self._key(base, lambda: stable_hash(self._features(), fingerprint(base), base.labels))

    def learn_key(self, dataset: Dataset, base: Dataset | None, regions: RegionStore, known: Sequence[Any] = ()) -> str:
        """Of the classes: also of which files could be read."""
        return stable_hash(
            self.regions_key(dataset), self.base_key(base),
            self.config.model_dump(
                mode="json",
                exclude={"merge": True, "preset": True, "unknown": True, "ignore": True, "detect": {"false_alarms"}},
            ),
            [region.digest for region in regions.regions if not region.is_drawn],
            [bool(record.error) for record in regions.images],
            *([known] if known else []),
        )  # fmt: skip

    def _key(self, dataset: Dataset, make: Callable[[], str]) -> str:
        """A key is of the files as they were when it was first asked for: all stages of a call are of the same files."""
        for known, key in self._keys:
            if known is dataset:
                return key
        self._keys.append((dataset, make()))
        return self._keys[-1][1]

    def _ignore(self) -> list[Any]:
        """Parts of the pictures that are ignored, where there are any."""
        return [self.config.ignore] if self.config.ignore else []

    def _network(self) -> list[Any]:
        weights = self.config.model.weights
        identity = None if weights is None else file_identity(weights)
        return [FORMAT, __version__, LOOK, self.config.model.backbone, identity, self.config.precision]

    def _features(self) -> list[Any]:
        """All that the features of a region depend on, besides its files."""
        model, features = self.config.model.model_dump(mode="json"), self.config.features
        frozen = features.model_dump(exclude={*features.weights(), "center"})
        return [self._network(), model, self.config.crop.model_dump(), sorted(features.weights()), frozen]


def definite(config: Config) -> Config:
    """What another machine or working folder would read differently, made definite before it is stored."""
    weights = None if config.model.weights is None else config.model.weights.absolute()
    model = config.model.model_copy(update={"backbone": resolve_name(config.model.backbone), "weights": weights})
    return config.model_copy(update={"model": model})


def fingerprint(samples: Sequence[Sample], run: Path | None = None) -> list[Any]:
    """What identifies images without reading them: name, size and time of each file; content of each array.

    run : folder whose files are called as they are in it, so that it may be moved
    """
    return [
        [sample.id, *(_identity(one, run) for one in (sample.image, sample.map, sample.mask))] for sample in samples
    ]


def file_identity(path: File | StackRow, run: Path | None = None) -> list[Any]:
    """Name, size and time of a file, or of a row of a stack."""
    inside = run is not None and isinstance(path, Path) and path.is_relative_to(run)
    name = path.relative_to(run).as_posix() if inside else str(path)  # type: ignore[union-attr, arg-type]
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return [name, "missing"]
    return [name, status.st_size, status.st_mtime_ns]


def content_order(samples: Sequence[Sample]) -> list[int]:
    """Places of the samples in an order by what their images hold: mixed well, and no name has a say in it."""
    return sorted(range(len(samples)), key=lambda index: content_digest(samples[index].image))


def _identity(source: Source | None, run: Path | None) -> Any:
    if isinstance(source, np.ndarray):
        return [str(source.dtype), source.shape, content_digest(source)]
    return None if source is None else file_identity(source, run)


def content_digest(picture: Picture | None) -> str:
    """SHA-256 of a file's or an array's content; empty where there is none."""
    if isinstance(picture, np.ndarray):
        return sha256(np.ascontiguousarray(picture).tobytes())
    try:
        return "" if picture is None else sha256(picture)
    except (OSError, ValueError):
        return ""
