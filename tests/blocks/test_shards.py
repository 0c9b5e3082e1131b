"""Shards of regions as files, made here or elsewhere from the same recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anomalyncd.blocks.engine import Engine, blocks_of
from anomalyncd.blocks.shards import Layout, Look, ShardWork, pack_shard, unpack_shard
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.regions.extract import Extracted, Extractor
from anomalyncd.regions.network import make_vit
from anomalyncd.regions.records import ImageRecord

CONFIG = make_config({"model": {"backbone": "tiny"}, "features": {"views": 1}, "device": "cpu"})


def samples(count: int) -> list[Sample]:
    rng, found = np.random.default_rng(0), []
    for number in range(count):
        picture = rng.integers(80, 100, (48, 48, 3), dtype=np.uint8)
        mask = np.zeros((48, 48), bool)
        if number % 3:
            mask[8:20, 10 : 12 + 3 * number] = True
            picture[mask] = 250
        found.append(Sample(f"{number}.png", picture, mask=mask))
    return found


def made(look: Any, count: int, **options: Any) -> list[dict[str, bytes]]:
    work = ShardWork(Layout(), look, 4, **options)
    blocks = blocks_of(samples(count), 4)
    return [dict(files) for _, files in Engine().each(work, blocks)]


def test_pictures_come_before_the_file_that_says_that_they_are_there(tmp_path: Path) -> None:
    first, second = made(Look(CONFIG), 6)
    assert list(first)[-1] == "tokens/00000.safetensors" and list(second)[-1] == "tokens/00001.safetensors"
    assert sorted(first)[:5] == [
        "crops/000/000001_1_0.png", "crops/000/000001_1_0_mask.png", "crops/000/000002_2_0.png",
        "crops/000/000002_2_0_mask.png", "masks/000/000000_0.png",
    ]  # fmt: skip
    path = tmp_path / "shard"
    path.write_bytes(second["tokens/00001.safetensors"])
    found, masked = unpack_shard(path)
    assert [record.id for record in found.images] == ["4.png", "5.png"] and masked == {4, 5}
    assert [region.index for region in found.regions] == [4, 5] and len(found.parts["patches"]) == 2


def test_shards_behind_others_go_on_with_their_numbers() -> None:
    work = ShardWork(Layout("base"), Look(CONFIG), 4, (10, 3))
    block = [(14, samples(1)[0])]
    assert [name for name, _ in work(block)] == ["base/masks/000/000014_0.png", "base/tokens/00004.safetensors"]


def test_another_process_makes_the_same_files_with_a_network_of_its_own() -> None:
    calls: list[int] = []

    def network() -> Any:
        calls.append(1)
        return make_vit(CONFIG)

    here = Look(CONFIG, scenes=True, network=network)
    there = Look(**here.__getstate__())
    assert there.network is None and made(here, 6) == made(there, 6) and len(calls) == 1
    assert made(Look(CONFIG), 6) != made(here, 6)  # without scenes
    work = ShardWork(Layout(), here, 4)
    list(work([(0, samples(1)[0])]))
    assert isinstance(work.extractor, Extractor) and work.__getstate__()["extractor"] is None


def test_a_shard_without_regions_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(pack_shard(Extracted([ImageRecord(0, "a.png", error="damaged")])))
    found, masked = unpack_shard(path)
    assert found.images[0].error == "damaged" and found.regions == [] and found.parts == {} and masked == set()
    path.write_bytes(pack_shard(Extracted([ImageRecord(0, 7)])))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="id: str expected"):
        unpack_shard(path)
