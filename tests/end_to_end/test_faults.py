"""A handful of the cases of `benchmarks/faults.py`, which tries thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anomalyncd.checksums import seal, unseal
from anomalyncd.config import make_config
from anomalyncd.data import load_dataset, read_image, read_map, read_mask
from anomalyncd.errors import AnomalyNCDError, BadFileError, DataError, RunError, SettingsError, WeightsError
from anomalyncd.model.checkpoint import load_state_dict
from anomalyncd.run.evaluate import read_labels
from anomalyncd.settings_text import read_config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.bombs import BOMBS
from faults.disk import full_disks
from faults.files import hurt_files
from faults.fuzz import fuzz
from faults.kills import kill_runs
from faults.lost import kept_names, replaced_images, two_at_once
from faults.mutate import mutate, npy, png
from faults.odd import Odd
from faults.readers import Reader
from faults.scenes import beside, discover, recipes, small_line, update
from faults.seeds import picture_seeds
from faults.server import ForkServer
from faults.strangers import attack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
SEEDS = picture_seeds()
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


def test_killed_and_resumed(server: ForkServer, tmp_path: Path) -> None:
    with_detector = recipes(small_line(tmp_path / "line"))[2:]
    seed = int(np.random.default_rng().integers(2**31))  # other moments each time, and a failure can be repeated
    print(f"seed {seed}")
    assert kill_runs(server, with_detector, 2, np.random.default_rng(seed), tmp_path / "runs") == []


def test_second_calls_and_two_at_once(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, more, started = small_line(tmp_path / "line"), small_line(tmp_path / "more", seed=1), tmp_path / "started"
    assert server.run(*discover(line).command(started)).code == 0
    exports = beside(started, more)
    assert kill_runs(server, exports, len(exports), np.random.default_rng(0), tmp_path / "beside") == []
    monkeypatch.setattr("faults.lost.OTHERS", {"another seed": ("--seed", 7)})
    assert kept_names(server, discover(line), tmp_path) == []
    assert replaced_images(server, discover(line), line, tmp_path) == []
    with ForkServer() as other:
        assert two_at_once((server, other), discover(line), update(started, more), more, tmp_path) == []


def test_runs_of_strangers(server: ForkServer, tmp_path: Path) -> None:
    tally = attack(server, 12, np.random.default_rng(0), tmp_path)
    assert tally.failures == [] and tally.n_folders == 12


def test_wrong_arguments() -> None:
    """In a process of its own, whose memory is limited."""
    script = Path(__file__).parents[2] / "benchmarks" / "faults.py"
    command = [sys.executable, str(script), "arguments", "--count", "60"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "60 commands" in ended.stdout and "60 calls in Python" in ended.stdout


def test_a_full_disk(server: ForkServer, tmp_path: Path) -> None:
    assert full_disks(server, 2, np.random.default_rng(0), tmp_path) == []


def test_damaged_files(server: ForkServer, tmp_path: Path) -> None:
    names = ("tokens/00000.safetensors", "images.csv", "stages.json", "review.sqlite")
    assert hurt_files(server, 2, np.random.default_rng(1), tmp_path, names) == []


def test_malformed_files_to_all_readers(tmp_path: Path) -> None:
    bombs = [Odd("image", name, make) for name, make in BOMBS.items() if "megapixels" not in name]  # these take seconds
    assert len(bombs) > 40
    tally = fuzz(len(bombs) + 120, 1, tmp_path, odd=bombs)
    assert tally.failures == []
    assert tally.n_good == sum(tally.kinds.values()) == len(bombs) + 120
    assert {outcome for _, outcome in tally.outcomes} >= {"read", "BadFileError"}


def test_the_fuzzer_sees_a_flood_and_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would find nothing, whatever the readers do."""

    def wait(path: Path) -> int:
        while path.stem == "odd":
            pass
        return 0

    monkeypatch.setattr("faults.fuzz.HANG", 2.0)
    seeds = [(".png", SEEDS["image"][0][1])]
    flood = Reader("image", lambda path: np.ones(100_000_000 if path.stem == "odd" else 1).size, seeds)
    readers = [flood, Reader("mask", wait, seeds)]
    monkeypatch.setattr("faults.fuzz.Library", lambda _: SimpleNamespace(readers=readers, folder=tmp_path))
    usual = fuzz(2, 0, tmp_path, odd=[]).largest[0]  # a fork holds less than the process that it came from
    monkeypatch.setattr("faults.fuzz.MOST_MB", usual + 300)
    tally = fuzz(2, 0, tmp_path, odd=[Odd(name, "anything", lambda _: b"x") for name in ("image", "mask")])
    assert len(tally.failures) == 2 and "MB of memory" in tally.failures[0] and "hang" in tally.failures[1]


