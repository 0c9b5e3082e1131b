"""Whoever is to be told of each image, by HTTP or MQTT: in order, until it is taken, from a queue on disk."""

from __future__ import annotations

import http.client
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..errors import AnomalyNCDError
from .ledger import Ledger
from .lines import Line, Webhook
from .mqtt import Mqtt

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds between attempts, doubled each time
LOOK_SECONDS = 0.5  # between looks whether there is a new message
TOGETHER = 50  # messages that are read at once


class LastTaken:
    """The id of the message that was taken last, in a small file of its own.

    It is there microseconds after the answer, where a transaction takes milliseconds and waits for others: a kill between
    answer and note is that much rarer. An id, not a number: of whatever ledger it is read beside, it is true.

    Examples
    --------
    >>> import tempfile
    >>> last = LastTaken(Path(tempfile.mkdtemp()) / "a.watch-webhook")
    >>> last.set("0" * 32), last.is_taken("0" * 32), last.is_taken("1" * 32)
    (None, True, False)
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)

    def is_taken(self, id: str) -> bool:
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.read(self._file, len(id)) == id.encode()

    def set(self, id: str) -> None:
        with suppress(OSError):  # on a full disk; the ledger has the last word
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, id.encode())

    def close(self) -> None:
        os.close(self._file)


class Sender:
    """A thread that takes messages off the ledger's queue, oldest first, and off it for good once they are taken.

    Each is sent at least once, and again if the process was killed between the answer and the note of it: with the same
    `id` and the same `seq`, by which whoever receives it counts it once.

    Attributes
    ----------
    problem : why the last attempt failed; empty where it did not
    since : when attempts began to fail, by the monotonic clock
    """

    def __init__(self, line: Line, ledger: Path, *, tables: bool) -> None:
        self.line, self.problem, self.since = line, "", 0.0
        self._path, self._tables = ledger, tables
        self._waiting = 1  # until somebody has looked
        self._taken = 0  # highest number that was taken, in case that it could not be noted
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"anomalyncd-{line.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is a new message."""
        self._wake.set()

    def waiting(self) -> int:
        """How many messages have not been taken, as far as this thread has seen."""
        return self._waiting

    def drain(self, ledger: Ledger, seconds: float) -> None:
        """Wait until all is taken, or nothing was for so many seconds."""
        before, end = -1, 0.0
        while left := ledger.waiting(self.line.name):
            if left != before:
                before, end = left, time.monotonic() + seconds
            if time.monotonic() > end:
                break
            self.wake()
            time.sleep(LOOK_SECONDS / 10)

    def close(self, seconds: float) -> None:
        """Stop after the message that is under way."""
        self._stop.set()
        self._wake.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        rest = FIRST_REST
        ledger: Ledger | None = None
        last: LastTaken | None = None
        while not self._stop.is_set():
            try:
                ledger = ledger or Ledger(self._path, tables=self._tables)
                last = last or LastTaken(self._path.with_name(f"{self._path.name}-{self.line.name}"))
                messages = ledger.messages(self.line.name, self._taken, TOGETHER)
                self._waiting = ledger.waiting(self.line.name)
                for message in messages:
                    if self._stop.is_set():
                        break
                    if not last.is_taken(message.id):
                        self.line.send(message, ledger)
                        last.set(message.id)
                    self._taken = message.seq
                    ledger.message_taken(self.line.name, message.seq)
                    self._waiting -= 1
                    self.problem, rest = "", FIRST_REST
                if not messages:
                    self._wake.wait(LOOK_SECONDS)
                    self._wake.clear()
            except (AnomalyNCDError, OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
                self.since = self.since if self.problem else time.monotonic()
                self.problem = f"{self.line.name}: {error or type(error).__name__}"
                self.line.close()
                self._stop.wait(rest)
                rest = min(2 * rest, LONGEST_REST)
        self.line.close()
        if ledger is not None:
            ledger.close()
        if last is not None:
            last.close()


def make_lines(webhook: str | None, mqtt: str | None, client: str) -> list[Line]:
    """Those that were asked for; secrets come from the environment, where no list of processes shows them."""
    lines: list[Line] = []
    if webhook is not None:
        lines.append(Webhook(webhook, os.environ.get("ANOMALYNCD_WEBHOOK_TOKEN")))
    if mqtt is not None:
        lines.append(Mqtt(mqtt, client, os.environ.get("ANOMALYNCD_MQTT_PASSWORD")))
    return lines
