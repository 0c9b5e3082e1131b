"""`predict` on Ray Data: images in blocks, workers on one machine or on many, and the tables of the local engine."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.dataset import Dataset
from ..discovery.classify import Predictor, joined
from ..errors import AnomalyNCDError, RunError, SettingsError
from ..progress import Silent
from ..regions.records import report_files
from ..run.finished import FinishedRun
from ..run.folder import RunFolder
from ..run.writer import TableWriter, check_table
from .blocks import ENDINGS, Block, Parts, job_key, pack, split
from .start import ask_for_token, ray_for, take_away_left

if TYPE_CHECKING:
    import pyarrow as pa

WAVE = 1024  # blocks that Ray is given at once, so that the paths of ten million images are never all in its store
ATTEMPTS = 4  # at a block: an image that kills its worker every time must end the job, which Ray would retry for ever


class Written(NamedTuple):
    """What a job wrote.

    images, regions : tables, or folders of Parquet parts
    n_skipped : files that could not be read
    counts : name of a class → number of images
    """

    images: Path
    regions: Path
    n_skipped: int
    counts: Counter[str]


def predict_with_ray(
    run: Path,
    inputs: Dataset,
    out: Path,
    progress: Silent | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> Written:
    """Class images with the model of a run and write the tables that `anomalyncd predict` writes in one process.

    Finished blocks of images lie in the folder `<out>.parts` until the tables are whole, so a second call after a crash
    does what is missing. Files that cannot be read are skipped.

    Parameters
    ----------
    run : folder that every worker sees under the same name, as it must see the images, maps and masks
    inputs : files, not arrays
    out : .csv or .parquet, regions beside it; a name without such an ending is a folder that keeps the parts, in
        images/ and regions/
    workers : processes of one CPU each (and one GPU with device="cuda"); by default as many as there are CPUs
    address : of a Ray cluster; by default Ray runs on this machine for as long as the call
    device : of the workers; this process needs none
    precision : auto (as the run has it), float32 or bfloat16
    """
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise SettingsError("--engine ray needs Ray Data: pip install 'anomalyncd[ray]', or use --engine local.")
    if workers is not None and workers < 1:
        raise SettingsError(f"--workers must be at least 1, but got {workers}.")
    whole = bool(out.suffix) and not (out.is_dir() and out.suffix not in (".csv", ".parquet"))
    if whole:
        check_table(out)
    progress = progress or Silent()
    FinishedRun(run).model.check_maps(inputs)
    bare = inputs.is_bare
    place = out.with_name(f"{out.name}.parts") if whole else out
    inputs.check_outside(place)
    with RunFolder(place).writing() as folder:
        parts = Parts(folder, split(inputs), job_key(run, bare, precision))
        parts.sweep()
        todo = parts.missing()
        worker = (str(run.absolute()), parts.job, bare, device, precision)
        if address is None:
            take_away_left()
        if todo and address is None:
            ask_for_token(progress)
        ray_or_not = ray_for(workers or _cpus(), address) if todo else nullcontext()
        with ray_or_not, progress.task("Images", len(inputs)) as advance:
            advance(len(inputs) - sum(len(block.items) for block in todo))
            for block, files in _classed(todo, worker, workers):
                parts.write(block, files)
                advance(len(block.items))
        skipped = report_files(list(parts.odd()), progress)
        if skipped and parts.missing():
            raise RunError(
                "a worker could not read files that can be read here. Do all machines see images, maps and masks under "
                "the same names? Call the same command again: it does what these files are in anew."
            )
        images, regions = out / "images", out / "regions"
        if whole:
            images, regions = out, out.with_name(f"{out.stem}_regions{out.suffix}")
            with TableWriter(images) as image_table, TableWriter(regions) as region_table:  # regions are closed first
                for kind, table in (("images", image_table), ("regions", region_table)):
                    for rows in parts.rows(kind):
                        table.add(rows)
        counts: Counter[str] = Counter()
        for rows in parts.rows("images", ["class_name"]):
            counts.update(rows["class_name"])
    if whole:
        shutil.rmtree(place, ignore_errors=True)
    return Written(images, regions, len(skipped), counts)


class BlockWorker:
    """Classes one block after the other; Ray makes one in every process, and it keeps the model between them.

    Parameters
    ----------
    run : the run folder
    job : see `job_key`
    bare : the run's detector makes the maps
    device, precision : as everywhere
    attempts : handle of an actor whose `begin(start)` counts how often a block was begun, or None
    """

    def __init__(
        self, run: str, job: str, bare: bool, device: str, precision: str = "auto", attempts: Any = None
    ) -> None:
        self.run, self.job, self.bare, self.attempts = Path(run), job, bare, attempts
        self.device, self.precision = device, precision

    @cached_property
    def predictor(self) -> Predictor:
        """Loaded with the first block: an error then reaches the user as a sentence."""
        import cv2
        import torch

        torch.set_num_threads(1)  # one CPU each, or the workers of a machine would fight for them
        cv2.setNumThreads(1)
        return FinishedRun(self.run, device=self.device, precision=self.precision).predictor(bare=self.bare)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """(1 row: `block`) → (1 row: `start`, `error`, and the files of the part)."""
        import pyarrow as pa

        block = Block.from_json(batch["block"][0].as_py())
        row: dict[str, Any] = {"start": block.start, "error": "", **dict.fromkeys(ENDINGS, b"")}
        try:
            self.check_attempts(block)
            row |= self.classed(block)
        except (AnomalyNCDError, OSError) as error:
            row["error"] = str(error)
        types = {"start": pa.int64(), "error": pa.string(), **dict.fromkeys(ENDINGS, pa.large_binary())}
        return pa.table({name: pa.array([row[name]], kind) for name, kind in types.items()})

    def check_attempts(self, block: Block) -> None:
        """Give up a block that has killed its workers."""
        if self.attempts is None:
            return
        import ray

        if ray.get(self.attempts.begin.remote(block.start)) > ATTEMPTS:
            raise RunError(
                f"{block.items[0].id} … {block.items[-1].id}: the worker died {ATTEMPTS} times over these "
                f"{len(block.items)} images, for want of memory or of one of them. Give fewer --workers, or find the image "
                "with --engine local and leave it out. Finished blocks are kept: call the same command again."
            )

    def classed(self, block: Block) -> dict[str, bytes]:
        """The files of a block's part."""
        key = block.key(self.job)  # before the files are read: one that changes later is seen by the next call
        found, odd = [], []
        truth = {item.id: item.label for item in block.items} if block.labelled else None
        for some in self.predictor.extract(block.items):
            odd += [record for record in some.images if record.error or record.note]
            found.append(self.predictor.classify(some, truth))
        result = joined(found)
        return pack(key, result.images, result.regions, odd)


