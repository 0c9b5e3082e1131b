"""The pictures of the pages in docs/pictures, made anew from the demo: DEMO is what `anomalyncd demo --out DEMO` left.

    python tools/pictures.py DEMO [--out docs/pictures] [--look DIR]

Works on a copy. --look DIR puts more pictures there, wide and narrow, light and dark, for somebody to look at.
Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

MISSED, AROUND = "scratch/001.png", 4  # a defect that the demo takes for a false alarm; pixels
WIDE, NARROW = (1280, 860), (390, 844)
NAMES = {
    "crack": "crack",
    "dent": "dent",
    "hole": "hole",
    "scratch": "scratch",
    "stain": "stain",
    "water": "water mark",
}


@contextmanager
def studio(workspace: Path) -> Iterator[str]:
    """Address of a studio of its own process."""
    said = [sys.executable, "-m", "anomalyncd", "studio", str(workspace), "--images", str(workspace), "--port", "0"]
    with subprocess.Popen([*said, "--no-browser"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            server.terminate()


def make_job(workspace: Path) -> None:
    """As if the studio had made the demo itself: then it can move its line."""
    job = workspace / ".studio/jobs/0001"
    job.mkdir(parents=True)
    order = {"kind": "demo", "run": "demo", "title": "demo", "arguments": ["demo"], "created": 0}
    (job / "job.json").write_text(json.dumps(order))
    (job / "begun").touch()
    (job / "end.json").write_text('{"code": 0}')


class Camera:
    """Takes pictures of a page; look : folder for those that nobody publishes"""

    def __init__(self, page: Any, out: Path, look: Path | None) -> None:
        self.page, self.out, self.look = page, out, look

    def ready(self) -> None:
        """Until every picture that is on the screen is there."""
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_function(
            "[...document.images].filter(i => i.checkVisibility() && i.getBoundingClientRect().top < innerHeight && i.src)"
            ".every(i => i.complete)"
        )

    def take(self, name: str, *, publish: bool = False) -> None:
        self.ready()
        if publish:
            file = self.out / f"{name}.png"
            self.page.screenshot(path=file)
            Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)  # a third of the size
        if self.look is not None:
            for size, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")):
                self.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
                self.page.emulate_media(color_scheme=scheme)
                self.ready()
                self.page.screenshot(path=self.look / f"{name}-{size[0]}-{scheme}.png")
            self.page.set_viewport_size(dict(zip(("width", "height"), WIDE, strict=True)))
            self.page.emulate_media(color_scheme="light")


def review(page: Any, camera: Camera, address: str, demo: Path) -> None:
    """Name, select, look at one, draw one, apply."""
    page.goto(f"{address}runs/demo/review/")
    page.wait_for_selector('main[aria-busy="false"]')
    for card in page.locator(".card").all():
        tile = card.locator(".tile").first
        if int(card.get_attribute("data-label")) < 1 or not tile.count():
            continue
        folder = (tile.get_attribute("title") or "").split("/")[0]
        field = card.locator(".name")
        field.fill(NAMES.get(folder, folder))
        field.press("Enter")
        page.wait_for_function(
            "name => document.querySelector('#status').textContent.includes(name)", arg=NAMES.get(folder, folder)
        )
    alarms = page.locator('.card:not([data-label="0"]) .tile[title^="good/"]')
    for number in range(alarms.count()):
        alarms.nth(number).click()
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(5, 5)
    camera.take("review", publish=True)
    page.locator("#false-alarm").click()
    page.locator("#selection").wait_for(state="hidden")
    page.locator(".card").nth(1).locator(".tile").nth(1).press("Enter")
    camera.take("review-image", publish=True)
    page.keyboard.press("Escape")
    page.locator("#normal").click()
    page.locator("#normal-images figure").first.wait_for()
    camera.take("review-normal")
    page.locator(f'#normal-images [aria-label^="{MISSED}"]').click()
    page.wait_for_function("document.getElementById('draw-image').naturalWidth > 0")
    rows, columns = np.nonzero(cv2.imread(str(demo / "line/masks" / MISSED), cv2.IMREAD_GRAYSCALE))
    height, width = cv2.imread(str(demo / "line/images" / MISSED)).shape[:2]
    frame = page.locator("#draw-frame canvas").bounding_box()

    def at(x: float, y: float) -> tuple[float, float]:
        return frame["x"] + x / width * frame["width"], frame["y"] + y / height * frame["height"]

    page.mouse.move(*at(columns.min() - AROUND, rows.min() - AROUND))
    page.mouse.down()
    page.mouse.move(*at(columns.max() + AROUND, rows.max() + AROUND), steps=5)
    page.mouse.up()
    page.locator("#draw-target").select_option(label="scratch")
    camera.take("review-draw", publish=True)
    page.locator("#draw-add").click()
    page.locator("#draw-dialog").wait_for(state="hidden")
    page.locator("#apply").click()
    page.locator("#apply-title", has_text="What moved").wait_for(timeout=300_000)
    camera.take("review-moved", publish=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--look", type=Path)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if options.look:
        options.look.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "studio"
        shutil.copytree(options.demo, workspace / "demo")
        make_job(workspace)
        with studio(workspace) as address, sync_playwright() as play:
            chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = chromium.new_page(viewport=dict(zip(("width", "height"), WIDE, strict=True)), bypass_csp=True)
            page.set_default_timeout(60_000)
            camera = Camera(page, options.out, options.look)
            page.goto(address)
            page.locator('[data-run="demo"]').wait_for()
            camera.take("home")
            page.goto(f"{address}#/new")
            page.locator("#start").wait_for()
            camera.take("new")
            review(page, camera, address, options.demo)
            page.goto(f"{address}#/runs/demo")
            page.locator("table.classes").wait_for()
            page.set_viewport_size({"width": WIDE[0], "height": 1190})
            camera.take("studio", publish=True)
            page.goto(f"{address}#/runs/demo/ignore")
            page.locator("#ignore-pad").wait_for()
            camera.take("ignore")
            chromium.close()


if __name__ == "__main__":
    main()
