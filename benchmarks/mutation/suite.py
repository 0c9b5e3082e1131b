"""The tests, each of which knows the lines it runs, in processes forked from one that has imported the libraries."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = (
    "torch", "torchvision", "timm", "sklearn.cluster", "sklearn.mixture", "sklearn.linear_model", "scipy.stats",
    "scipy.optimize", "scipy.ndimage", "cv2", "numba", "pandas", "PIL.Image", "matplotlib.figure", "safetensors.torch",
    "pydantic", "yaml", "typer", "rich.progress", "jinja2", "hypothesis", "networkx", "filelock", "huggingface_hub",
    "tifffile", "onnx", "faiss",
)  # fmt: skip
SHORT = 0.5  # seconds: a test that takes less, with its fixtures, may run far from the others of its file
HANG_SECONDS = 40.0  # of processor time, besides ten times the usual; compiling with numba takes ten
SIGNALS_OF_TIME = (signal.SIGPROF, signal.SIGALRM)


@dataclass(frozen=True)
class Test:
    """One test, and what it runs.

    Parameters
    ----------
    seconds : of the test and of all fixtures it needs
    lines : of each file of the source, the texts of the lines that it runs: a text is found again when lines have moved
    """

    name: str
    seconds: float
    lines: dict[str, frozenset[str]]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@dataclass(frozen=True)
class Outcome:
    """killed_by : the test that failed, or what else went wrong; empty where all passed"""

    killed_by: str
    tests: int
    cut: bool
    seconds: float


class Suite:
    """Tests of a copy of the repository: nothing is ever written to the original.

    Parameters
    ----------
    root : the repository
    work : folder of the copy and of what each test runs; kept, so that a second call goes on
    rooms : folders of the source, relative to `root`, whose lines count
    tests : files or folders of tests, relative to `root`
    """

    def __init__(self, root: Path, work: Path, rooms: Sequence[str], tests: Sequence[str]) -> None:
        self.root, self.work, self.rooms, self.tests = root, work.resolve(), rooms, tests
        self.tree, self.output = self.work / "tree", self.work / "output.txt"
        self._copy()

    def test_files(self) -> list[str]:
        """Those of the folders of tests, and files of the source with examples in their docstrings."""
        found: list[Path] = []
        for path in (self.tree / place for place in self.tests):
            found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        sources = [path for room in self.rooms for path in sorted((self.tree / room).rglob("*.py"))]
        found += [path for path in sources if "\n    >>> " in path.read_text(encoding="utf-8")]
        return [path.relative_to(self.tree).as_posix() for path in found]

    def collect(self, say: Callable[[str], None]) -> list[Test]:
        """Run each file of tests once, with coverage, unless that was done; tests that fail unharmed are left out."""
        folder = self.work / "touched"
        folder.mkdir(exist_ok=True)
        found = []
        files = self.test_files()
        for number, file in enumerate(files, 1):
            text = (self.tree / file).read_bytes()
            kept = folder / f"{file.replace('/', '-')}-{hashlib.sha256(text).hexdigest()[:16]}.json"
            if not kept.exists():
                started = time.perf_counter()
                self._forked(partial(self._record, file, kept), compile_files=True)
                say(f"{number}/{len(files)} {file}: {time.perf_counter() - started:.0f} s")
            if not kept.exists():
                say(f"{file} could not be run:\n{self.output.read_text()[-2000:]}")
                continue
            for name, note in json.loads(kept.read_text()).items():
                if note["passed"]:
                    lines = {source: frozenset(texts) for source, texts in note["lines"].items()}
                    found.append(Test(name, note["seconds"], lines))
                else:
                    say(f"left out, it fails unharmed: {name}")
        return found

    def run(self, tests: Sequence[Test], file: str, text: str, cpu_seconds: float) -> Outcome:
        """Run tests, the short ones first, until one fails, with one file of the source replaced.

        Parameters
        ----------
        cpu_seconds : when these are used, the rest is not run (`cut`)
        """
        path = self.tree / file
        original, times = path.read_bytes(), path.stat()
        result = self.work / "result.json"
        result.unlink(missing_ok=True)
        started = time.perf_counter()
        try:
            path.write_text(text, encoding="utf-8")
            # Compiled files go by size and time in whole seconds, and a fault often keeps both.
            os.utime(path, (times.st_atime, times.st_mtime + 10))
            numba = tempfile.mkdtemp(dir=self.work) if b"jit" in original else str(self.work / "numba")
            ended = self._forked(lambda: self._try(tests, cpu_seconds, result, numba))
        finally:
            path.write_bytes(original)
            os.utime(path, (times.st_atime, times.st_mtime))
            if b"jit" in original:
                shutil.rmtree(numba, ignore_errors=True)
        seconds = time.perf_counter() - started
        if ended < 0:
            word = "time ran out" if -ended in SIGNALS_OF_TIME else f"signal {-ended}"
            return Outcome(word, 0, False, seconds)
        if not result.exists():
            return Outcome("the tests could not be run", 0, False, seconds)
        return Outcome(**json.loads(result.read_text()), seconds=seconds)

    def _copy(self) -> None:
        """All files that git knows or would take, where they differ from the copy; others are removed from it."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, capture_output=True, check=True
        )
        names = {name for name in listed.stdout.decode().split("\0") if name and (self.root / name).is_file()}
        for name in names:
            old, new = self.root / name, self.tree / name
            if not new.exists() or new.read_bytes() != old.read_bytes():
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(old, new)
        for path in list(self.tree.rglob("*")):
            name = path.relative_to(self.tree).as_posix()
            if path.is_file() and name not in names and "__pycache__" not in path.parts:
                path.unlink()

    def _forked(self, function: Callable[[], None], *, compile_files: bool = False) -> int:
        """Exit code of a function in a process of its own, whose children end with it; minus the signal that ended it."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                handle = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                os.chdir(self.tree)
                sys.path.insert(0, str(self.tree / "src"))
                os.environ["PYTHONPATH"] = str(self.tree / "src")
                os.environ["PYTHONDONTWRITEBYTECODE"] = "" if compile_files else "1"
                sys.dont_write_bytecode = not compile_files
                function()
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        try:
            _, status = os.waitpid(pid, 0)
        finally:  # also where this call is interrupted
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)

    def _record(self, file: str, kept: Path) -> None:
        import coverage

        _use_numba_cache(str(self.work / "numba"))
        patterns = [str(self.tree / room / "*") for room in self.rooms]
        meter = coverage.Coverage(data_file=None, include=patterns, config_file=False, messages=False)
        recorder = Recorder(meter)
        meter.start()
        self._pytest([file], recorder)
        meter.stop()
        notes = recorder.notes(meter.get_data(), self.tree)
        partial = kept.with_suffix(".partial")
        partial.write_text(json.dumps(notes))
        partial.replace(kept)

    def _try(self, tests: Sequence[Test], cpu_seconds: float, result: Path, numba: str) -> None:
        _use_numba_cache(numba)
        runner = Runner(in_order(tests), cpu_seconds)
        code = self._pytest(sorted({test.file for test in tests}), runner, "-x")
        if not runner.failed and not runner.cut and code not in (0, 5):
            runner.failed = "collection"
        result.write_text(json.dumps({"killed_by": runner.failed, "tests": runner.ran, "cut": runner.cut}))

    def _pytest(self, files: Sequence[str], plugin: object, *options: str) -> int:
        from hypothesis import HealthCheck, Phase, settings

        # The same examples each time, and no search for the smallest one that fails.
        settings.register_profile(
            "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        settings.load_profile("mutants")
        temporary = tempfile.mkdtemp(dir=self.work)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        fixed = [
            "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning",
            "--tb=line", f"--basetemp={temporary}/t", f"--rootdir={self.tree}",
        ]  # fmt: skip
        try:
            return int(pytest.main([*fixed, *options, *files], plugins=[plugin]))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


class Recorder:
    """Notes which lines each test runs. What a shared fixture runs counts for every test that takes the fixture."""

    def __init__(self, meter: Any) -> None:
        self.meter, self.now = meter, ""
        self.passed: dict[str, bool] = {}
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}

    def _switch(self, context: str) -> None:
        self.now = context
        self.meter.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        known = getattr(item, "_fixtureinfo", None)
        definitions = known.name2fixturedefs.values() if known else []
        self.fixtures[item.nodeid] = [_context(found[-1]) for found in definitions if found[-1].scope != "function"]
        self._switch(item.nodeid)
        result = yield
        self._switch("")
        return result  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)  # type: ignore[misc]
        before, started = self.now, time.perf_counter()
        self._switch(_context(fixturedef))
        try:
            return (yield)  # type: ignore[misc]
        finally:
            seconds = time.perf_counter() - started
            self.seconds[self.now] = self.seconds.get(self.now, 0) + seconds
            self.seconds[before] = self.seconds.get(before, 0) - seconds
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and not report.failed

    def notes(self, data: Any, tree: Path) -> dict[str, Any]:
        """For each test: passed, seconds and lines, as `Suite.collect` reads them."""
        lines: dict[str, dict[str, set[str]]] = {}
        for path in data.measured_files():
            texts = Path(path).read_text(encoding="utf-8").splitlines()
            name = Path(path).relative_to(tree).as_posix()
            for number, contexts in data.contexts_by_lineno(path).items():
                for context in contexts if 0 < number <= len(texts) else ():
                    lines.setdefault(context, {}).setdefault(name, set()).add(texts[number - 1].strip())
        notes = {}
        for test, passed in self.passed.items():
            merged: dict[str, set[str]] = {}
            for context in (test, *self.fixtures.get(test, [])):
                for name, found in lines.get(context, {}).items():
                    merged.setdefault(name, set()).update(found)
            seconds = sum(self.seconds.get(context, 0) for context in (test, *self.fixtures.get(test, [])))
            listed = {name: sorted(found) for name, found in merged.items()}
            notes[test] = {"passed": passed, "seconds": seconds, "lines": listed}
        return notes


class Runner:
    """Keeps the tests that were asked for, in their order, and ends each that takes ten times as long as it should."""

    def __init__(self, tests: Sequence[Test], cpu_seconds: float) -> None:
        self.place = {test.name: number for number, test in enumerate(tests)}
        self.usual = {test.name: test.seconds for test in tests}
        self.limit = _cpu() + cpu_seconds
        self.failed, self.ran, self.cut = "", 0, False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        # Without a handler these signals end the process, whatever it is doing; tests without end are counted as killed.
        seconds = HANG_SECONDS + 10 * self.usual[item.nodeid]
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 3 * seconds)
        self.ran += 1
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _cpu() > self.limit and not self.failed and self.ran < len(self.place):
            self.cut = True
            item.session.shouldstop = "no time left"
        return result  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def in_order(tests: Sequence[Test]) -> list[Test]:
    """Short tests first; the others stay together by file, as their fixtures are made once for a file."""
    quickest: dict[str, float] = {}
    for test in tests:
        quickest[test.file] = min(test.seconds, quickest.get(test.file, test.seconds))

    def place(test: Test) -> tuple[float, float, str, float]:
        return (0, test.seconds, "", 0) if test.seconds < SHORT else (1, quickest[test.file], test.file, test.seconds)

    return sorted(tests, key=place)


def preload(names: Sequence[str]) -> None:
    """Import libraries that take long, so that forked processes have them; those that are missing are left out."""
    for name in names:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # the memory stays shared, and pytest's own collections take no time


def _context(fixture: Any) -> str:
    return f"fixture {fixture.baseid} {fixture.argname}"


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _use_numba_cache(folder: str) -> None:
    """What numba compiled goes by time and size of one file, too: a fault gets a folder of its own."""
    os.environ["NUMBA_CACHE_DIR"] = folder
    numba = sys.modules.get("numba")
    if numba is not None:
        numba.config.CACHE_DIR = folder
