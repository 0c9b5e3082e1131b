"""Work on blocks, here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anomalyncd.blocks.engine import Block, Engine, blocks_of
from anomalyncd.data.dataset import Sample

SAMPLES = [Sample(name, Path(name)) for name in "abcdefg"]


def test_blocks_hold_each_sample_once_in_the_order_that_is_asked_for() -> None:
    assert [[index for index, _ in block] for block in blocks_of(SAMPLES, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    some = blocks_of(SAMPLES, 2, [6, 0, 3])
    assert [[(index, sample.id) for index, sample in block] for block in some] == [[(6, "g"), (0, "a")], [(3, "d")]]
    assert blocks_of([], 4) == blocks_of(SAMPLES, 4, []) == []


def test_work_is_done_when_its_result_is_asked_for_one_block_after_the_other() -> None:
    begun: list[int] = []

    def work(block: Block) -> Iterator[str]:
        for index, sample in block:
            begun.append(index)
            yield sample.id * 2

    with Engine() as engine:
        made = engine.each(work, blocks_of(SAMPLES, 3), in_order=True)
        place, first = next(made)
        assert (place, begun) == (0, []) and next(iter(first)) == "aa" and begun == [0]
        assert [(place, list(rest)) for place, rest in made] == [(1, ["dd", "ee", "ff"]), (2, ["gg"])]
        engine.check_unread(SAMPLES[0])
