"""Several files replaced as one, whenever the process dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.run.folder import COMMIT, RunFolder

NAMES = ("model.safetensors", "regions.csv", "classes.json", "images.csv", "tokens/trained.safetensors")
OLD = {name: b"old " + name.encode() for name in NAMES}
NEW = {name: b"new " + name.encode() for name in NAMES}


class Killed(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    with RunFolder(tmp_path / "run").writing() as folder:
        for name, data in OLD.items():
            folder.write(name, data)
    return folder


def content(run: RunFolder) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in NAMES if (run.path / name).exists()}


def leftovers(run: RunFolder) -> list[str]:
    known = {*NAMES, "stages.json", ".lock", "tokens"}
    return sorted({path.relative_to(run.path).as_posix() for path in run.path.rglob("*")} - known)


def dying(real: Callable[..., Any], calls: list[int], at: int, *, after: bool) -> Callable[..., Any]:
    """The function, which ends the process at its n-th call: before or after it has worked."""

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at and not after:
            raise Killed
        result = real(*arguments, **options)
        if len(calls) == at:
            raise Killed
        return result

    return call


def kill_commit(run: RunFolder, what: str, at: int, after: bool) -> int:
    """Commit new files and die at the n-th call of a function of os; returns how often it was called."""
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, what, dying(getattr(os, what), calls, at, after=after))
        try:
            with run.writing():
                calls.clear()
                run.commit(NEW)
        except Killed:
            return -1
    return len(calls)


def test_all_files_are_new_and_nothing_else_is_there(run: RunFolder) -> None:
    with run.writing():
        run.commit(NEW)
        assert content(run) == NEW and leftovers(run) == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("what", ["replace", "fsync", "unlink", "rmdir"])
def test_killed_at_every_step(what: str, after: bool, run: RunFolder, tmp_path: Path) -> None:
    at, outcomes = 0, []
    while True:
        at += 1
        with run.writing():
            for name, data in OLD.items():
                run.write(name, data)
        finished = kill_commit(run, what, at, after)
        RunFolder(run.path).recover()
        found = content(run)
        assert found in (OLD, NEW), f"a mixture after {what} number {at}"
        outcomes.append(found == NEW)
        assert not (run.path / COMMIT).exists()
        with run.writing():  # whoever comes next sweeps what a file being written left
            assert content(run) == found and leftovers(run) == []
        if finished >= 0:
            break
    assert outcomes[-1] and outcomes == sorted(outcomes), "once it is decided it stays so"
    if what == "replace":
        assert len(outcomes) == 2 * len(NAMES) + 2, "every file is written and put in place, and the folder once"
        assert outcomes.count(False) == len(NAMES) + (0 if after else 1)


def test_a_reader_that_comes_before_any_writer_sees_whole_files(run: RunFolder) -> None:
    kill_commit(run, "replace", len(NAMES) + 3, after=False)
    mixed = content(run)
    assert mixed not in (OLD, NEW), "the process died in the middle"
    RunFolder(run.path).recover()
    assert content(run) == NEW and leftovers(run) == []
    RunFolder(run.path).recover()
    assert content(run) == NEW


def test_a_failure_that_is_no_crash_leaves_the_old_files(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from anomalyncd.errors import RunError

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left"), run.writing():
        run.commit(NEW)
    assert content(run) == OLD and leftovers(run) == []


def test_recovering_killed_itself(run: RunFolder) -> None:
    kill_commit(run, "replace", len(NAMES) + 2, after=False)
    for at in range(1, len(NAMES) + 1):
        calls: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", dying(os.replace, calls, 2, after=False))
            try:
                RunFolder(run.path).recover()
            except Killed:
                continue
        assert at >= 3
    RunFolder(run.path).recover()
    assert content(run) == NEW and leftovers(run) == []


def test_recover_touches_nothing_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    RunFolder(tmp_path / "nowhere").recover()
    assert not (tmp_path / "nowhere").exists()


def test_a_commit_makes_folders_however_deep(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as run:
        run.commit({"one/two/three.txt": b"deep"})
    assert (tmp_path / "run/one/two/three.txt").read_bytes() == b"deep"
