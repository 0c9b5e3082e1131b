"""What the Ray engine does around Ray: parts that are kept, found again and joined. The workers run in this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.blocks.engine import Engine, Work
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.data.gather import gather
from anomalyncd.data.maps import StackRow
from anomalyncd.errors import DataError, RunError, SettingsError
from anomalyncd.progress import Advance, Silent
from anomalyncd.ray import engine as engine_ray
from anomalyncd.ray.blocks import LARGEST, Block, split
from anomalyncd.ray.engine import PartWork, predict_with_ray
from anomalyncd.ray.pool import RayEngine
from anomalyncd.ray.start import ask_for_token
from scenes import GOOD, KINDS, fit, write_scenes, write_table

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
COUNT = 40


class Stopping(Silent):
    """Notes warnings and steps, and stops once so many images are done."""

    def __init__(self, stop: float = np.inf) -> None:
        self.steps: list[int] = []
        self.warnings: list[str] = []
        self.stop = stop

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        def advance(steps: int = 1, note: str = "") -> None:
            self.steps.append(steps)
            if sum(self.steps) >= self.stop:
                raise KeyboardInterrupt

        yield advance

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("parts")
    fit(write_scenes(work / "old", KINDS, seed=0), work / "run", "maps")
    write_scenes(work / "new", [(GOOD, 0, 1, 2)[k % 4] for k in range(COUNT)], seed=1)
    return work


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own, and blocks that are done here, the last one first, as Ray might do them."""

    class Here(Engine):
        def __init__(self, *_: Any) -> None: ...

        def each(self, work: Work[Any], blocks: Sequence[Any], *, in_order: bool = False) -> Iterator[Any]:
            for place in reversed(range(len(blocks))):
                yield place, work(blocks[place])

    monkeypatch.setattr(engine_ray, "RayEngine", Here)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def load(work: Path) -> Dataset:
    return gather(work / "new/images", maps=work / "new/maps")


def check(work: Path, out: Path) -> None:
    """A folder of parts holds what the local engine says now."""
    found = AnomalyNCD.load(work / "run").predict(load(work))
    for kind, expected in (("images", found.images), ("regions", found.regions)):
        write_table(pd.read_parquet(out / kind), work / "a.csv")
        write_table(expected, work / "b.csv")
        assert (work / "a.csv").read_bytes() == (work / "b.csv").read_bytes()
    assert not list(out.rglob("*.partial"))


def test_blocks_cover_the_list_in_whole_shards_and_name_their_files_from_anywhere(tmp_path: Path) -> None:
    for count, size in ((1, 16), (1000, 16), (1024, 32), (20_000, LARGEST), (40_000, LARGEST)):
        items = [Sample(f"{k}.png", Path(f"{k}.png")) for k in range(count)]
        blocks = split(Dataset(items))
        assert [item for block in blocks for item in block.items] == items and len(blocks[0].items) == min(size, count)
    block = Block(3, [Sample("ä", Path("ä.png"), StackRow(Path("m.npy"), 2), tmp_path / "x.png", "kind")], True)
    ((number, item),) = block.numbered
    assert item == Sample(
        "ä", Path("ä.png").absolute(), StackRow(Path("m.npy").absolute(), 2), tmp_path / "x.png", "kind"
    )
    assert number == 3 and Block(3, [item], True).key("job") == block.key("job")


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_one_table(work: Path, name: str) -> None:
    written = predict_with_ray(work / "run", load(work), work / name)
    found = AnomalyNCD.load(work / "run").predict(load(work))
    for path, expected in ((written.images, found.images), (written.regions, found.regions)):
        write_table(expected, work / f"local{path.suffix}")
        if path.suffix == ".csv":
            assert path.read_bytes() == (work / "local.csv").read_bytes()
        else:
            pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(work / "local.parquet"))
    assert written.counts == found.images["class_name"].value_counts().to_dict()
    assert not (work / f"{name}.parts").exists()


