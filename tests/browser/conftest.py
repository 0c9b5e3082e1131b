"""A real Chromium and the real pages of a small run. Where there is no Chromium, one line says so."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.demo import make_line
from anomalyncd.review.app import make_app

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
MISSING = (
    "Chromium was not found" if CHROMIUM is None else "" if find_spec("playwright") else "playwright is not installed"
)
KINDS = ("scratch", "hole", "stain")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(
            f"browser tests did not run: {MISSING} (make test-browser installs what is missing)"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, ended with the module: its event loop must not meet other tests."""
    if MISSING:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def line_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo in miniature: three kinds of defect, six images each, three good ones."""
    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("line")
    make_line(folder / "line", kinds=KINDS, n_per_class=6, n_normal=3, n_combined=0, size=160)
    model = AnomalyNCD(len(KINDS) + 1, backbone="tiny", features={"views": 2}, learn={"epochs": 3})
    inputs = gather(folder / "line" / "images", maps=folder / "line" / "maps")
    model.fit(inputs, run=folder / "run")
    return folder / "run"


@pytest.fixture
def run(line_run: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(line_run, tmp_path / "run"))


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    """Where the review of the run is served."""
    server = uvicorn.Server(uvicorn.Config(make_app(run), port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < end
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """A window in which no script may fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    window = context.new_page()
    errors: list[str] = []
    window.on("pageerror", lambda error: errors.append(str(error)))
    yield window
    window.screenshot(path=tmp_path / "last.png")
    context.close()
    assert not errors
