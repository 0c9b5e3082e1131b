"""The `curl` lines of docs/studio.md and docs/review.md are run as they stand, but for address and table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from anomalyncd.review.app import make_app
from anomalyncd.studio.app import make_studio
from anomalyncd.studio.jobs import Jobs
from anomalyncd.studio.roots import Roots

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN = "http://127.0.0.1:8765"
FUNCTION = 'curl() { command curl --silent --fail-with-body --write-out "\\n" "$@" || exit; }\n'

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="without curl")


def lines_of(page: str) -> str:
    """The indented block of the page that begins with curl."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [textwrap.dedent(block).strip() for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", text)]
    (block,) = [block for block in found if block.startswith("curl")]
    assert block.count("curl ") == len(re.findall(r"\bcurl ", text)), "a line of curl that is not run"
    return block


def typed(block: str, address: str, here: Path) -> list[str]:
    """What each line of a block answers."""
    script = FUNCTION + block.replace(WRITTEN, address)
    done = subprocess.run(["sh", "-c", script], cwd=here, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done
    return done.stdout.splitlines()


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of a live page."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def test_the_lines_of_the_studio(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "start", lambda _: None)
    shutil.move(place / "pictures/plates", place / "pictures/line3/today")
    shutil.copy(place / "pictures/line3/today/000.png", place / "001.png")
    with serving(make_studio(place / "work", Roots([place / "pictures"]))) as address:
        state, begun, job, _, _ = map(json.loads, typed(lines_of("studio.md"), address, place))
    assert state["runs"][0]["name"] == "plate" and begun["run"] == "today" and job["state"] == "waiting"
    assert [path.name for path in (place / "work/dropped/shift-2").iterdir()] == ["001.png"]


def test_the_lines_of_the_review(place: Path) -> None:
    with serving(make_app(place / "work/plate")) as address:
        (state,) = map(json.loads, typed(f"curl {WRITTEN}/api/state", address, place))
        _, following, after = map(json.loads, typed(lines_of("review.md").replace("…", state["table"]), address, place))
    assert following and after["state"]["version"] == state["version"] + 1
