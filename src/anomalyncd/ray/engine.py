"""`predict` by workers of Ray: images in blocks, on one machine or on many, and the tables of the local engine."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..blocks.engine import Block as Numbered
from ..data.dataset import Dataset
from ..discovery.classify import Predictor, joined
from ..errors import RunError, SettingsError
from ..progress import Silent
from ..regions.records import report_files
from ..run.finished import FinishedRun
from ..run.folder import RunFolder
from ..run.writer import TableWriter, check_table
from .blocks import Block, Parts, job_key, pack, split
from .pool import RayEngine


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
        raise SettingsError("--engine ray needs Ray and pyarrow: pip install 'anomalyncd[ray]', or use --engine local.")
    whole = bool(out.suffix) and not (out.is_dir() and out.suffix not in (".csv", ".parquet"))
    if whole:
        check_table(out)
    progress = progress or Silent()
    FinishedRun(run).model.check_maps(inputs)
    bare = inputs.is_bare
    place = out.with_name(f"{out.name}.parts") if whole else out
    inputs.check_outside(place)
    with RayEngine(workers, address, device, progress) as engine, RunFolder(place).writing() as folder:
        parts = Parts(folder, split(inputs), job_key(run, bare, precision))
        parts.sweep()
        todo = parts.missing()
        labelled = any(block.labelled for block in todo)
        work = PartWork(run.absolute(), parts.job, bare, labelled, device, precision)
        with progress.task("Images", len(inputs)) as advance:
            advance(len(inputs) - sum(len(block.items) for block in todo))
            for number, made in engine.each(work, [block.numbered for block in todo]):
                for files in made:
                    parts.write(todo[number], files)
                advance(len(todo[number].items))
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


class PartWork:
    """Classes of the images of a block, as the files of its part.

    Parameters
    ----------
    run : the run folder
    job : see `job_key`
    bare : the run's detector makes the maps
    labelled : see `Block`
    device, precision : as everywhere
    """

    def __init__(self, run: Path, job: str, bare: bool, labelled: bool, device: str, precision: str = "auto") -> None:
        self.run, self.job, self.bare, self.labelled = run, job, bare, labelled
        self.device, self.precision = device, precision

    @cached_property
    def predictor(self) -> Predictor:
        """Loaded with the first block, where the work is done."""
        return FinishedRun(self.run, device=self.device, precision=self.precision).predictor(bare=self.bare)

    def __call__(self, numbered: Numbered) -> Iterator[dict[str, bytes]]:
        """The files of one part."""
        block = Block(numbered[0][0], [item for _, item in numbered], self.labelled)
        key = block.key(self.job)  # before the files are read: one that changes later is seen by the next call
        found, odd = [], []
        truth = {item.id: item.label for item in block.items} if block.labelled else None
        for some in self.predictor.extract(block.items):
            odd += [record for record in some.images if record.error or record.note]
            found.append(self.predictor.classify(some, truth))
        result = joined(found)
        yield pack(key, result.images, result.regions, odd)
