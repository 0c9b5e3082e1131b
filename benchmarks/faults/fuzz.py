"""Thousands of malformed inputs to all readers, in processes of their own: no traceback, no crash, no hang, no flood."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from anomalyncd.errors import AnomalyNCDError

from .mutate import mutate
from .odd import ODD, Odd
from .readers import Library, Reader
from .seeds import INCOMPLETE

HANG = 10.0  # seconds
BUSY = 300.0  # seconds of a process that waits for a core on a busy machine
MOST_MB = 2048.0
LONGEST_MESSAGE = 1500  # characters without the path
SPARE_BYTES = 8 << 30  # address space beyond what the imports take, so that no case takes the machine down
LARGEST_KEPT = 10 << 20  # bytes; one of the inputs is a sparse file of 100 GB


@dataclass
class Tally:
    """What came of the inputs; failures : a line each."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    n_good: int = 0
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[float, str] = (0.0, "")

    def fail(self, text: str) -> None:
        """Said at once: the rest may take an hour."""
        print(" ", text, flush=True)
        self.failures.append(text)


def fuzz(
    count: int,
    seed: int,
    work: Path,
    *,
    first: int = 0,
    keep: Path | None = None,
    odd: Sequence[Odd] = ODD,
    only: str = "",
) -> Tally:
    """Feed inputs `first` … `count` − 1; the odd ones (bombs, pipes, names …) come first.

    keep : folder for copies of the inputs that failed; only : part of the names of the readers to try, without odd ones
    """
    library = Library(work)
    library.readers = [reader for reader in library.readers if only in reader.name]
    odd = () if only else odd
    tally = Tally()
    context = multiprocessing.get_context("fork")
    number = first
    while number < count:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(library, odd, number, count, seed, work / "case", theirs))
        worker.start()
        theirs.close()
        number = _watch(worker.pid or 0, ours, number, tally, work / "case", keep)
        if worker.is_alive():
            worker.kill()
        worker.join()
    return tally


def _watch(pid: int, messages: Connection, number: int, tally: Tally, case: Path, keep: Path | None) -> int:
    """Follow a worker until it ends; returns the number of the next input."""
    started = awake = time.monotonic()
    used, what = _cpu_seconds(pid)[0], "start"
    while True:
        if not messages.poll(0.25):
            now = time.monotonic()
            cpu, asleep = _cpu_seconds(pid)
            wall, cpu = now - started, cpu - used
            awake = awake if asleep else now  # one that waits for a core is not asleep
            if what != "start" and (cpu > HANG or now - awake > HANG or wall > BUSY):
                os.kill(pid, signal.SIGKILL)
                tally.fail(f"input {number} ({what}): hang, {wall:.0f} s, {cpu:.0f} s of them at work")
                _keep(case, keep, number)
                return number + 1
            continue
        try:
            message = messages.recv()
        except EOFError:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            tally.fail(f"input {number} ({what}): the process crashed")
            _keep(case, keep, number)
            return number + 1
        if message[0] == "begin":
            _, number, what = message
            started = awake = time.monotonic()
            used = _cpu_seconds(pid)[0]
        elif message[0] == "end":
            _, reader, kind, outcome, seconds, peak, good, problem = message
            tally.outcomes[reader, outcome] += 1
            tally.kinds[kind] += 1
            tally.n_good += good
            tally.slowest = max(tally.slowest, (seconds, f"input {number}, {what}"))
            tally.largest = max(tally.largest, (peak, f"input {number}, {what}"))
            if peak > MOST_MB:
                problem = problem or f"took {peak:.0f} MB of memory"
            if problem:
                tally.fail(f"input {number} ({what}): {problem}")
                _keep(case, keep, number)
            messages.send("go on")
        else:
            return int(message[1])


