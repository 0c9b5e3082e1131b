"""The regions of a run, before and after there are any."""

from __future__ import annotations

from pathlib import Path

from anomalyncd.regions.extract import Extracted
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.store import RegionStore


def test_a_new_store_is_empty_and_grows(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as folder:
        store = RegionStore(folder)
        assert (store.images, store.regions, store.parts, store.scenes, store.n_shards) == ([], [], {}, None, 0)
        store.extend([Extracted([ImageRecord(0, "a.png")]), Extracted([ImageRecord(1, "b.png")])])
        assert [image.id for image in store.images] == ["a.png", "b.png"] and store.n_shards == 2
        again = RegionStore(folder).read(2)
        assert [image.id for image in again.images] == ["a.png", "b.png"] and again.regions == []
