"""`anomalyncd serve` in a process of its own: slow and rude clients, and an end that answers what was accepted."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from anomalyncd.cli.servers import listen
from anomalyncd.serve import server
from anomalyncd.serve.server import Server
from anomalyncd.serve.traffic import Limits, Metrics, ServiceGuard, Traffic
from command import fail

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.servers import half_requests_end, slow_connections
from faults.web import Web, half_body, half_head, nothing, slow_crowd

# The command as it is, but that a file decides when the network may go on.
COMMAND = """
import sys, time
from pathlib import Path
from anomalyncd.cli import main
from anomalyncd.regions.extract import Extractor
from anomalyncd.serve import server
server.HEAD_SECONDS = 1.0
hold, encode = Path(sys.argv.pop(1)), Extractor.encode
def held(self, prepared):
    while hold.exists():
        time.sleep(0.01)
    return encode(self, prepared)
Extractor.encode = held
main()
"""
TOKEN = "of these tests"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


class Service:
    """The process; `hold` stops the network as long as it exists."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.hold = folder / "hold"
        command = [
            sys.executable,
            "-c",
            COMMAND,
            str(self.hold),
            "serve",
            str(run),
            "--port",
            "0",
            "--read-timeout",
            "1",
        ]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ANOMALYNCD_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(2)]
        assert "http://" in self.lines[0], self.process.communicate(timeout=30)
        self.port = int(self.lines[0].split("127.0.0.1:")[1].split()[0])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def post(self, body: bytes, kind: str = "image/png", **headers: str) -> tuple[int, Any]:
        with closing(self.connect()) as connection:
            connection.request("POST", "/v1/predict", body, {"Content-Type": kind, **ALLOWED, **headers})
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    def wait_for(self, path: str, words: str) -> str:
        """What an address answers once it holds these words."""
        deadline = time.monotonic() + 20
        while True:
            with closing(self.connect()) as connection:
                connection.request("GET", path, headers=ALLOWED)
                found = connection.getresponse().read().decode()
            if words in found:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def end(self, sig: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(sig)
        output, errors = self.process.communicate(timeout=30)
        return self.process.returncode, output, errors


@pytest.fixture
def service(served: dict[str, Path], tmp_path: Path) -> Iterator[Service]:
    found = Service(served["image"], tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_rude_clients_and_a_graceful_end(service: Service, served: dict[str, Path]):
    content = (served["scenes"] / "images" / "010.png").read_bytes()
    assert "TOKEN" in service.lines[1] and TOKEN not in "".join(service.lines)
    assert service.post(content)[0] == 200

    # A body that is too large is refused before it has come, and the client need not be cut off to hear it.
    with closing(service.connect()) as connection:
        connection.putrequest("POST", "/v1/predict")
        for name, value in {**ALLOWED, "Content-Type": "image/png", "Content-Length": "999999999"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
    # One that does not come is not waited for.
    with closing(service.connect()) as connection:
        connection.putrequest("POST", "/v1/predict")
        for name, value in {**ALLOWED, "Content-Type": "image/png", "Content-Length": "1000"}.items():
            connection.putheader(name, value)
        connection.endheaders(b"a few bytes")
        answer = connection.getresponse()
        assert answer.status == 408 and "1 s" in json.load(answer)["detail"]
    # Nor is a head, of a new connection or of one that was used before.
    for first in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with closing(socket.create_connection(("127.0.0.1", service.port), timeout=20)) as lazy:
            if first:
                lazy.sendall(first)
                answered = b""
                while b'"ready"}' not in answered:
                    answered += lazy.recv(10_000)
            lazy.sendall(b"POST /v1/predict HTTP/1.1\r\nHost:")
            assert lazy.recv(1) == b""
    # What goes away in the middle is nobody's error.
    with closing(socket.create_connection(("127.0.0.1", service.port))) as gone:
        head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        gone.sendall(f"{head}Content-Type: image/png\r\nContent-Length: 1000\r\n\r\nabc".encode())
        time.sleep(0.05)

    service.hold.touch()
    answers: list[tuple[int, Any]] = []
    waiting = [threading.Thread(target=lambda: answers.append(service.post(content))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    with closing(service.connect()) as connection:  # one that stays open
        connection.request("GET", "/health")
        connection.getresponse().read()
        metrics = service.wait_for("/metrics", "anomalyncd_queue_images 5")
        service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while True:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 503:
                break
            assert time.monotonic() < deadline
        assert service.post(content)[0] == 503
    assert service.process.poll() is None and not answers
    service.hold.unlink()
    for thread in waiting:
        thread.join(30)
    output, errors = service.process.communicate(timeout=30)
    assert [status for status, _ in answers] == [200] * 5
    assert service.process.returncode == 0 and "Everything accepted was answered." in output
    assert errors == "", "no client may cause a line in the log"
    assert 'path="/v1/predict",status="408"' in metrics and 'status="500"' not in metrics


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_second_signal_ends_it_at_once(service: Service, served: dict[str, Path]):
    service.hold.touch()
    with closing(service.connect()) as connection:
        content = (served["scenes"] / "images" / "010.png").read_bytes()
        connection.request("POST", "/v1/predict", content, {"Content-Type": "image/png", **ALLOWED})
        service.wait_for("/metrics", "anomalyncd_queue_images 1")
        service.process.send_signal(signal.SIGINT)
        service.wait_for("/health", "stopping")
        assert service.process.poll() is None
        started = time.monotonic()
        code, _, _ = service.end(signal.SIGINT)
    assert code == 128 + signal.SIGINT and time.monotonic() - started < 5


class Unread:
    """An answer of 8 MB for a client that does not read it, from a server in a thread."""

    def __init__(self, limits: Limits) -> None:
        async def large(scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("x" * 8_000_000)(scope, receive, send)

        app = FastAPI()
        app.mount("/large", large)
        app.state.traffic, app.state.limits = Traffic(), limits
        self.server, self.listener = Server(app), socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()
        self.client = socket.create_connection(self.listener.getsockname())
        self.client.sendall(b"GET /large/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.wait_for(lambda: any(c.flow.write_paused for c in self.server.server_state.connections))

    @staticmethod
    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_client_that_does_not_read_cannot_stop_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.2, raising=False)
    unread = Unread(Limits(read_seconds=0.1, seconds=0.1))
    with closing(unread.client):
        unread.server.app.state.traffic.stopping = True
        unread.thread.join(5)
        assert not unread.thread.is_alive() and unread.server.force_exit
    assert unread.server.app.state.traffic.summary() == "Not everything accepted was answered: 1 cut off at the end."


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "WRITE_SECONDS", 0.2, raising=False)
    unread = Unread(Limits())
    with closing(unread.client):
        unread.wait_for(lambda: not unread.server.server_state.connections)
        unread.server.app.state.traffic.stopping = True
        unread.thread.join(5)
        assert not unread.thread.is_alive() and not unread.server.force_exit


@contextmanager
def open_server(token: str | None = None, *, read_seconds: float) -> Iterator[tuple[Server, Web]]:
    """A guarded server in a thread that answers 200, and to /work only when `app.state.go` is set."""
    go = threading.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = b"".join([part async for part in Request(scope, receive).stream()])
        if scope["path"].endswith("/work"):
            await run_sync(go.wait, 30)
        await PlainTextResponse(body)(scope, receive, send)

    limits, traffic = Limits(read_seconds=read_seconds), Traffic()
    guard = Middleware(ServiceGuard, token=token, limits=limits, traffic=traffic, metrics=Metrics())
    app = FastAPI(middleware=[guard])
    app.mount("/", answer)
    app.state.traffic, app.state.limits, app.state.go = traffic, limits, go
    with listen("127.0.0.1", 0) as listener:
        found = Server(app)
        thread = threading.Thread(target=found.run, args=([listener],), daemon=True)
        thread.start()
        yield found, Web(listener.getsockname()[1], token)
        go.set()
        traffic.stopping = True
        thread.join(30)
        assert not thread.is_alive()


def test_slow_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(server, "YOUNG_SECONDS", 0.3)
    monkeypatch.setattr(server, "MOST_SLOW_OF_ONE", 20)
    with open_server(TOKEN, read_seconds=1) as (running, web):
        assert half_requests_end(web, "/any", 10) == []
        good = [lambda: web.ask("/health"), lambda: web.ask("/any"), lambda: web.ask("/any", b"{}")]
        assert slow_connections(web, 60, good, "/any", 1.0) == []
        with slow_crowd(web, 60, nothing, again=False):
            Unread.wait_for(lambda: len(running.server_state.connections) <= 20)


@pytest.mark.skipif(sys.platform != "linux", reason="one machine, several addresses")
def test_who_makes_room(monkeypatch: pytest.MonkeyPatch):
    """Heads that are not whole before bodies, of the client with most connections; never a request that came whole."""
    monkeypatch.setattr(server, "YOUNG_SECONDS", 0.0)
    monkeypatch.setattr(server, "MOST_SLOW_OF_ONE", 6)
    monkeypatch.setattr(server, "MOST_WAITING", 8)
    with open_server(read_seconds=30) as (running, web), ThreadPoolExecutor(4) as pool, ExitStack() as lines:

        def hold(content: bytes, address: str = "127.0.0.1") -> socket.socket:
            line = lines.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), 10, (address, 0))))
            line.sendall(content)
            time.sleep(0.1)  # until the server has seen it
            line.settimeout(0.05)
            return line

        def are_open(*lines: socket.socket) -> list[bool]:
            return [_is_open(line) for line in lines]

        at_work = [pool.submit(web.ask, "/work") for _ in range(4)]
        Unread.wait_for(lambda: running.app.state.traffic.active == 4)
        uploads = [hold(half_body("/any")(web)) for _ in range(2)]
        heads = [hold(half_head(web)) for _ in range(4)]
        assert all(are_open(*uploads, *heads))
        hold(half_head(web))
        assert are_open(*uploads, *heads) == [True, True, False, True, True, True]
        others = [hold(half_head(web), f"127.0.0.{2 + number}") for number in range(3)]
        assert are_open(*uploads, *heads, *others) == [True, True, False, False, True, True, True, True, True]
        running.app.state.go.set()
        assert [one.result().status for one in at_work] == [200] * 4


def _is_open(line: socket.socket) -> bool:
    try:
        return line.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_what_the_command_refuses(served: dict[str, Path]):
    run = served["image"]
    assert "needs a token" in fail("serve", run, "--host", "0.0.0.0")
    assert "at least 8" in fail("serve", run, "--token", "short")
    assert "queue" in fail("serve", run, "--queue", 3, "--max-images", 4)
    assert "finished run" in fail("serve", run.parent, "--port", 0)