def test_a_stopped_job_goes_on(work: Path) -> None:
    out = work / "out"
    with pytest.raises(KeyboardInterrupt):
        predict_with_ray(work / "run", load(work), out, Stopping(20))
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/*.parquet")}
    assert len(kept) == 4  # two tables of the last two blocks
    progress = Stopping()
    predict_with_ray(work / "run", load(work), out, progress)
    assert progress.steps == [24, 16] and all(path.stat().st_mtime_ns == then for path, then in kept.items())
    check(work, out)


def test_only_what_changed_is_done_again(work: Path) -> None:
    out = work / "out"
    predict_with_ray(work / "run", load(work), out)

    def again() -> list[int]:
        progress = Stopping()
        predict_with_ray(work / "run", load(work), out, progress)
        check(work, out)
        return progress.steps

    assert again() == [COUNT]
    shutil.copy(work / "new/images/001.png", work / "new/images/020.png")  # another image, same name
    assert again() == [24, 16]
    path = out / "regions" / "000000000-000000015.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert again() == [24, 16]
    for kind in ("images", "regions"):
        path = out / kind / "000000016-000000031.parquet"
        content = bytearray(path.read_bytes())
        content[len(content) // 4] ^= 1  # in a page: the footer can still be read
        path.write_bytes(content)
        assert again() == [24, 16] and path.read_bytes() != content
    (work / "new/images/039.png").unlink()  # a shorter list: its last block is another one
    (work / "new/maps/039.npy").unlink()
    assert again() == [32, 7]
    (work / "run/classes.json").write_text('{"1": "dent"}')
    assert again() == [0, 7, 16, 16]
    assert "dent" in set(pd.read_parquet(out / "images")["class_name"])


def test_precision_reaches_the_workers(work: Path) -> None:
    out = work / "out"
    predict_with_ray(work / "run", load(work), out)
    progress = Stopping()
    predict_with_ray(work / "run", load(work), out, progress, precision="bfloat16")
    assert progress.steps == [0, 8, 16, 16]  # other figures, so no part can be kept
    own = PartWork(work / "run", "job", False, False, "cpu", "bfloat16")
    assert own.predictor.model.config.precision == "bfloat16"


@pytest.mark.parametrize(("mode", "warnings"), [(None, 0), ("token", 0), ("disabled", 1)])
def test_ray_on_this_machine_asks_for_a_token(mode: str | None, warnings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
    progress = Stopping()
    ask_for_token(progress)
    assert os.environ["RAY_AUTH_MODE"] == (mode or "token") and len(progress.warnings) == warnings


def test_a_file_that_can_be_read_by_now_is_read(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    path, out = Path("new/images/005.png"), Path("out")
    content = path.read_bytes()
    path.write_bytes(content[:40])
    progress = Stopping()
    assert predict_with_ray(work / "run", load(Path()), out, progress).n_skipped == 1
    assert progress.warnings[0].startswith("skipped new/images/005.png: ")  # as it was given, not as the worker saw it
    times = path.stat()
    path.write_bytes(content[:40].ljust(len(content), b" "))
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert predict_with_ray(work / "run", load(Path()), out).n_skipped == 0
    check(work, work / "out")


def test_a_worker_that_does_not_see_the_files(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = Block.numbered

    def elsewhere(block: Block) -> Any:
        items = [replace(item, image=Path(str(item.image).replace("005.png", "gone.png"))) for item in block.items]
        return list(enumerate(items, start=block.start))

    monkeypatch.setattr(Block, "numbered", property(elsewhere))
    with pytest.raises(RunError, match="Do all machines see images"):
        predict_with_ray(work / "run", load(work), work / "out.csv")
    assert not (work / "out.csv").exists()
    monkeypatch.setattr(Block, "numbered", numbered)
    assert predict_with_ray(work / "run", load(work), work / "out.csv").n_skipped == 0


def test_nothing_readable_fails_as_the_local_engine_does(work: Path) -> None:
    for path in (work / "new/images").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError) as expected:
        AnomalyNCD.load(work / "run").predict(load(work))
    with pytest.raises(DataError) as caught:
        predict_with_ray(work / "run", load(work), work / "out.csv")
    assert str(caught.value) == str(expected.value) and not (work / "out.csv").exists()


def test_no_region_in_a_part_or_in_all(work: Path) -> None:
    for path in (work / "new/maps").iterdir():
        if int(path.stem) < 20:
            np.save(path, np.zeros((64, 64), np.float32))
    predict_with_ray(work / "run", load(work), work / "out")
    check(work, work / "out")


def test_maps_by_the_detector_of_the_run(work: Path) -> None:
    settings = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 1}}
    AnomalyNCD(3, **settings).fit(work / "old/images", detector="musc", run=work / "bare")
    (work / "new/images/003.png").write_bytes(b"no picture")  # from here on the detector sees other batches
    inputs = gather(work / "new/images", bare=True)
    written = predict_with_ray(work / "bare", inputs, work / "out.parquet")
    found = AnomalyNCD.load(work / "bare").predict(inputs)
    pd.testing.assert_frame_equal(pd.read_parquet(written.images), found.images, rtol=0, atol=1e-5)
    pd.testing.assert_frame_equal(pd.read_parquet(written.regions), found.regions, rtol=0, atol=1e-5)
    assert written.n_skipped == 1 and len(found.regions) > 5


def test_bad_calls(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = load(work)
    for out, message in (("out.txt", r"\.csv or \.parquet"), ("new/images/out", "Choose a folder outside")):
        with pytest.raises(SettingsError, match=message):
            predict_with_ray(work / "run", inputs, work / out)
    with pytest.raises(SettingsError, match="at least 1"):
        RayEngine(workers=0)
    with pytest.raises(RunError, match="holds other files"):
        predict_with_ray(work / "run", inputs, work / "new")
    (work / "run/model.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match="damaged"):
        predict_with_ray(work / "run", inputs, work / "out")
    monkeypatch.setattr(engine_ray, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'anomalyncd\[ray\]'"):
        predict_with_ray(work / "run", inputs, work / "out")