def _work(
    library: Library, odd: Sequence[Odd], first: int, count: int, seed: int, case: Path, messages: Connection
) -> None:
    """One process: an input after the other, and a valid file after each."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # decoders in C write there
    warnings.simplefilter("ignore")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES, size + SPARE_BYTES))
    shares = np.array([reader.share for reader in library.readers])
    shares /= shares.sum()
    expected: dict[tuple[str, int], object] = {}
    for number in range(first, count):
        rng = np.random.default_rng([seed, number])
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir(parents=True)
        if number < len(odd):
            one = odd[number]
            reader = next(reader for reader in library.readers if reader.name == one.reader)
            kind, what = "odd", f"{one.reader}, {one.name}"
            made = one.make(case)
            messages.send(("begin", number, what))
            outcome, seconds, peak, problem = _read_odd(made, one.suffix, reader, library, case)
        else:
            reader = library.readers[rng.choice(len(shares), p=shares)]
            suffix, data = reader.seeds[rng.integers(len(reader.seeds))]
            kind, data = mutate(data, reader.seeds[rng.integers(len(reader.seeds))][1], rng)
            messages.send(("begin", number, f"{reader.name}{suffix}, {kind}"))
            with _laid(reader, library, _beside(suffix, library, case) / f"case{suffix}", data) as path:
                outcome, seconds, peak, problem = _read(reader, path)
        place = int(rng.choice([n for n, (suffix, _) in enumerate(reader.seeds) if suffix != INCOMPLETE]))
        suffix, data = reader.seeds[place]
        with _laid(reader, library, _beside(suffix, library, case) / f"good{suffix}", data) as path:
            _, _, _, good_problem = _read(reader, path, expected, (reader.name, place))
        problem = problem or (good_problem and f"a valid file after it: {good_problem}")
        messages.send(("end", reader.name, kind, outcome, seconds, peak, not good_problem, problem))
        messages.recv()
    messages.send(("done", count))


def _beside(suffix: str, library: Library, case: Path) -> Path:
    """A list lies beside the images that it names."""
    return library.folder if suffix in (".csv", ".parquet") else case


@contextmanager
def _laid(reader: Reader, library: Library, path: Path, data: bytes) -> Iterator[Path]:
    """The content where the reader looks for it; the run is put in order again afterwards."""
    if reader.place is None:
        path.write_bytes(data)
        if reader.name == "names of a stack":
            path.with_suffix(".npy").write_bytes(b"")
        yield path
        return
    target = library.run / reader.place
    before = target.read_bytes()
    try:
        target.write_bytes(data)
        path.write_bytes(data)  # to keep, should it fail
        yield target
    finally:
        target.write_bytes(before)
        for ending in ("-wal", "-shm"):
            target.with_name(target.name + ending).unlink(missing_ok=True)


def _read(
    reader: Reader, path: Path, expected: dict[tuple[str, int], object] | None = None, key: tuple[str, int] = ("", 0)
) -> tuple[str, float, float, str]:
    """Outcome, seconds, MB and what is wrong; with `expected` the value must be the one of the first time."""
    _forget_peak()
    started, problem = time.process_time(), ""  # others may be at work on the same core
    try:
        value = reader.read(path)
        outcome = "read"
        if expected is not None and expected.setdefault(key, value) != value:
            problem = "read with another content"
    except AnomalyNCDError as error:
        outcome = type(error).__name__
        text = str(error).replace(str(path), "")
        if expected is not None:
            problem = f"refused: {text[:300]}"
        elif "\n" in text or "\r" in text:
            problem = f"a message of several lines: {text[:200]!r}"
        elif len(text) > LONGEST_MESSAGE:
            problem = f"a message of {len(text)} characters: {text[:100]!r} …"
    except BaseException as error:
        outcome = "FAILED"
        problem = f"{type(error).__name__}: {str(error)[:200]} {_where(error)}"
    return outcome, time.process_time() - started, _peak_mb(), problem


def _read_odd(
    made: bytes | Path, suffix: str, reader: Reader, library: Library, case: Path
) -> tuple[str, float, float, str]:
    if isinstance(made, bytes):
        with _laid(reader, library, case / f"odd{suffix}", made) as path:
            return _read(reader, path)
    if reader.place is None:
        named = made
        if made.is_relative_to(case) and not made.suffix:  # readers choose by the suffix
            named = made.with_suffix(reader.seeds[0][0])
            made.rename(named)
        return _read(reader, named)
    target, aside = library.run / reader.place, case / "aside"
    target.rename(aside)
    made.rename(target)
    try:
        return _read(reader, target)
    finally:
        target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
        aside.rename(target)


def _where(error: BaseException) -> str:
    """The innermost place in this package's code."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [f"{Path(file).name}:{line}" for file, line in frames if "anomalyncd" in file and "site-packages" not in file]
    return f"({own[-1]})" if own else ""


def _keep(case: Path, keep: Path | None, number: int) -> None:
    if keep is not None and case.is_dir():
        shutil.copytree(case, keep / str(number), dirs_exist_ok=True, symlinks=True, ignore=_special)


def _special(folder: str, names: list[str]) -> list[str]:
    files = [Path(folder, name) for name in names]
    return [file.name for file in files if not file.is_file() or file.stat().st_size > LARGEST_KEPT]


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _cpu_seconds(pid: int) -> tuple[float, bool]:
    """Seconds at work, and whether it waits for something else than a core."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "S"
    except OSError:
        return 0.0, False
