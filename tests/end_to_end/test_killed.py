"""A process that is killed at any moment, and called again, leaves what an undisturbed one leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.demo import make_line
from anomalyncd.run.folder import RunFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Imports once and forks for each command, because importing takes longer than the run.
SERVER = """
import json, os, signal, sys, time
import anomalyncd.cli, anomalyncd.estimator, anomalyncd.report.classes, anomalyncd.run.evaluation
from anomalyncd.run import store
store.SHARD = 4
for line in sys.stdin:
    arguments, kill_after = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.dup2(2, 1)  # what the command prints is not for the test to read
        sys.argv = ["anomalyncd", *arguments]
        code = 1
        try:
            anomalyncd.cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    def __init__(self, errors: Path) -> None:
        self.errors = errors
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )

    def run(self, *arguments: object, kill_after: float | None = None) -> int:
        """Exit code of a command, or minus the signal that ended it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([[str(argument) for argument in arguments], kill_after]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.errors.read_text()
        return int(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "stderr")
    assert server.run("--version") == 0  # it has imported everything by now, so times are those of the runs
    yield server
    server.process.stdin.close()  # type: ignore[union-attr]
    server.process.wait(timeout=60)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    return make_line(folder, n_per_class=6, n_normal=4, n_combined=0, size=128, kinds=["hole", "scratch", "print"])


OWN_TIME = (".lock", "run.log", "report.html")  # they say when and in which folder the run was made


def content(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in OWN_TIME}


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_killed_at_random_moments(preset: str, server: Server, line: Path, tmp_path: Path) -> None:
    command = [
        "discover", line / "images", "--maps", line / "maps", "--classes", 4, "--backbone", "tiny", "--preset", preset,
        "--set", "features.views=1", "--set", "learn.bank_views=2", "--set", f"learn.epochs={10 if preset == 'fast' else 2}",
    ]  # fmt: skip
    started = time.perf_counter()
    assert server.run(*command, "--out", tmp_path / "whole") == 0
    duration = time.perf_counter() - started
    # The first one is too early for any run to be through; the whole run may have been the slow one on a busy machine.
    delays = [0.01, *(np.random.default_rng().uniform(0.02, 0.9, 5) * duration).tolist()]
    killed = [server.run(*command, "--out", tmp_path / "run", kill_after=delay) for delay in delays]
    assert -signal.SIGKILL in killed, f"no run was killed: {killed}"
    assert server.run(*command, "--out", tmp_path / "run") == 0
    assert content(tmp_path / "run") == content(tmp_path / "whole"), f"killed after {delays} s"
    assert not list(tmp_path.rglob("*.partial"))


def test_two_writers_at_once(server: Server, line: Path, tmp_path: Path) -> None:
    command = ["discover", line / "images", "--masks", line / "masks", "--classes", 4, "--backbone", "tiny"]
    with RunFolder(tmp_path / "run").writing():
        assert server.run(*command, "--out", tmp_path / "run", "--set", "learn.epochs=1") == 2
    assert "another process is writing to this run" in server.errors.read_text()
    assert "Traceback" not in server.errors.read_text()
