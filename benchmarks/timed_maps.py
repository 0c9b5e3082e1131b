"""Maps of a data set that are made once and timed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from common import EXCLUDED, evenly, peak_mb

from anomalyncd.config import Config, make_config
from anomalyncd.data.dataset import Dataset, Sample, load_dataset
from anomalyncd.data.gather import gather_normal
from anomalyncd.discovery.maps import make_maps
from anomalyncd.errors import WeightsError
from anomalyncd.progress import Advance, Terminal
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.stages import Stages


class Clock(Terminal):
    """Progress that notes the seconds of each task, and the largest memory of the process (MB) at the end of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self.peak_mb = 0.0

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        started = time.perf_counter()
        with super().task(name, total) as advance:
            yield advance
        self.seconds[name] = time.perf_counter() - started
        self.peak_mb = peak_mb()


@dataclass(frozen=True)
class TimedMaps:
    """Maps of a data set.

    folder : that they lie in
    inputs : images that could be read, with their maps, and with labels for scoring; truth : labels and masks
    scores : maps/scores.csv
    fit_seconds, map_seconds, peak_mb : None where the maps lay there from an earlier call that did not measure them
    random_weights : the network is untrained, because its weights were out of reach
    """

    folder: Path
    inputs: Dataset
    truth: Dataset
    scores: pd.DataFrame
    config: Config
    fit_seconds: float | None
    map_seconds: float | None
    peak_mb: float | None
    resumed: bool
    random_weights: bool

    @property
    def items(self) -> list[Sample]:
        return self.inputs.samples


def load_test(data: Path, limit: int | None) -> tuple[list[Sample], Dataset]:
    """Test images of an MVTec AD layout, and their labels and masks."""
    truth = load_dataset(data / "test", masks=data / "ground_truth", exclude=EXCLUDED)
    samples = tuple(evenly(truth.samples, limit))
    return [Sample(sample.id, sample.image) for sample in samples], replace(truth, samples=samples)


def maps_of(
    data: Path,
    detector: str,
    work: Path,
    *,
    seed: int = 0,
    backbone: str = "auto",
    limit: int | None = None,
    limit_normal: int | None = None,
) -> TimedMaps:
    """Fit a detector to `train/good` and make maps of `test`, in a folder of their own below `work`.

    What an earlier call finished there is read, its times included. Where the weights of a model of anomalib are out of
    reach it is measured with random ones.
    """
    parts = [detector.replace(":", "-"), backbone, f"seed{seed}", f"{limit or 'all'}-{limit_normal or 'all'}"]
    out = work / data.name / "-".join(parts)
    detect: dict[str, object] = {"name": detector}
    layer = {"model": {"backbone": backbone}, "random_state": seed}
    try:
        return _make(data, out, make_config(layer, {"detect": detect}), limit, limit_normal)
    except WeightsError as error:
        if not detector.startswith("anomalib:"):
            raise
        Terminal().warn(str(error))
    detect["settings"] = {"model_settings": {"pre_trained": False}}
    made = _make(data, Path(f"{out}-random"), make_config(layer, {"detect": detect}), limit, limit_normal)
    return replace(made, random_weights=True)


def _make(data: Path, out: Path, config: Config, limit: int | None, limit_normal: int | None) -> TimedMaps:
    items, truth = load_test(data, limit)
    normal = (
        [] if config.detect.name == "musc" else evenly(gather_normal(data / "train" / "good").samples, limit_normal)
    )
    clock = Clock()
    Dataset(items, folders=(data,)).check_outside(out)
    measured = out / "benchmark.json"
    with RunFolder(out).writing() as folder:
        stages = Stages(folder, config, clock)
        config = stages.config
        items, scores = make_maps(stages, items, normal=normal)
        resumed = "Anomaly maps" not in clock.seconds
        if not resumed:
            fit, maps = clock.seconds.get("Normal images", 0.0), clock.seconds["Anomaly maps"]
            folder.write_json(measured.name, {"fit_seconds": fit, "map_seconds": maps, "peak_mb": clock.peak_mb})
    names = ("fit_seconds", "map_seconds", "peak_mb")
    times = json.loads(measured.read_text()) if measured.exists() else dict.fromkeys(names)
    readable = set(scores.loc[scores["message"] == "", "image"])
    labels = {sample.id: str(sample.label) for sample in truth}
    inputs = Dataset([replace(item, label=labels[item.id]) for item in items if item.id in readable], folders=(data,))
    return TimedMaps(out, inputs, truth, scores, config, **times, resumed=resumed, random_weights=False)
