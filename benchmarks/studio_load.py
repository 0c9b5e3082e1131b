"""How fast the studio opens: a workspace of many runs, and the review of one run with many regions.

    python benchmarks/studio_load.py --work DIR [--runs 50] [--regions 20000]

Makes one small run, copies it, and one copy with longer tables, starts `anomalyncd studio` on them and asks for what the
page asks for. Says the seconds of each request, cold and warm, those of the processor, and the server's largest memory.
Where Chromium and playwright are there, also how long it takes until a person sees the page, and how many pictures it holds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

from anomalyncd import AnomalyNCD

SIDE, KINDS = 64, 4


def make_run(folder: Path, n_images: int, seed: int) -> None:
    """A real run of tiny images with one mask each."""
    rng = np.random.default_rng(seed)
    images, masks = [], []
    for index in range(n_images):
        image = rng.integers(90, 110, (SIDE, SIDE, 3), dtype=np.uint8)
        mask = np.zeros((SIDE, SIDE), bool)
        y, x = rng.integers(4, 24, 2)
        height, width = ((20, 20), (4, 36), (36, 4), (10, 10))[index % KINDS]
        mask[y : y + height, x : x + width] = True
        image[mask] = rng.integers(0, 255, 3)
        images.append(image)
        masks.append(mask)
    model = AnomalyNCD(KINDS + 1, backbone="tiny", features={"views": 1}, learn={"epochs": 1, "bank_views": 2})
    model.fit(images, masks=masks, run=folder)


def enlarge(source: Path, folder: Path, n_regions: int) -> None:
    """A copy whose tables have many more images, of one region each; crops are those of the source, again and again."""
    shutil.copytree(source, folder)
    for name in ("images.csv", "regions.csv", "manifest.csv"):
        head, *rows = (source / name).read_text(encoding="utf-8").splitlines()
        place = head.split(",").index("image")
        lines = [head]
        for number in range(n_regions):
            cells = rows[number % len(rows)].split(",")
            cells[place] = f"image_{number:06d}.png"
            lines.append(",".join(cells))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def cpu_seconds(pid: int) -> float:
    """That a process has used so far, on Linux: on a busy machine it says more than the clock does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def look(browser: str, address: str) -> dict[str, object]:
    """Seconds until a page shows what it has, and pictures that it holds before and after it is scrolled through."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"page": "playwright is not installed"}
    held = "[...document.images].filter(i => i.complete && i.naturalWidth).length"
    with sync_playwright() as play, play.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
        page.goto("about:blank")
        begun = time.perf_counter()
        page.goto(address)
        page.wait_for_selector('main[aria-busy="false"]')
        page.wait_for_function("document.querySelectorAll('.run, .tile').length > 0")
        shown = time.perf_counter() - begun
        page.wait_for_function(f"{held} > 0")
        seen = time.perf_counter() - begun
        first = page.evaluate(held)
        height = page.evaluate("document.documentElement.scrollHeight")
        for place in range(0, height, 800):
            page.evaluate(f"scrollTo(0, {place})")
            page.wait_for_timeout(100)
        return {
            "page": address.split("/", 3)[3] or "studio", "shown": round(shown, 2), "first_picture": round(seen, 2),
            "pictures": first, "pictures_scrolled": page.evaluate(held), "images": page.evaluate("document.images.length"),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--regions", type=int, default=20_000)
    options = parser.parse_args()
    workspace = options.work / "workspace"
    if not (options.work / "seed").exists():
        make_run(options.work / "seed", 12, 0)
    if not workspace.exists():
        enlarge(options.work / "seed", workspace / "large", options.regions)
        for number in range(options.runs - 1):
            shutil.copytree(options.work / "seed", workspace / f"run-{number:02d}")
    command = [
        sys.executable,
        "-m",
        "anomalyncd",
        "studio",
        workspace,
        "--images",
        options.work,
        "--port",
        "0",
        "--no-browser",
    ]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        root = address[0].rstrip("/")

        def ask(path: str) -> dict[str, object]:
            start, used = time.perf_counter(), cpu_seconds(server.pid)
            with urllib.request.urlopen(root + path, timeout=600) as answer:
                size = len(answer.read())
            seconds, cpu = time.perf_counter() - start, cpu_seconds(server.pid) - used
            return {"path": path, "seconds": round(seconds, 3), "cpu": round(cpu, 2), "kB": size // 1000}

        ask("/")
        print(json.dumps({"start": round(time.perf_counter() - begun, 2), "cpu": cpu_seconds(server.pid)}), flush=True)
        review = "/runs/large/review"
        paths = [
            "/api/state", "/api/state", "/runs/large/picture", f"{review}/", f"{review}/api/state", f"{review}/api/state",
            f"{review}/api/classes/1/regions?limit=24", f"{review}/api/hints", f"{review}/crops/0",
        ]  # fmt: skip
        for path in paths:
            print(json.dumps(ask(path)), flush=True)
        if browser := shutil.which("chromium"):
            for page in ("/", f"{review}/"):
                print(json.dumps(look(browser, root + page)), flush=True)
        status = Path(f"/proc/{server.pid}/status")
        if status.exists():
            found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
            print(json.dumps({"largest_memory_mb": int(found[1]) // 1000 if found else None}))
        server.terminate()


if __name__ == "__main__":
    main()
