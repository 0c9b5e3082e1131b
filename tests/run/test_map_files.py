"""Maps of a run, block by block: what a killed call has written is found again, and nothing else is taken for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd.blocks.engine import Block, Engine, blocks_of
from anomalyncd.blocks.maps import npy
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import RunError
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.map_files import MapFiles


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "run").writing() as opened:
        yield opened


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    found = [Sample(f"{k}.png", tmp_path / f"{k}.png") for k in range(3)]
    for sample in found[:2]:
        cv2.imwrite(str(sample.image), np.full((4, 6, 3), 9, np.uint8))
    (tmp_path / "2.png").write_bytes(b"no picture")
    return found


def made(block: Block) -> Iterator[tuple[ImageRecord, bytes]]:
    for index, sample in block:
        record = ImageRecord(index, sample.id, 4, 6, score=0.5 + index)
        record.error = "2.png: damaged" if index == 2 else ""
        yield record, npy(np.full((2, 2), index, np.float32))


def files(folder: RunFolder, samples: list[Sample], key: str = "k", engine: Engine | None = None) -> MapFiles:
    return MapFiles(folder, samples, [f"maps/{k}.npy" for k in range(3)], key, engine or Engine())


def test_a_block_that_was_kept_is_found_again(folder: RunFolder, samples: list[Sample]) -> None:
    first, second = blocks_of(samples, 2, [1, 2, 0])
    one, steps = files(folder, samples), list[int]()
    assert not one.is_kept(first)
    one.keep(first, made(first), lambda: steps.append(1))
    again = files(folder, samples)
    assert again.is_kept(first) and not again.is_kept(second) and len(steps) == 2
    again.keep(second, made(second))
    table = again.table()
    assert table["image"].tolist() == ["0.png", "1.png", "2.png"] and table["score"].tolist() == [0.5, 1.5, 2.5]
    assert table["message"].tolist() == ["", "", "2.png: damaged"] and table["width"].tolist() == [6, 6, 6]
    assert np.load(folder.place("maps/2.npy"))[0, 0] == 2


@pytest.mark.parametrize("change", ["key", "map", "power cut", "seal", "mended", "order"])
def test_what_is_of_other_inputs_or_damaged_is_made_again(
    change: str, folder: RunFolder, samples: list[Sample]
) -> None:
    block = blocks_of(samples, 3)[0]
    files(folder, samples).keep(block, made(block))
    assert files(folder, samples).is_kept(block)
    if change == "map":
        folder.remove("maps/1.npy")
    elif change == "power cut":
        folder.put("maps/1.npy", b"")
    elif change == "seal":
        folder.write_text("training/maps/000000000.json", '{"key": "k", "records": [{"index": 0}]}')
    elif change == "mended":
        cv2.imwrite(str(samples[2].image), np.full((4, 6, 3), 9, np.uint8))
    elif change == "order":
        block = [block[0], (7, samples[1])]
        samples = [*samples, *samples, *samples]
    assert not files(folder, samples, "other" if change == "key" else "k").is_kept(block)


def test_a_map_that_is_not_whole_leaves_no_seal(folder: RunFolder, samples: list[Sample]) -> None:
    block = blocks_of(samples, 3)[0]

    def stopped() -> Iterator[tuple[ImageRecord, bytes]]:
        yield from list(made(block))[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files(folder, samples).keep(block, stopped())
    assert folder.place("maps/1.npy").is_file() and not files(folder, samples).is_kept(block)


def test_a_file_that_a_worker_could_not_read_is_looked_at_here(folder: RunFolder, samples: list[Sample]) -> None:
    class Elsewhere(Engine):
        def check_unread(self, sample: Sample) -> None:
            raise RunError(f"not there: {sample.id}")

    block = blocks_of(samples, 3)[0]
    with pytest.raises(RunError, match=r"not there: 2\.png"):
        files(folder, samples, engine=Elsewhere()).keep(block, made(block))
    assert not files(folder, samples).is_kept(block)


def test_maps_do_not_wait_for_the_disk_one_by_one(
    folder: RunFolder, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    block = blocks_of(samples, 3)[0]
    files(folder, samples).keep(block, made(block))
    assert len(waits) == 1, "the seal of the block alone"
