"""Jobs: commands that run one after another, each in a process of its own. All that is known of them lies on disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .as_job import END, JOB, PROCESS, PROGRESS, is_alive, read_json

State = Literal["waiting", "running", "stopped", "failed", "done"]
TICK_SECONDS = 0.3
LOG = "log.txt"
ORDER, BEGUN, STOP = "job.json", "begun", "stop"
LAST_BYTES = 20_000  # of a log that are shown
PRIVATE = ("ANOMALYNCD_TOKEN",)  # of the environment, not for jobs


class Job:
    """One job, as its folder tells.

    Parameters
    ----------
    folder : jobs/NUMBER; `job.json` is written once, everything else by the server or by the job's own process
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, int(folder.name)

    @cached_property
    def order(self) -> dict[str, Any]:
        """What was asked for: kind, run, title, arguments, images, created."""
        return read_json(self.folder / ORDER)

    @property
    def state(self) -> State:
        """Where it stands. Begun without an end and without a process is failed: somebody killed it."""
        end = read_json(self.folder / END)
        if end:
            return "done" if end.get("code") == 0 else "stopped" if self._has(STOP) else "failed"
        if self._has(BEGUN) and is_alive(self.folder):
            return "running"
        if self._has(STOP):
            return "stopped"
        return "failed" if self._has(BEGUN) else "waiting"

    @property
    def progress(self) -> dict[str, Any]:
        """How far it is, as `Recorded` writes it."""
        return read_json(self.folder / PROGRESS)

    @property
    def log(self) -> str:
        """The end of what it said."""
        try:
            with (self.folder / LOG).open("rb") as file:
                file.seek(-min(file.seek(0, os.SEEK_END), LAST_BYTES), os.SEEK_END)
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    @property
    def pid(self) -> int | None:
        """Of its process, if one ever began to work."""
        pid = read_json(self.folder / PROCESS).get("pid")
        return pid if isinstance(pid, int) else None

    def again(self) -> None:
        """Let it wait for its turn once more; the command goes on where it ended."""
        for name in (END, STOP, BEGUN, PROCESS):
            (self.folder / name).unlink(missing_ok=True)

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()


class Jobs:
    """All jobs of a workspace, and the thread that starts them.

    Parameters
    ----------
    folder : of the jobs; made if missing. Jobs that were under way when the last server ended, and whose process is gone
        as well, wait again
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        for job in self.all():
            if (job.folder / BEGUN).exists() and job.state == "failed" and not (job.folder / END).exists():
                job.again()

    def start(self) -> None:
        """Begin to work off what waits."""
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start no more jobs; one that is under way goes on by itself."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def all(self) -> list[Job]:
        """The oldest first; folders without a whole order are none."""
        names = [entry.name for entry in os.scandir(self.folder) if entry.name.isascii() and entry.name.isdecimal()]
        jobs = [Job(self.folder / name) for name in sorted(names, key=int)]
        return [job for job in jobs if isinstance(job.order.get("arguments"), list)]

    def find(self, number: int) -> Job | None:
        """By number; None where there is none."""
        return next((job for job in self.all() if job.number == number), None)

    def add(self, order: Mapping[str, Any], arguments: Sequence[str]) -> Job:
        """Queue a command; {job} in an argument stands for the folder of the job."""
        with self.lock:
            number = max((int(e.name) for e in os.scandir(self.folder) if e.name.isdecimal()), default=0) + 1
            folder = self.folder / f"{number:04d}"
            folder.mkdir()
            said = [text.replace("{job}", str(folder)) for text in arguments]
            draft = folder / "job.partial"
            content = {**order, "arguments": said, "created": time.time()}
            draft.write_text(json.dumps(content), encoding="utf-8")
            os.replace(draft, folder / ORDER)
            return Job(folder)

    def state(self, job: Job) -> State:
        """As the job's own, and running from the moment on that its process was started."""
        with self.lock:  # not while it is being started
            process = self._started.get(job.number)
            return "running" if process is not None and process.poll() is None else job.state

    def stop(self, job: Job) -> None:
        """End a job, or take it out of the queue; asked twice, at once. What it has finished is kept."""
        with self.lock:
            how = signal.SIGTERM if (job.folder / STOP).exists() else signal.SIGINT
            (job.folder / STOP).touch()
            process = self._started.get(job.number)
            alive = process is not None and process.poll() is None
            pid = process.pid if process is not None and alive else job.pid if is_alive(job.folder) else None
            if pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, how)

    def resume(self, job: Job) -> None:
        """Let a job that ended early wait for its turn."""
        with self.lock:
            if self.state(job) in ("stopped", "failed"):
                job.again()

    def forget(self, job: Job) -> None:
        """Remove a job that has ended, and what it alone has made."""
        with self.lock:
            if self.state(job) != "running":
                shutil.rmtree(job.folder, ignore_errors=True)

    def _work(self) -> None:
        while not self._ending.wait(TICK_SECONDS):
            with suppress(OSError), self.lock:
                self._next()

    def _next(self) -> None:
        """Start the first that waits, if nothing is under way."""
        states = [(job, self.state(job)) for job in self.all()]
        if any(state == "running" for _, state in states):
            return
        waiting = [job for job, state in states if state == "waiting"]
        if waiting:
            self._launch(waiting[0])

    def _launch(self, job: Job) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        environment[JOB] = str(job.folder)
        (job.folder / BEGUN).touch()
        with (job.folder / LOG).open("ab") as log:
            # In a session of its own: it outlives this server and the terminal that the server was started in.
            self._started[job.number] = subprocess.Popen(
                [sys.executable, "-m", "anomalyncd", *job.order["arguments"]], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=environment, cwd=self.folder, start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )  # fmt: skip
