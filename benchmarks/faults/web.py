"""`serve` and `review` as processes of their own, and clients of theirs, polite and not. Only ever on 127.0.0.1."""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
MODULES = (
    "anomalyncd.cli", "anomalyncd.estimator", "anomalyncd.review.app", "anomalyncd.serve.app", "anomalyncd.serve.server",
    "anomalyncd.detect.patchcore", "anomalyncd.studio.app", "anomalyncd.day.html",
)  # fmt: skip
PATIENCE = 120.0  # seconds for a command to start or to end on a busy machine


@dataclass(frozen=True)
class Answer:
    """status : 0 where the connection was closed instead; seconds : until the answer was whole"""

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        return str(self.json["detail"])


class Web:
    """Something that answers on a port of this machine; token : sent with every request"""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port, self.token = port, token
        self._keys = (f"{os.getpid()}-{time.monotonic_ns()}-{number}" for number in itertools.count())

    def ask(
        self,
        path: str,
        content: bytes | None = None,
        *,
        kind: str = "application/json",
        timeout: float = 60,
        **headers: str,
    ) -> Answer:
        """GET, or POST where there is content, on a connection of its own; headers : with _ for -"""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            sent["Content-Type"] = kind
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        started = time.perf_counter()
        with closing(http.client.HTTPConnection(HOST, self.port, timeout=timeout)) as connection:
            try:
                connection.request("GET" if content is None else "POST", path, content, sent)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                return Answer(0, repr(error).encode(), {}, time.perf_counter() - started)
        return Answer(answer.status, body, dict(answer.getheaders()), time.perf_counter() - started)

    def post(self, path: str, **content: Any) -> Answer:
        """Send JSON to the review, under a new key unless one is given."""
        return self.ask(path, json.dumps({"key": next(self._keys), **content}).encode())

    def post_plain(self, path: str, content: Any) -> Answer:
        """Send JSON to the studio."""
        return self.ask(path, json.dumps(content).encode())

    def act(self, state: Mapping[str, Any], **action: Any) -> Answer:
        """An action on the review by someone who has seen this state."""
        return self.post("/api/actions", version=state["version"], table=state["table"], action=action)


def _main(output: str, arguments: list[str], environment: dict[str, str]) -> None:
    """In a process of its own: the command line, with all that it prints in a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(environment)
    sys.argv = ["anomalyncd", *arguments]
    import_module("anomalyncd.cli").main()


class Command(Web):
    """`serve` or `review` of a run, or `studio` of a workspace, once it answers; forked from a process with all imports.

    said : all that it has printed
    """

    def __init__(self, name: str, run: Path, *options: object, token: str | None = None) -> None:
        arguments = [name, run, "--port", 0, *options, *(["--no-browser"] if name in ("review", "studio") else [])]
        self._output = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", *MODULES])
        given = (f"{self._output.name}/said", list(map(str, arguments)), {"ANOMALYNCD_TOKEN": token} if token else {})
        self.process = context.Process(target=_main, args=given)
        self.process.start()
        while (place := self.said.find(f"http://{HOST}:")) < 0:
            if not self.process.is_alive():
                raise RuntimeError(self.said)
            time.sleep(0.01)
        super().__init__(int(self.said[place:].split(":")[2].split("/")[0].split()[0]), token)
        while self.ask("/health").status not in (200, 401, 404):
            time.sleep(0.05)

    @property
    def said(self) -> str:
        file = Path(self._output.name, "said")
        return file.read_text() if file.exists() else ""

    @property
    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def end(self) -> tuple[int | None, str]:
        """Exit code, and all that it printed, after being told to end."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)
        self.process.join(PATIENCE)
        return self.process.exitcode, self.said

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._output.cleanup()


def half_head(_: Web) -> bytes:
    """A request whose head never ends."""
    return b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


def half_body(path: str) -> Callable[[Web], bytes]:
    """A request whose body never ends, from someone who has the token."""

    def start(web: Web) -> bytes:
        head = [
            f"POST {path} HTTP/1.1",
            f"Host: {HOST}:{web.port}",
            "Content-Type: application/json",
            "Content-Length: 1000",
        ]
        if web.token:
            head.append(f"Authorization: Bearer {web.token}")
        return "\r\n".join([*head, "", "{"]).encode()

    return start


def nothing(_: Web) -> bytes:
    """A connection on which nothing is ever sent."""
    return b""


@dataclass
class Crowd:
    """Connections that are held; held : open now; opened : since the beginning"""

    held: int = 0
    opened: int = 0


@contextmanager
def slow_crowd(web: Web, count: int, start: Callable[[Web], bytes], *, again: bool = True) -> Iterator[Crowd]:
    """So many connections that begin in that way and, but for `nothing`, then send a byte a second.

    again : one that is closed is opened again
    """
    crowd, stop, ready = Crowd(), threading.Event(), threading.Event()

    def hold() -> None:
        lines: list[socket.socket | None] = [None] * count
        number = 0
        while not stop.is_set():
            for place, line in enumerate(lines):
                lines[place] = _kept(line, send=start is not nothing and place % 10 == number % 10)
                if lines[place] is None and (again or not number):
                    lines[place] = _opened(web, start)
                    crowd.opened += 1
            crowd.held = sum(line is not None for line in lines)
            number += 1
            ready.set()
            stop.wait(0.1)
        for line in lines:
            if line is not None:
                line.close()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield crowd
    finally:
        stop.set()
        thread.join()


def _opened(web: Web, start: Callable[[Web], bytes]) -> socket.socket | None:
    try:
        line = socket.create_connection((HOST, web.port), timeout=5)
        line.sendall(start(web))
        line.setblocking(False)
    except OSError:
        return None
    return line


def _kept(line: socket.socket | None, *, send: bool) -> socket.socket | None:
    """The connection if it is still open, with another byte sent on it; None where the server has closed it."""
    if line is None:
        return None
    try:
        if send:
            line.send(b"x")
        if line.recv(4096):  # an answer: refused, or too slow
            line.close()
            return None
    except BlockingIOError:
        return line
    except OSError:
        pass
    line.close()
    return None
