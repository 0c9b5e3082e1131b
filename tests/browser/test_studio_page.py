"""The studio as a person uses it, from an empty workspace to predictions; what is on disk afterwards."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.tables import read_csv, read_names

SLOW = 400_000  # milliseconds: jobs are processes of their own, on a machine that may be busy
TINY = ("--backbone", "tiny", "--set", "features.views=1")
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
KINDS = {
    "blue": ((220, 60, 20), 18, 18), "green": ((40, 200, 40), 6, 44), "red": ((30, 30, 220), 44, 6),
    "white": ((250, 250, 250), 30, 30),
}  # fmt: skip


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
    """Images that even a tiny network tells apart: four kinds, good ones, one of them among the images, some for later."""
    folder, rng = tmp_path_factory.mktemp("studio"), np.random.default_rng(0)

    def write(name: str, colour: tuple[int, int, int] | None, height: int = 0, width: int = 0) -> None:
        image = rng.integers(95, 105, (96, 96, 3), dtype=np.uint8)
        y, x = rng.integers(8, 40, 2)
        image[y : y + height, x : x + width] = colour or 0
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), image)

    for kind, (colour, height, width) in KINDS.items():
        for number in range(5):
            write(f"line/{'plates' if number else 'new'}/{kind}-{number}.png", colour, height, width)
    for number in range(6):
        write(f"line/good/{number}.png", None)
    write("line/plates/good.png", None)
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


def run_job(page: Any) -> None:
    """Wait for the job that the page shows, and go to its run."""
    page.locator("#to-run, .job[data-state=failed]").wait_for(timeout=SLOW)
    assert page.locator(".job[data-state=failed]").count() == 0, page.locator(".job").inner_text()
    page.locator("#to-run").click()
    page.locator("table.classes").wait_for()


def stored(run: Path) -> list[str]:
    """Kinds of the actions that the review has stored."""
    with closing(sqlite3.connect(run / "review.sqlite")) as log:
        return [kind for (kind,) in log.execute("SELECT kind FROM actions ORDER BY id")]


def until_stored(page: Any, run: Path, kind: str) -> None:
    end = time.monotonic() + 90
    while stored(run)[-1:] != [kind]:
        assert time.monotonic() < end, stored(run)
        page.wait_for_timeout(50)


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
    page.locator("#kinds").fill(str(len(KINDS)))
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
    assert len(images) == 4 * len(KINDS) + 1

    run_job(page)
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
    names = name_four_classes(page, run)
    merge_the_last_two(page, run, sorted(names))
    alarm = learn_a_false_alarm_as_normal(page, run, tmp_path)
    draw_what_was_missed(page, run, tmp_path)
    page.locator("#apply").click()
    page.locator("#apply-title", has_text="What moved").wait_for(timeout=SLOW)
    found = read_csv(run / "images.csv").set_index("image")
    assert read_names(run)[min(names)] == names[min(names)] and found.loc[alarm, "label"] == 0
    page.locator("#apply-dialog").get_by_role("button", name="Close").click()
    page.locator("#studio").click()

    page.locator("#share").press("End")  # the most sensitive
    page.locator("#share-words", has_text="20 % of good images").wait_for()
    page.locator("#move-line").click()
    run_job(page)
    page.locator("#share-words", has_text="20 % of good images may be called defects: as it is now").wait_for()
    assert read_names(run)[min(names)] == names[min(names)]
    assert len(read_csv(run / "regions.csv")) == len(FinishedRun(run).store.regions)

    page.locator("#to-predict").click()
    drop_files(page, "new-images", sorted((line / "line/new").iterdir()))
    page.locator("#start").click()
    page.locator("table.predicted tbody tr").first.wait_for(timeout=SLOW)
    assert page.locator("table.predicted tbody tr").count() == len(KINDS)
    look(page, tmp_path, "8-predicted")
    page.locator("#to-day").click()
    page.locator("h1").first.wait_for()

    page.goto(f"{server.address}#/new")
    choose(page, "images", "plates")
    choose(page, "good-products", "good")
    page.locator("#known-run").select_option("plates")
    page.locator("#run-name").fill("again")
    page.locator("#start").click()
    run_job(page)
    known = set(read_names(line / "work/again").values())
    assert {names[min(names)]} <= known  # its name was known before the run began

    page.locator("#to-ignore").click()
    page.locator(".pad img").evaluate("image => image.decode()")
    drag(page, page.locator("#ignore-pad"), (0.01, 0.01), (0.99, 0.99))
    page.locator("#ignore-words", has_text="would no longer be found").wait_for()
    assert page.locator("#start").is_enabled()
    look(page, tmp_path, "9-ignore")


def name_four_classes(page: Any, run: Path) -> dict[int, str]:
    """Each is named by a click and Enter, besides the letters."""
    labels = [label for label in sorted(read_csv(run / "regions.csv")["label"].unique()) if label > 0]
    names, inputs = {label: f"kind {label} of mine" for label in labels}, 0
    for label, name in names.items():
        page.locator(f'.card[data-label="{label}"] .name').click()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        inputs += 2
        page.locator("#status", has_text=name).wait_for(state="attached")
    assert len(labels) == 4 and inputs <= 8
    return names


def merge_the_last_two(page: Any, run: Path, labels: list[int]) -> None:
    page.locator(f'.card[data-label="{labels[-1]}"]').get_by_role("button", name="Merge").click()
    page.locator(f'#merge-choices [data-label="{labels[-2]}"]').click()
    page.locator(f'.card[data-label="{labels[-1]}"]').wait_for(state="detached")
    until_stored(page, run, "merge")


def learn_a_false_alarm_as_normal(page: Any, run: Path, tmp_path: Path) -> str:
    """All regions of an image; returns its name."""
    table = read_csv(run / "regions.csv")
    image = table.loc[table["label"] > 0, "image"].iloc[0]
    for row in table.index[table["image"] == image]:
        page.locator(f'main .tile[data-region="{row}"]').click()
    page.locator("#learn").click()
    page.locator("#lesson-keep:not([disabled])").wait_for(timeout=SLOW)
    assert "would score like normal ones" in page.locator("#lesson-text").inner_text()
    assert read_csv(run / "images.csv").set_index("image").loc[image, "label"] > 0  # nothing is changed yet
    look(page, tmp_path, "7-lesson")
    page.locator("#lesson-keep").click()
    page.locator("#lesson-dialog").wait_for(state="hidden", timeout=SLOW)
    assert read_csv(run / "images.csv").set_index("image").loc[image, "label"] == 0
    return str(image)


def draw_what_was_missed(page: Any, run: Path, tmp_path: Path) -> None:
    page.locator("#normal").click()
    page.locator("#normal-images figure").first.wait_for()
    page.locator('#normal-images [aria-label="good.png has a defect: draw it"]').click()
    page.locator("#draw-image").evaluate("image => image.decode()")
    drag(page, page.locator("#draw-frame canvas"), (0.3, 0.3), (0.6, 0.5))
    look(page, tmp_path, "7-draw")
    page.locator("#draw-add").click()
    page.locator("#draw-dialog").wait_for(state="hidden")
    until_stored(page, run, "draw")


def drag(page: Any, canvas: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a box, in shares of the canvas."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + start[0] * box["width"], box["y"] + start[1] * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + end[0] * box["width"], box["y"] + end[1] * box["height"], steps=4)
    page.mouse.up()


def drop_files(page: Any, field: str, files: list[Path]) -> None:
    """Drop files on a field, as from the desktop."""
    content = [[file.name, base64.b64encode(file.read_bytes()).decode()] for file in files]
    dropped = page.evaluate_handle(
        """files => {
          const dropped = new DataTransfer();
          for (const [name, text] of files)
            dropped.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, { type: "image/png" }));
          return dropped;
        }""",
        content,
    )
    page.locator(f'[data-field="{field}"]').dispatch_event("drop", {"dataTransfer": dropped})
    page.locator(f'[data-field="{field}"] .chosen', has_text="dropped").wait_for()


def a_second_later(route: Any) -> None:
    answer = route.fetch()
    state = answer.json()
    for run in state["runs"]:
        run["finished"] += 1
    route.fulfill(response=answer, json=state)


def test_another_folder_is_looked_for_beside_the_one_that_was_chosen(page: Any, server: Server, line: Path) -> None:
    for name in ("plates", "good"):
        shutil.copytree(line / "line" / name, line / "line/deep/inside" / name)
    try:
        page.goto(f"{server.address}#/new")
        box = page.locator('[data-field="images"]')
        box.get_by_role("button", name="Choose a folder").click()
        for folder in ("deep", "inside", "plates"):
            box.locator(".folders").get_by_text(folder).click()
        box.get_by_role("button", name="Use “plates”").click()
        choose(page, "good-products", "good")
        chosen = page.locator('[data-field="good-products"] .chosen').inner_text()
        assert chosen == "line / deep / inside / good"
    finally:
        shutil.rmtree(line / "line/deep")


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
