"""Several processes on one run: the leader does as one process would, the helpers wait and share in what it learns."""

from __future__ import annotations

import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..config import Config, make_config
from ..errors import AnomalyNCDError
from ..learn.distributed import LostProcessError, ProcessGroup, join
from ..learn.fit import RegionSet, fit_classifier
from ..regions.network import make_vit
from ..run.folder import RunFolder
from ..run.store import RegionStore

T = TypeVar("T")


@dataclass(frozen=True)
class Lesson:
    """What to learn from the stored regions of a run, so that every process learns the same.

    run : the run folder; config : all settings, as JSON
    n_classes, normal : as `fit_classifier` takes them
    used : regions to learn from, in this order
    base : class of each region of the base set, or None where there is no such set
    """

    run: str
    config: dict[str, Any]
    n_classes: int
    normal: int | None
    used: list[int]
    base: list[int] | None = None

    def to_json_dict(self) -> dict[str, Any]:
        return asdict(self)

    def regions(self, store: RegionStore) -> RegionSet:
        """The regions to learn from."""
        used = np.array(self.used, np.int64)
        scores = np.array([store.regions[index].score for index in self.used], np.float32)
        parts = {name: values[used] for name, values in store.parts.items()}
        return RegionSet(parts, scores, lambda index: store.crop(self.used[index]))


def labelled_regions(store: RegionStore, labels: list[int]) -> RegionSet:
    """The base set."""
    return RegionSet(store.parts, np.ones(len(labels), np.float32), store.crop, np.array(labels, np.int64))


def settings_for_helpers(config: Config, device_type: str) -> dict[str, Any]:
    """The same settings, with the kind of device but not which one: each helper has its own."""
    return {**config.model_dump(mode="json"), "device": device_type}


def together(work: Callable[[], T]) -> T | None:
    """Under `torchrun`: do `work` in the first process, while the others share in whatever it learns.

    Returns what `work` returns, and None in the others, which print nothing unless they break.
    """
    group = join()
    if group.leads:
        # `torchrun` ends the others so when one process died: sweep up and say so, as if a person had stopped the run.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return work()
        finally:
            group.dismiss()
    try:
        help_out(group)
    except (LostProcessError, KeyboardInterrupt):  # the leader says what there is to say
        raise SystemExit(1) from None
    return None


def help_out(group: ProcessGroup) -> None:
    """Take part in every lesson until the leader needs no more help."""
    warnings.simplefilter("ignore")
    while (task := group.wait()) is not None:
        try:
            learn(Lesson(**task), group)
        except Exception as error:
            if group.busy:  # the others are not where this process is
                raise
            if not isinstance(error, AnomalyNCDError):  # the leader was told what, but not where
                traceback.print_exc()
        group.busy = False


def learn(lesson: Lesson, group: ProcessGroup) -> None:
    """A helper's part of a lesson: as the leader, from what it stored, with nothing written but its share of a bank."""
    folder = RunFolder(Path(lesson.run))

    def read() -> tuple[RegionStore, RegionSet | None, Config, Any]:
        config = make_config(lesson.config)
        base = None if lesson.base is None else labelled_regions(RegionStore(folder, "base").read(), lesson.base)
        return RegionStore(folder).read(), base, config, make_vit(config)

    novel, base, config, vit = group.attempt(read)
    fit_classifier(
        lesson.regions(novel), base, lesson.n_classes, config, vit, workspace=folder.place(novel.tokens),
        normal=lesson.normal, group=group,
    )  # fmt: skip
