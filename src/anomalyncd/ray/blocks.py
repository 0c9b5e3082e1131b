"""Predictions of very many images in parts: a part is whole or not there, so a job that was killed does what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from .. import __version__
from ..blocks.engine import Block as Numbered
from ..checksums import sha256, stable_hash
from ..data.dataset import Dataset, Sample
from ..data.maps import StackRow
from ..places.stored import File
from ..regions.extract import is_readable
from ..regions.records import ImageRecord
from ..run.folder import CLASS_NAMES, MODEL_FILE, RunFolder
from ..run.stages import fingerprint
from ..run.store import SHARD
from ..run.tables import NUMBERS, TEXT

SEALS = "seals"  # folder of what says that a part is whole, and what it was made from
ENDINGS = {"regions": ".parquet", "images": ".parquet", SEALS: ".json"}  # folder → files, in the order of writing
LARGEST = 16 * SHARD  # images of a block; whole shards, so that the network sees the same batches as in one process
ROWS = 65536  # at least so many are put into the final table at once


@dataclass(frozen=True)
class Block:
    """Images that are next to each other in the list.

    start : place of the first one
    labelled : whether any image of the whole list has a label
    """

    start: int
    items: Sequence[Sample]
    labelled: bool = False

    @property
    def name(self) -> str:
        return f"{self.start:09d}-{self.start + len(self.items) - 1:09d}"

    @property
    def numbered(self) -> Numbered:
        """For workers, whose working folder may be another."""
        return [(self.start + place, _from_anywhere(item)) for place, item in enumerate(self.items)]

    def key(self, job: str) -> str:
        """What the part is made from: the job, and names, sizes and times of the files."""
        here = [_from_anywhere(item) for item in self.items]
        return stable_hash(job, self.labelled, [item.label for item in here], fingerprint(here))


def split(inputs: Dataset) -> list[Block]:
    """Blocks of 16 to 256 images, of many images larger ones; their size depends on nothing else, or no part would be found.

    Examples
    --------
    >>> items = [Sample(f"{k}.png", Path(f"{k}.png")) for k in range(40)]
    >>> [block.name for block in split(Dataset(items))]
    ['000000000-000000015', '000000016-000000031', '000000032-000000039']
    """
    size = min(LARGEST, SHARD * (1 + len(inputs) // (64 * SHARD)))
    labelled = any(sample.label is not None for sample in inputs)
    return [Block(start, inputs[start : start + size], labelled) for start in range(0, len(inputs), size)]


def job_key(run: Path, *settings: Any) -> str:
    """What all parts of a job share: the run's model, names and detector, and how it is used."""
    names = [MODEL_FILE, CLASS_NAMES, *RunFolder(run).files("detector")]
    found = [(name, sha256(run / name)) for name in names if (run / name).is_file()]
    return stable_hash(__version__, found, settings)


def pack(key: str, images: pd.DataFrame, regions: pd.DataFrame, odd: Sequence[ImageRecord]) -> dict[str, bytes]:
    """The files of a part.

    odd : records of images with an error or a note, where `index` is the place in the block
    """
    tables = {"images": _to_parquet(images), "regions": _to_parquet(regions)}
    seal = {"key": key, "odd": [asdict(record) for record in odd], "fine": len(images) > 0}
    sums = {kind: sha256(content) for kind, content in tables.items()}
    return {**tables, SEALS: json.dumps({**seal, "sha256": sums}).encode()}


class Parts:
    """A folder of parts: images/ and regions/, each a Parquet data set in the order of the list.

    Parameters
    ----------
    folder : locked by the caller
    blocks : all of them
    job : see `job_key`
    """

    def __init__(self, folder: RunFolder, blocks: Sequence[Block], job: str) -> None:
        self.folder, self.blocks, self.job = folder, blocks, job

    def sweep(self) -> None:
        """Remove what belongs to another list of images."""
        wanted = {block.name for block in self.blocks}
        for kind in ENDINGS:
            for path in self.folder.place(kind).glob("*"):
                if path.stem not in wanted:
                    path.unlink()

    def missing(self) -> list[Block]:
        """Blocks without a whole part, or whose run or files have changed, or with a file that can be read by now."""
        return [block for block in self.blocks if not self._is_done(block)]

    def write(self, block: Block, files: dict[str, bytes]) -> None:
        """Store a part."""
        for kind, ending in ENDINGS.items():
            self.folder.write(f"{kind}/{block.name}{ending}", files[kind])

    def odd(self) -> Iterator[ImageRecord]:
        """Records of images with an error or a note; and one of a fine image where there is any."""
        fine = False
        for block in self.blocks:
            seal = self._seal(block)
            for record in self._odd(block, seal):
                yield replace(record, index=block.start + record.index)
            if seal.get("fine") and not fine:
                fine = True
                yield ImageRecord(-1, "")

    def rows(self, kind: str, columns: list[str] | None = None) -> Iterator[pd.DataFrame]:
        """A table, or some columns of it, in order, many rows at a time."""
        import pyarrow as pa
        from pyarrow import parquet

        waiting: list[pa.Table] = []
        for block in self.blocks:
            waiting.append(parquet.ParquetFile(self._path(kind, block)).read(columns))
            if sum(map(len, waiting)) >= ROWS or block is self.blocks[-1]:
                yield pa.concat_tables(waiting).to_pandas()
                waiting = []

    def _is_done(self, block: Block) -> bool:
        seal = self._seal(block)
        try:
            sums = {kind: sha256(self._path(kind, block)) for kind in ("images", "regions")}
        except OSError:
            return False
        if seal.get("key") != block.key(self.job) or seal.get("sha256") != sums:
            return False
        return not any(record.error and is_readable(block.items[record.index]) for record in self._odd(block, seal))

    def _seal(self, block: Block) -> dict[str, Any]:
        """What the part was made from; empty where it is missing or damaged."""
        seal = self.folder.read_json(f"{SEALS}/{block.name}{ENDINGS[SEALS]}")
        return seal if isinstance(seal, dict) else {}

    def _odd(self, block: Block, seal: dict[str, Any]) -> list[ImageRecord]:
        """Records whose messages name files as the user did, not as the worker had to."""
        records = [ImageRecord(**row) for row in seal.get("odd", ())]
        for record in records:
            item = block.items[record.index]
            for source in (item.image, item.map, item.mask):
                record.error = record.error.replace(str(_absolute(source)), str(source))
        return records

    def _path(self, kind: str, block: Block) -> Path:
        return self.folder.place(f"{kind}/{block.name}{ENDINGS[kind]}")


def _to_parquet(table: pd.DataFrame) -> bytes:
    """With types that do not depend on the rows: a part without regions must fit those with some."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([(name, _type(name)) for name in table.columns])
    buffer = BytesIO()
    parquet.write_table(pa.Table.from_pandas(table, schema=schema, preserve_index=False), buffer)
    return buffer.getvalue()


def _type(column: str) -> str:
    if column in TEXT:
        return "large_string"
    return "float64" if column in NUMBERS or column.startswith("p_") else "int64"


def _absolute(source: Any) -> Any:
    if isinstance(source, StackRow):
        return replace(source, path=source.path.absolute())
    return source.absolute() if isinstance(source, File) else source


def _from_anywhere(item: Sample) -> Sample:
    return replace(item, image=_absolute(item.image), map=_absolute(item.map), mask=_absolute(item.mask))
