"""Real workers of Ray: what they are given, what becomes of it when they die, and the same run as in one process."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.blocks.engine import Block, blocks_of
from anomalyncd.data.dataset import Sample
from anomalyncd.demo import make_line
from anomalyncd.errors import DataError, RunError, SettingsError
from anomalyncd.ray.pool import ATTEMPTS, RayEngine, _Hand, most_workers
from at_work import Steps, busy_workers
from scenes import GOOD, KINDS, TINY, content, write_scenes

pytest.importorskip("ray", reason="Ray is not installed")
SAMPLES = [Sample(f"{k}.png", Path(f"{k}.png")) for k in range(12)]
SMALL = {"size": 56, "map_size": 48}
SETTINGS: dict[str, Any] = {"backbone": "tiny", "features": {"views": 1}}


@pytest.fixture(scope="module")
def engine(cluster: None) -> Iterator[RayEngine]:
    with RayEngine(workers=2) as made:
        yield made


def test_blocks_are_shared_out_and_given_in_order_where_that_is_asked_for(engine: RayEngine, tmp_path: Path) -> None:
    def work(block: Block) -> Iterator[tuple[int, str]]:
        (tmp_path / str(os.getpid())).touch()
        while (
            block[0][0] == 0 and len(list(tmp_path.iterdir())) < 2
        ):  # the first block is ready once the other worker is
            time.sleep(0.01)
        for index, sample in block:
            yield os.getpid(), f"{index} {sample.id}"

    blocks = blocks_of(SAMPLES, 2)
    made = list(engine.each(work, blocks, in_order=True))
    assert [place for place, _ in made] == list(range(6))
    assert [text for _, some in made for _, text in some] == [f"{k} {k}.png" for k in range(12)]
    pids = {pid for _, some in made for pid, _ in some}
    assert len(pids) == 2 and os.getpid() not in pids
    again = dict(engine.each(work, blocks))
    assert sorted(again) == list(range(6)) and [text for _, text in again[5]] == ["10 10.png", "11 11.png"]
    assert list(engine.each(work, [])) == []


def test_what_a_block_needs_is_made_ready_once_in_each_worker(engine: RayEngine) -> None:
    class Counting:
        made = 0

        def __call__(self, block: Block) -> Iterator[int]:
            self.made += 1
            yield self.made

    blocks = blocks_of(SAMPLES, 1)
    for _ in range(2):  # other work begins anew
        counts = [count for _, some in engine.each(Counting(), blocks) for count in some]
        assert len(counts) == 12 and sum(count == 1 for count in counts) <= 2 and max(counts) >= 6


def test_a_block_whose_worker_died_is_done_again(engine: RayEngine, tmp_path: Path) -> None:
    def work(block: Block) -> Iterator[int]:
        try:
            (tmp_path / f"{block[0][0]}").touch(exist_ok=False)
        except FileExistsError:
            yield from (index for index, _ in block)
            return
        if block[0][0] in (4, 8):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from (index for index, _ in block)

    made = list(engine.each(work, blocks_of(SAMPLES, 2), in_order=True))
    assert [index for _, some in made for index in some] == list(range(12))


def test_a_block_that_kills_every_worker_is_given_up(engine: RayEngine, tmp_path: Path) -> None:
    def work(block: Block) -> Iterator[int]:
        if block[0][0] == 4:
            with (tmp_path / "deaths").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        yield 1

    with pytest.raises(RunError, match=rf"4\.png … 5\.png: the worker died {ATTEMPTS} times over these 2 images"):
        list(engine.each(work, blocks_of(SAMPLES, 2)))
    # Also where a worker dies before its answer for the block before has gone out.
    assert len((tmp_path / "deaths").read_text()) == ATTEMPTS


def test_the_block_before_a_deadly_one_is_not_blamed(tmp_path: Path) -> None:
    """One worker has both, and is killed by the second before the answer for the first has gone out, each time."""

    class Answer:
        pass

    class Actor:
        """Does nothing; the test says what becomes of it."""

        def __init__(self) -> None:
            self.do = self

        def remote(self, number: int, sent: list[Any], block: Block) -> Answer:
            given.append([sample.id for _, sample in block])
            return Answer()

    given: list[list[str]] = []
    engine, todo, attempts = RayEngine(workers=1), deque(range(3)), Counter[int]()
    blocks = blocks_of(SAMPLES, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_hire", lambda: engine._hands.append(_Hand(Actor())))
        patch.setattr("ray.kill", lambda actor: None)
        engine._hire()
        with pytest.raises(RunError, match=r"4\.png … 7\.png: the worker died 4 times"):
            while True:
                engine._hand_out(todo, [], attempts, blocks, 3)
                (hand,) = engine._hands
                if list(hand.has.values()) == [0]:  # alone it is answered
                    hand.has.clear()
                else:
                    engine._lose(hand, todo, attempts, blocks, OSError())
    names = [given_to[0] for given_to in given]
    assert names == ["0.png", "4.png", "0.png", "4.png", "4.png", "4.png"]


def test_what_goes_wrong_in_a_worker_is_said_here(engine: RayEngine) -> None:
    def told(block: Block) -> Iterator[int]:
        raise DataError("expected one map")
        yield 1

    def mistaken(block: Block) -> Iterator[int]:
        raise ValueError("no such thing")
        yield 1

    with pytest.raises(RunError, match=r"^expected one map$"):
        list(engine.each(told, blocks_of(SAMPLES, 2)))
    with pytest.raises(RunError, match=r"a worker of Ray failed \(.*no such thing\)"):
        list(engine.each(mistaken, blocks_of(SAMPLES, 2)))


def test_a_worker_that_does_not_see_a_file(tmp_path: Path) -> None:
    engine = RayEngine(workers=1)
    engine.check_unread(Sample("gone.png", tmp_path / "gone.png"))
    make_line(tmp_path / "line", n_per_class=1, n_normal=1, n_combined=0, size=64, kinds=["hole"])
    with pytest.raises(RunError, match=r"could not read .*000\.png, which can be read here"):
        engine.check_unread(Sample("000.png", tmp_path / "line/images/hole/000.png"))


def test_how_many_workers_there_can_be() -> None:
    assert most_workers({"CPU": 3.5}, "cpu") == 3 and most_workers({"CPU": 8, "GPU": 2}, "cuda:0") == 2
    with pytest.raises(SettingsError, match="--device cuda:0: Ray has no GPU"):
        most_workers({"CPU": 4.0}, "cuda:0")
    with pytest.raises(SettingsError, match="at least 1"):
        RayEngine(workers=0)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images: more than two shards."""
    return make_line(
        tmp_path_factory.mktemp("line") / "line",
        n_per_class=13,
        n_normal=14,
        n_combined=0,
        size=64,
        kinds=["hole", "print"],
    )


