"""A process that imports once and forks for each command, because importing takes longer than a small run."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from anomalyncd import MEBin

SERVER = "import sys; sys.path.insert(0, sys.argv[1]); from faults.server import serve; serve(int(sys.argv[2]))"
MODULES = (
    "anomalyncd.cli", "anomalyncd.estimator", "anomalyncd.report.classes", "anomalyncd.report.html",
    "anomalyncd.export", "anomalyncd.run.evaluate", "anomalyncd.review.session", "anomalyncd.detect",
)  # fmt: skip
POLL = 0.002


@dataclass(frozen=True)
class Outcome:
    """How a command ended; code : exit code, or minus the signal that ended it, −9 also for a hang that was ended."""

    code: int
    hung: bool
    output: str
    seconds: float
    peak_mb: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and not self.hung

    @property
    def problem(self) -> str:
        """Why this is not how a command may end: neither success nor errors in plain words; empty where it is."""
        if self.hung:
            return f"hang, ended after {self.seconds:.0f} s"
        if "Traceback (most recent call last)" in self.output:
            return "traceback: " + self.output.strip().splitlines()[-1]
        if self.code < 0:
            return f"ended by signal {-self.code}"
        if self.code and len(self.errors) != 1:
            return f"exit code {self.code} with {len(self.errors)} error lines"
        return ""

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("error: ")]


class ForkServer:
    """Runs `anomalyncd` commands, each in a fresh process of its own that can be killed and limited.

    Parameters
    ----------
    shard : images in a shard of regions, small so that a kill meets shards that are done and shards that are not
    """

    def __init__(self, shard: int = 4) -> None:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(Path(__file__).parents[1]), str(shard)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        first = self.run("--version")  # everything is imported when this returns, so times are those of the commands
        if first.code:
            raise RuntimeError(first.output)

    def run(self, *arguments: object, **options: Any) -> Outcome:
        """Run a command line; options as in `call`."""
        return self.call("anomalyncd.cli:main", *arguments, **options)

    def call(
        self,
        function: str,
        *arguments: object,
        kill_after: float | None = None,
        limit: float = 600,
        file_bytes: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> Outcome:
        """Run `module:function`, with the arguments as `sys.argv`.

        Parameters
        ----------
        kill_after : seconds until SIGKILL
        limit : seconds after which it counts as hung
        file_bytes : largest file that it may write
        """
        return self._ask([function, list(map(str, arguments)), kill_after, limit, file_bytes, environment or {}])

    def warm(self, function: str, *arguments: object) -> None:
        """Run `module:function` in the server itself, so that no command has to import and compile what it uses."""
        if (ended := self._ask([function, list(map(str, arguments))])).problem:
            raise RuntimeError(ended.output)

    def _ask(self, request: list[object]) -> Outcome:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the server of commands has ended")
        return Outcome(**json.loads(answer))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=300)  # on a busy machine

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def limit_memory(megabytes: int) -> None:
    """What takes so much more than is taken now gets a MemoryError, rather than all that the machine has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * 1_000_000, -1))


def serve(shard: int) -> None:
    """Answer requests from stdin, one a line, until it is closed."""
    for module in MODULES:
        with suppress(ModuleNotFoundError):  # of another version, which is tried to see that it fails
            import_module(module)
    for module in ("run.store", "discovery.maps"):
        with suppress(ModuleNotFoundError):
            import_module(f"anomalyncd.{module}").SHARD = shard  # type: ignore[attr-defined]
    compiled = np.zeros((8, 8), np.float32)
    MEBin().fit([compiled]).binarize(compiled)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _freeze()
    for line in sys.stdin:
        function, arguments, *limits = json.loads(line)
        if not limits:
            said, code = _warm(function, arguments)
            _freeze()
            answers.write(
                json.dumps({"code": code, "hung": False, "output": said, "seconds": 0.0, "peak_mb": 0.0}) + "\n"
            )
            answers.flush()
            continue
        kill_after, limit, file_bytes, environment = limits
        with tempfile.TemporaryFile() as output:
            started = time.perf_counter()
            pid = os.fork()
            if pid == 0:
                _child(output.fileno(), function, arguments, file_bytes, environment)
            hung, ended, status, usage = False, 0, 0, resource.getrusage(resource.RUSAGE_SELF)
            while True:
                ended, status, usage = os.wait4(pid, os.WNOHANG)
                seconds = time.perf_counter() - started
                if ended:
                    break
                hung = seconds > limit
                if hung or (kill_after is not None and seconds > kill_after):
                    os.kill(pid, signal.SIGKILL)
                    _, status, usage = os.wait4(pid, 0)
                    break
                time.sleep(POLL)
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
        code = os.waitstatus_to_exitcode(status)
        answer = {"code": code, "hung": hung, "output": said, "seconds": seconds, "peak_mb": usage.ru_maxrss / 1024}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _freeze() -> None:
    """What is there now is never looked at by the collections of forks, so its pages stay shared."""
    gc.collect()
    gc.freeze()


def _warm(function: str, arguments: list[str]) -> tuple[str, int]:
    """What went wrong, and 1 where anything did."""
    before, quiet = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    try:
        _call(function, arguments)
    except Exception:
        return traceback.format_exc(), 1
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(quiet)
    return "", 0


def _call(function: str, arguments: list[str]) -> None:
    sys.argv = ["anomalyncd", *arguments]
    module, _, name = function.partition(":")
    getattr(import_module(module), name)()


def _child(
    output: int, function: str, arguments: list[str], file_bytes: int | None, environment: dict[str, str]
) -> None:
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environment)
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        _call(function, arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