READERS: list[tuple[Callable[[Path], object], str, list[tuple[str, bytes]]]] = [
    (read_image, "image", SEEDS["image"]), (read_map, "map", SEEDS["map"]), (read_mask, "mask", SEEDS["mask"]),
    (lambda path: make_config(read_config(path)), "settings", [(".yaml", b"learn: {epochs: 3}\nn_classes: 4\n")]),
    (load_dataset, "list", [(".csv", b"image,label\na.png,x\n")]),
    (read_labels, "labels", [(".csv", b"image,label\na.png,x\n")]),
]  # fmt: skip


@pytest.mark.parametrize(("read", "kind", "seeds"), READERS, ids=[kind for _, kind, _ in READERS])
@given(data=st.data())
@QUICK
def test_any_bytes_are_read_or_refused(
    read: Callable[[Path], object], kind: str, seeds: list[tuple[str, bytes]], data: st.DataObject, tmp_path: Path
) -> None:
    suffix, seed = data.draw(st.sampled_from(seeds))
    content = data.draw(
        st.one_of(st.binary(max_size=300), st.builds(lambda n: _mutated(seed, n), st.integers(0, 2**32)))
    )
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    try:
        read(path)
    except AnomalyNCDError as error:
        assert "\n" not in str(error) and len(str(error)) <= 1000


def _mutated(seed: bytes, number: int) -> bytes:
    return mutate(seed, seed[::-1], np.random.default_rng(number))[1]


@pytest.mark.parametrize(
    ("read", "error"),
    [(read_image, BadFileError), (read_map, BadFileError), (read_mask, BadFileError), (load_dataset, DataError),
     (read_labels, DataError), (read_config, SettingsError), (load_state_dict, WeightsError)],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["n" * 50_000 + ".png", "a\0b.csv", "pipe.safetensors", "loop.yaml", "zero.png", "fold.npy"]
)
def test_no_plain_file(read: Callable[[Any], object], error: type[Exception], name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "fold.npy").mkdir()
    with pytest.raises(error):
        read(tmp_path / name)


@pytest.mark.parametrize("read", [read_image, read_map, read_mask])
@pytest.mark.parametrize("size", [(20_000, 20_000), (2_000_000, 1), (9_000, 9_000, 16, 6)])
def test_bombs_are_refused_before_they_are_unpacked(
    read: Callable[[Path], object], size: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "bomb.png").write_bytes(png(*size, rows=1))
    with pytest.raises(BadFileError, match=r"more than the limit|longer than the limit"):
        read(tmp_path / "bomb.png")


def test_a_header_that_promises_more_than_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000000)}"))
    with pytest.raises(BadFileError, match="NumPy"):
        read_map(tmp_path / "a.npy")


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path, values = tmp_path / "a.safetensors", np.arange(64, dtype=np.float16)
    data = seal({"values": values}, {"who": "me"})
    path.write_bytes(data)
    assert unseal(path)[0]["values"].tolist() == values.tolist()
    for place in range(len(data) - values.nbytes, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(RunError, match="checksum"):
            unseal(path)