def _classed(
    todo: Sequence[Block], worker: tuple[Any, ...], workers: int | None
) -> Iterator[tuple[Block, dict[str, bytes]]]:
    """Each block with the files of its part, as they are finished."""
    if not todo:
        return
    from ray.data import ActorPoolStrategy, DataContext

    import ray

    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    *_, device, _ = worker
    gpus = 1 if device.startswith("cuda") else 0
    most = most_workers(ray.cluster_resources(), device)
    attempts: Any = ray.remote(num_cpus=0)(_counter()).remote()
    by_start = {block.start: block for block in todo}
    for first in range(0, len(todo), WAVE):
        wave = todo[first : first + WAVE]
        size = min(workers or most, most, len(wave))
        rows = [{"block": block.to_json()} for block in wave]
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            BlockWorker, fn_constructor_args=(*worker, attempts), batch_size=1, batch_format="pyarrow", num_cpus=1,
            num_gpus=gpus, compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        )  # fmt: skip
        try:
            for row in done.iter_rows():
                if row["error"]:
                    raise RunError(row["error"])
                yield by_start[row["start"]], {kind: row[kind] for kind in ENDINGS}
        except ray.exceptions.RayError as error:
            raise RunError(f"a worker of Ray failed ({str(error).strip().splitlines()[-1]}).") from error


def most_workers(there: Mapping[str, float], device: str) -> int:
    """How many fit into what a cluster has.

    Examples
    --------
    >>> most_workers({"CPU": 8.0, "GPU": 2.0}, "cuda"), most_workers({"CPU": 8.0}, "auto")
    (2, 8)
    """
    if not device.startswith("cuda"):
        return int(there.get("CPU", 0)) or 1
    gpus = int(there.get("GPU", 0))
    if not gpus:  # Ray would wait for one for ever
        raise SettingsError(f"--device {device}: Ray has no GPU, here or on the cluster. Use --device cpu.")
    return gpus


def _counter() -> type:
    """Of attempts; made here, so that Ray sends it as it is and its process need not import all of this."""

    class Attempts:
        def __init__(self) -> None:
            self.count: dict[int, int] = {}

        def begin(self, start: int) -> int:
            self.count[start] = self.count.get(start, 0) + 1
            return self.count[start]

    return Attempts


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
