"""The pictures of the pages in docs/pictures, made anew from the demo: DEMO is what `anomalyncd demo --out DEMO` left.

    python tools/pictures.py DEMO [--out docs/pictures] [--look DIR]

Works on a copy. --look DIR puts more pictures there, wide and narrow, light and dark, for somebody to look at.
Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
            self.page.screenshot(path=self.out / f"{name}.png")
        if self.look is not None:
            for size, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")):
                self.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
                self.page.emulate_media(color_scheme=scheme)
                self.ready()
                self.page.screenshot(path=self.look / f"{name}-{size[0]}-{scheme}.png")
            self.page.set_viewport_size(dict(zip(("width", "height"), WIDE, strict=True)))
            self.page.emulate_media(color_scheme="light")


def review(page: Any, camera: Camera, address: str) -> None:
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
    first = page.locator(".card").first.locator(".tile")
    for number in (2, 4, 7):
        first.nth(number).click()
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
    page.locator("#normal-images button", has_text="It has a defect").first.click()
    page.wait_for_function("document.getElementById('draw-image').naturalWidth > 0")
    box = page.locator("#draw-frame canvas").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.35 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()
    camera.take("review-draw", publish=True)
    page.keyboard.press("Escape")
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
            review(page, camera, address)
            page.goto(f"{address}#/runs/demo")
            page.locator("table.classes").wait_for()
            camera.take("studio", publish=True)
            page.goto(f"{address}#/runs/demo/ignore")
            page.locator("#ignore-pad").wait_for()
            camera.take("ignore")
            chromium.close()


if __name__ == "__main__":
    main()
