"""The studio as a person uses it, from an empty workspace to predictions; what is on disk afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.demo import make_line
from anomalyncd.run.tables import read_csv, read_names

SLOW = 400_000  # milliseconds: jobs are processes of their own, on a machine that may be busy
TINY = ("--backbone", "tiny", "--set", "features.views=1", "--set", "learn.bank_views=2", "--set", "learn.epochs=2")
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")


class Server:
    """`anomalyncd studio` as a process, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        said = [
            sys.executable, "-m", "anomalyncd", "studio", str(self.folder / "work"), "--images", str(self.folder / "line"),
            "--port", str(self.port), "--no-browser", *TINY,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            said, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(self.folder)}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = line.split(" at ")[1].split()[0]
        self.port = int(self.address.rstrip("/").rsplit(":", 1)[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    """Images of a small line: three kinds, good ones, and some for later."""
    folder = tmp_path_factory.mktemp("studio")
    make_line(folder / "made", kinds=("scratch", "hole", "stain"), n_per_class=5, n_normal=6, n_combined=0, size=96)
    images = folder / "made/images"
    (folder / "line/plates").mkdir(parents=True)
    (folder / "line/new").mkdir()
    shutil.move(images / "good", folder / "line/good")
    for kind in sorted(images.iterdir()):
        for number, file in enumerate(sorted(kind.iterdir())):
            target = "new" if number == 0 else "plates"
            shutil.copy(file, folder / "line" / target / f"{kind.name}-{file.name}")
    return folder


@pytest.fixture
def server(line: Path) -> Iterator[Server]:
    found = Server(line)
    yield found
    found.process.terminate()
    found.process.wait(20)


def look(page: Any, tmp_path: Path, name: str) -> None:
    """Pictures of the page, wide and narrow, light and dark; nothing may be wider than the screen."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width}"
            page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    faults = serious_faults(page)
    assert faults == [], f"{name}: {faults}"


def serious_faults(page: Any) -> list[str]:
    """What axe-core finds; nothing where it is not there (ANOMALYNCD_AXE: path of axe.min.js)."""
    script = os.environ.get("ANOMALYNCD_AXE")
    if not script:
        return []
    page.evaluate(Path(script).read_text(encoding="utf-8"))  # by the debugger, which the page's policy does not bind
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in grave]


def choose(page: Any, field: str, folder: str) -> None:
    box = page.locator(f'[data-field="{field}"]')
    box.get_by_role("button", name="Choose a folder").click()
    box.get_by_role("button", name=folder).click()
    box.get_by_role("button", name=f"Use “{folder}”").click()
    assert folder in box.locator(".chosen").inner_text()


def test_from_an_empty_workspace_to_predictions(page: Any, server: Server, line: Path, tmp_path: Path) -> None:
    page.context.set_default_timeout(90_000)
    page.goto(server.address)
    page.get_by_role("button", name="Try the demo").wait_for()
    look(page, tmp_path, "1-empty")

    page.get_by_role("link", name="New run").click()
    page.locator('[data-field="images"]').get_by_role("button", name="Choose a folder").click()
    page.locator('[data-field="images"] .folders').get_by_text("plates").click()
    page.locator('[data-field="images"] .samples img').first.wait_for()
    look(page, tmp_path, "2-picker")
    page.get_by_role("button", name="Use “plates”").click()
    assert page.locator("#run-name").input_value() == "plates"
    choose(page, "good-products", "good")
    page.locator("#kinds").fill("3")
    look(page, tmp_path, "3-new")
    page.locator("#start").click()

    page.locator('.job[data-state="running"] progress').wait_for()
    page.reload()
    page.locator('.job[data-state="running"]').wait_for()
    look(page, tmp_path, "4-progress")
    server.kill()
    page.locator("#message", has_text="connection is lost").wait_for()
    server.start()
    page.locator("#message", has_text="connection is lost").wait_for(state="hidden")
    page.locator("#to-run").wait_for(timeout=SLOW)
    look(page, tmp_path, "5-done")
    run = line / "work/plates"
    images = read_csv(run / "images.csv")
    assert len(images) == 12

    page.locator("#to-run").click()
    page.locator("table.classes").wait_for()
    told = page.locator("table.classes tbody tr").evaluate_all(
        "rows => rows.map(r => [+r.dataset.label, +r.cells[1].textContent])"
    )
    assert dict(map(tuple, told)) == images["label"].value_counts().to_dict()
    look(page, tmp_path, "6-run")

    page.locator("#to-report").click()
    page.locator("h1", has_text="plates").wait_for()
    page.screenshot(path=tmp_path / "7-report.png", full_page=True)
    page.locator("#studio a").click()

    page.locator("#to-review").click()
    page.wait_for_selector('main[aria-busy="false"]')
    inputs = 0
    labels = [label for label in sorted(read_csv(run / "regions.csv")["label"].unique()) if label > 0]
    for label in labels:
        field = page.locator(f'.card[data-label="{label}"] .name')
        field.click()
        page.keyboard.type(f"kind {label} of mine")
        page.keyboard.press("Enter")
        inputs += 2
        page.wait_for_timeout(300)
    assert inputs <= 2 * len(labels)
    if len(labels) > 1:
        page.locator(f'.card[data-label="{labels[-1]}"]').get_by_role("button", name="Merge").click()
        page.locator(f'#merge-choices [data-label="{labels[0]}"]').click()
        page.locator(f'.card[data-label="{labels[-1]}"]').wait_for(state="detached")
    page.locator("#apply").click()
    page.locator("#apply-title", has_text="What moved").wait_for(timeout=SLOW)
    assert read_names(run)[labels[0]] == f"kind {labels[0]} of mine"
    page.locator("#apply-dialog").get_by_role("button", name="Close").click()
    page.locator("#studio").click()

    page.locator("#to-predict").click()
    choose(page, "new-images", "new")
    page.locator("#start").click()
    page.locator("table.predicted tbody tr").first.wait_for(timeout=SLOW)
    assert page.locator("table.predicted tbody tr").count() == 3
    look(page, tmp_path, "8-predicted")


def a_second_later(route: Any) -> None:
    answer = route.fetch()
    state = answer.json()
    for run in state["runs"]:
        run["finished"] += 1
    route.fulfill(response=answer, json=state)


def test_the_demo_is_offered_and_can_be_stopped_and_resumed(page: Any, line: Path, tmp_path: Path) -> None:
    page.context.set_default_timeout(90_000)
    shutil.rmtree(line / "work", ignore_errors=True)
    server = Server(line)
    try:
        page.goto(server.address)
        page.get_by_role("button", name="Try the demo").click()
        page.locator('.job[data-state="running"] progress').wait_for()
        page.get_by_role("button", name="Stop demo").click()
        page.locator('.job[data-state="stopped"]').wait_for()
        page.get_by_role("button", name="Resume demo").click()
        page.locator('.job[data-state="running"]').wait_for()
        end = time.monotonic() + SLOW / 1000
        while not (line / "work/demo/run/report.html").exists() and time.monotonic() < end:
            page.wait_for_timeout(500)
        page.goto(f"{server.address}#/")
        page.locator('[data-run="demo"]').wait_for()
        look(page, tmp_path, "9-home")
        page.locator('[data-run="demo"]').click()
        page.locator("#share").press("End")  # the most sensitive
        assert "20 % of good images" in page.locator("#share-words").inner_text()
        look(page, tmp_path, "10-sensitivity")
        page.evaluate("document.getElementById('move-line').dataset.old = ''")
        page.route("**/api/state", a_second_later)  # as when a job of this run ends: the view is made anew
        page.locator("#move-line:not([data-old])").wait_for()
        page.unroute("**/api/state")
        assert "20 % of good images" in page.locator("#share-words").inner_text()  # what was entered stays
        page.locator("#move-line").click()
        page.locator("#to-run").wait_for(timeout=SLOW)
        assert "Learning" not in page.locator("#view").inner_text()  # nothing was learned anew
        page.locator("#to-run").click()
        page.locator("#share-words", has_text="20 % of good images").wait_for()
    finally:
        server.process.terminate()
        server.process.wait(20)
