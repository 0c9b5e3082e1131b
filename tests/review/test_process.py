"""The real command in a process of its own: killed, restarted, and told what it cannot do."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from anomalyncd.cli.servers import listen
from anomalyncd.cli.show import inputs_of
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.review import app as app_module
from anomalyncd.review.action_log import LOG_FILE
from anomalyncd.serve import server as server_module
from command import call, fail

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.servers import half_requests_end, other_sites, slow_connections, stale_actions
from faults.web import Web

ACTIONS = 200
# The server of `anomalyncd review` and nothing else: what the command adds would be most of the time.
SERVER = """
import sys, uvicorn
from pathlib import Path
from anomalyncd.review.app import make_app
uvicorn.run(make_app(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str, content: Any = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


class Server:
    """A review in another process, on the same port after every restart."""

    def __init__(self, run: Path) -> None:
        self.run, self.port = run, free_port()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(self.run), str(self.port)])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(run: Path) -> Iterator[Server]:
    found = Server(run)
    yield found
    found.kill()


def person(port: int, label: int, count: int, answered: dict[str, tuple[int, str]], done: threading.Event) -> None:
    """Gives a class one name after the other; asks again, under the same key, until there is an answer."""
    version = 0
    for number in range(count):
        name = f"person {label} name {number}"
        content = {
            "key": f"person-{label}-{number}",
            "table": "",
            "action": {"kind": "name", "label": label, "name": name},
        }
        while not done.is_set():
            try:
                answer = ask(port, "/api/actions", {**content, "version": version})
                answered[content["key"]] = (answer["id"], name)
                version = answer["state"]["version"]
                break
            except urllib.error.HTTPError as refused:  # the other one was faster: look, and try again
                assert refused.code == 409
                version = json.load(refused)["state"]["version"]
            except (urllib.error.URLError, ConnectionError, TimeoutError, OSError):
                time.sleep(0.02)


def test_200_actions_of_two_clients_survive_a_kill(server: Server, run: Path):
    answered: dict[str, tuple[int, str]] = {}
    stop = threading.Event()
    people = [
        threading.Thread(target=person, args=(server.port, label, ACTIONS // 2, answered, stop)) for label in (1, 2)
    ]
    for thread in people:
        thread.start()
    try:
        deadline = time.monotonic() + 120
        while len(answered) < ACTIONS // 2:
            assert time.monotonic() < deadline and server.process.poll() is None
            time.sleep(0.001)
        server.kill()  # in the middle of something, two clients being at it
        before = dict(answered)
        server.start()
        for thread in people:
            thread.join(60)
    finally:
        stop.set()
    assert len(answered) == ACTIONS and ACTIONS // 2 <= len(before) < ACTIONS
    state = ask(server.port, "/api/state")
    assert state["n_actions"] == ACTIONS, "each once, however often it was sent"
    assert {c["label"]: c["name"] for c in state["classes"] if c["label"] in (1, 2)} == {
        label: f"person {label} name {ACTIONS // 2 - 1}" for label in (1, 2)
    }
    server.kill()
    with closing(sqlite3.connect(run / LOG_FILE)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        stored = {
            key: (number, json.loads(body)["name"])
            for number, key, body in database.execute("SELECT id, key, body FROM actions")
        }
    assert stored == answered


@pytest.fixture
def live(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """The review as the command serves it, with less patience."""
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(server_module, "YOUNG_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "MOST_SLOW_OF_ONE", 20)
    monkeypatch.setattr(app_module, "READ_SECONDS", 0.5)
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(server_module.config_of(app_module.make_app(run)))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield Web(listener.getsockname()[1])
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


def test_slow_clients_are_not_waited_for_and_keep_nobody_out(live: Web):
    assert half_requests_end(live, "/api/actions", 10) == []
    good = [lambda: live.ask("/api/state"), lambda: live.ask("/crops/0")]
    assert slow_connections(live, 60, good, "/api/actions", 0.5) == []


def test_strangers_and_stale_pages(live: Web):
    assert other_sites(live, ["/", "/api/state", "/crops/0", "/overlay/0"]) == []
    assert stale_actions(live) == []


def test_a_token_of_ones_own_is_not_printed_nor_given_to_a_browser(run: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("anomalyncd.cli.servers._has_screen", lambda: True)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    printed = call("review", run, "--port", 0, "--token", "hush hush/secret").output
    assert "?token=TOKEN " in printed and "hush" not in printed and "secret" not in printed and not opened
    printed = call("review", run, "--port", 0, "--token", "auto").output
    address = printed.split(" at ")[1].split()[0]
    assert "TOKEN" not in printed and len(address.split("?token=")[1]) >= 32
    deadline = time.monotonic() + 10
    while not opened and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened == [address]


def test_the_command_says_where_it_is_and_what_is_next(run: Path):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    options = ["--port", "0", "--token", "auto", "--no-browser"]
    command = [sys.executable, "-m", "anomalyncd.cli", "review", str(run), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        address = first.split(" at ")[1].strip()
        token = address.split("token=")[1]
        request = urllib.request.Request(
            address.split("?")[0] + "api/state", headers={"Authorization": f"Bearer {token}"}
        )
        state = json.load(urllib.request.urlopen(request, timeout=30))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address.split("?")[0] + "api/state?token=" + token, timeout=30)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert len(state["classes"]) == 4 and len(token) >= 32
    assert process.returncode == 0 and token not in errors
    assert rest.splitlines()[-2:] == [
        f"Next: anomalyncd export {run} --format csv",
        f"  or: anomalyncd predict {run} NEW_IMAGES --masks MASKS --out new.csv",
    ]
    assert "images.csv" in call("export", run, "--format", "csv").output


@pytest.mark.parametrize(
    ("detector", "binarizer", "expected"),
    [("musc", object(), ""), ("", object(), "--maps MAPS "), ("", None, "--masks MASKS ")],
)
def test_what_predict_needs_besides_images(run: Path, detector, binarizer, expected):
    model = DiscoveryModel.read(run, device="cpu")
    model.config.detect.__dict__["name"], model.binarizer = detector, binarizer
    assert inputs_of(model) == expected


def test_what_the_command_refuses(run: Path):
    assert "needs a token" in fail("review", run, "--host", "0.0.0.0", "--no-browser")
    assert "at least 8" in fail("review", run, "--token", "short", "--no-browser")
    assert "address of this machine" in fail("review", run, "--host", "no such host", "--token", "long enough")
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port {port + 1}" in fail("review", run, "--port", port, "--no-browser")
    assert "finished run" in fail("review", run.parent, "--port", 0, "--no-browser")
