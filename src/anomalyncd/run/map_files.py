"""Maps that a detector makes, written block by block: a killed run goes on with the block it was at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pandas as pd

from ..blocks.engine import Block, Engine
from ..data.dataset import Sample
from ..regions.extract import is_readable
from ..regions.records import ImageRecord
from .folder import TRAINING, RunFolder


class MapFiles:
    """Maps in a run folder, and what became of their images.

    Parameters
    ----------
    folder : of the run
    samples : images, and names : of the files of their maps inside the run
    key : hash of all that the maps are made from
    engine : that makes them
    """

    def __init__(
        self, folder: RunFolder, samples: Sequence[Sample], names: Sequence[str], key: str, engine: Engine
    ) -> None:
        self.folder, self.samples, self.names, self.key, self.engine = folder, samples, names, key, engine
        self.records: dict[int, ImageRecord] = {}

    def is_kept(self, block: Block) -> bool:
        """Whether a killed call has made the maps of a block, and no file of it can be read now that could not be then."""
        found = self.folder.read_json(self._seal(block))
        try:
            records = [ImageRecord(**row) for row in found["records"]] if found["key"] == self.key else []
            by_place = {record.index: record for record in records}
            unread = [sample for index, sample in block if by_place[index].error]
            sizes = [self.folder.place(self.names[index]).stat().st_size for index, _ in block]
            whole = sizes == found["sizes"]  # a power cut may leave an empty file
        except (KeyError, TypeError, OSError):
            return False
        if not whole or any(is_readable(replace(sample, map=None)) for sample in unread):
            return False
        self.records |= by_place
        return True

    def keep(
        self, block: Block, made: Iterable[tuple[ImageRecord, bytes]], on_image: Callable[[], None] = lambda: None
    ) -> None:
        """Write the maps of a block, with the record of each image, and at last what says that they are whole."""
        found, sizes = {}, {}
        for record, data in made:
            if record.error:
                self.engine.check_unread(self.samples[record.index])
            self.folder.put(self.names[record.index], data)
            found[record.index], sizes[record.index] = record, len(data)
            on_image()
        seal = {"records": [vars(record) for record in found.values()], "sizes": [sizes[index] for index, _ in block]}
        self.folder.write_json(self._seal(block), {"key": self.key, **seal})
        self.records |= found

    def table(self) -> pd.DataFrame:
        """Score and size of each image, or why it could not be read."""
        rows = [self.records[index] for index in range(len(self.samples))]
        columns = ["image", "score", "height", "width", "message"]
        return pd.DataFrame([(r.id, r.score, r.height, r.width, r.error) for r in rows], columns=columns)

    def _seal(self, block: Block) -> str:
        return f"{TRAINING}/maps/{block[0][0]:09d}.json"