def discovered(line: Path, run: Path, detector: str, engine: RayEngine | None, progress: Steps | None = None) -> Path:
    settings = {**SMALL, "max_images": 9} if detector == "musc" else SMALL  # most images are compared with references
    model = AnomalyNCD(3, progress=progress, detect={"settings": settings}, **SETTINGS)
    model.engine = engine
    normal = line / "images/good" if detector == "patchcore" else None
    model.fit(line / "images", detector=detector, normal=normal, run=run)
    return run


@pytest.fixture(scope="module")
def local(line: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What one process writes."""
    work = tmp_path_factory.mktemp("local")
    return {name: told(discovered(line, work / name, name, None)) for name in ("patchcore", "musc")}


def told(run: Path) -> dict[str, bytes]:
    """All files of a run but those that tell of time and place."""
    return {name: data for name, data in content(run).items() if name not in ("stages.json", "report.html")}


@pytest.mark.parametrize("detector", ["patchcore", "musc"])
def test_two_workers_write_the_run_of_one_process(
    detector: str, line: Path, engine: RayEngine, local: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    found = told(discovered(line, tmp_path / "run", detector, engine))
    assert found.keys() == local[detector].keys()
    assert not [name for name in found if found[name] != local[detector][name]]
    assert len(busy_workers()) == 2


@pytest.mark.parametrize("detector", ["patchcore", "musc"])
def test_killed_workers_and_a_stopped_call_change_nothing(
    detector: str, line: Path, engine: RayEngine, local: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    killed: list[str] = []
    stops = ["Anomaly maps", "Regions"]

    class Unlucky(Steps):
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Any]:
            with super().task(name, total) as advance:

                def disturbed(steps: int = 1, note: str = "") -> None:
                    advance(steps, note)
                    if name in ("Normal images", "Anomaly maps", "Regions") and name not in killed:
                        killed.append(name)
                        os.kill(max(busy_workers()), signal.SIGKILL)
                    elif name in stops and sum(self.steps) > total // 2:
                        stops.remove(name)
                        raise KeyboardInterrupt

                self.steps.clear()
                yield disturbed

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            discovered(line, tmp_path / "run", detector, engine, Unlucky())
    found = told(discovered(line, tmp_path / "run", detector, engine, Unlucky()))
    assert "Regions" in killed and not stops and found == local[detector]


def test_a_full_disk_changes_nothing(
    line: Path, engine: RayEngine, local: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """No file may be larger than some bytes at first; the workers' disks have room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = len(list(engine.each(lambda block: [1], blocks_of(SAMPLES, 1))))  # Ray has begun its own files
    assert before == 12
    for room in (2_000, 12_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(RunError, match="cannot write the run"):
                discovered(line, tmp_path / "run", "patchcore", engine)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert told(discovered(line, tmp_path / "run", "patchcore", engine)) == local["patchcore"]


def test_new_images_are_taken_in_by_workers_too(engine: RayEngine, tmp_path: Path) -> None:
    old, new, normal = (
        write_scenes(tmp_path / name, kinds, seed=seed) / "images"
        for seed, (name, kinds) in enumerate({"old": KINDS, "new": [GOOD, 0, 1, 2] * 5, "good": [GOOD] * 8}.items())
    )
    first = AnomalyNCD(4, **TINY, detect={"settings": {"size": 64, "map_size": 64}})
    first.fit(old, normal=normal, run=tmp_path / "local")
    shutil.copytree(tmp_path / "local", tmp_path / "ray")
    found = {}
    for name, own in (("local", None), ("ray", engine)):
        model = AnomalyNCD.load(tmp_path / name)
        model.engine = own
        assert model.update(new).n_images == 20
        found[name] = told(tmp_path / name)
    assert found["ray"] == found["local"]
