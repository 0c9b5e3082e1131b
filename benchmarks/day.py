"""`anomalyncd day` on a month: how long the page takes to make and to open, its figures against pandas.

python benchmarks/day.py --rows 100000 [--keep DIR]    30 days; opened in Chromium; figures against pandas; PDF
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from anomalyncd.day.html import write_day
from anomalyncd.day.source import read_table

NAMES = {
    1: "scratch",
    2: "hole",
    3: "dent",
    4: "stain",
    5: "crack, long",
    6: "print missing",
    7: "class 7",
    -1: "unknown",
}
SHARES = (0.022, 0.013, 0.009, 0.006, 0.004, 0.003, 0.001, 0.004)


def write_month(folder: Path, rows: int, seed: int = 0) -> Path:
    """A table as `watch` writes it, of 30 days; on the last day scratches are commoner from ten to twelve, at camera B."""
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.uniform(0, 30 * 86_400, rows))
    times = pd.Timestamp("2026-10-20") + pd.to_timedelta(seconds, unit="s")
    labels = rng.choice([0, *NAMES], rows, p=[1 - sum(SHARES), *SHARES])
    camera = rng.choice(["cameraA", "cameraB"], rows)
    late = (times >= times[-1].normalize() + pd.Timedelta(hours=10)) & (
        times < times[-1].normalize() + pd.Timedelta(hours=12)
    )
    labels[late & (camera == "cameraB") & (rng.random(rows) < 0.15)] = 1
    (folder / "files").mkdir(parents=True)
    for label in NAMES:
        image = rng.integers(90, 110, (240, 320, 3), dtype=np.uint8)
        cv2.circle(image, (160 + 12 * label, 120), 30, (40 * (label % 6), 60, 220), -1)
        cv2.imwrite(str(folder / "files" / f"{label}.png"), image)
    defective = labels != 0
    images = pd.DataFrame(
        {
            "seq": np.arange(1, rows + 1),
            "id": [f"{k:032x}" for k in range(rows)],
            "time": times.strftime("%Y-%m-%dT%H:%M:%S.000+01:00"),
            "image": [f"{name}/{k:06d}.png" for k, name in enumerate(camera)],
            "file": [str(folder / "files" / f"{label}.png") for label in labels],
            "status": "ok",
            "message": "",
            "width": 320,
            "height": 240,
            "label": labels,
            "class_name": [NAMES.get(label, "normal") for label in labels.tolist()],
            "probability": rng.uniform(0.5, 1, rows).round(6),
            "score": rng.gamma(4, 0.1, rows).round(6),
            "brightness": rng.normal(120, 4, rows).round(3),
            "contrast": rng.normal(30, 2, rows).round(3),
            "foreign": rng.beta(2, 8, rows).round(6),
            "lot": [f"L{int(s // 28_800):03d}" for s in seconds],
            "model": "0123456789ab",
        }
    )
    n = int(defective.sum())
    regions = images.loc[defective, ["seq", "image", "label", "class_name"]].assign(
        region=0, x=rng.integers(0, 200, n), y=rng.integers(0, 150, n), width=40, height=40,
        area=rng.lognormal(6, 0.6, n).round(2),
    )  # fmt: skip
    table = folder / "line1.csv"
    images.to_csv(table, index=False)
    regions.to_csv(folder / "line1_regions.csv", index=False)
    return table


def page(rows: int, keep: Path | None) -> list[str]:
    """Make the page of a month's last day, open it, and count again with pandas alone."""
    problems = []
    with tempfile.TemporaryDirectory() as place:
        table = write_month(Path(place), rows)
        started = time.perf_counter()
        read = read_table(table)
        figures = write_day(read, Path(place) / "day.html", by=["lot"], pdf=Path(place) / "day.pdf")
        made = time.perf_counter() - started
        problems += against_pandas(table, figures)
        html = Path(place) / "day.html"
        print(f"  {rows} rows over 30 days: page and PDF made in {made:.1f} s, {html.stat().st_size / 1e6:.2f} MB")
        seconds = opened(html, keep)
        print("  no Chromium: not opened" if seconds is None else f"  opened in Chromium in {seconds:.2f} s")
        if seconds is not None and seconds > 2:
            problems.append(f"opens in {seconds:.2f} s")
        if keep is not None:
            for name in ("day.html", "day.pdf"):
                shutil.copy(Path(place) / name, keep / name)
    return problems


def against_pandas(table: Path, figures: object) -> list[str]:
    """The figures of the page, computed again in other words."""
    images, regions = pd.read_csv(table), pd.read_csv(table.with_name("line1_regions.csv"))
    images["day"] = images["time"].str[:10]
    images["hour"] = images["time"].str[11:13] + ":00"
    today = images[images["day"] == images["day"].max()]
    defects = today[today["label"] != 0]
    wrong = []

    def same(what: str, found: object, expected: object) -> None:
        if found != expected:
            wrong.append(f"{what}: {found} is not pandas' {expected}")

    same("images", figures.n_images, len(today))
    same("defects", figures.n_defects, len(defects))
    same(
        "kinds",
        {k.look.name: k.count for k in figures.kinds if k.count},
        defects["class_name"].value_counts().to_dict(),
    )
    own = regions[regions["seq"].isin(today["seq"])].groupby("class_name")["area"].sum()
    areas = (own / own.sum()).round(9).to_dict()
    same("areas", {k.look.name: round(k.area, 9) for k in figures.kinds if k.count}, areas)
    earlier = images[images["day"] == sorted(images["day"].unique())[-2]]
    shares = (today["class_name"].value_counts() / len(today)).sub(
        earlier["class_name"].value_counts() / len(earlier), fill_value=0
    )
    same(
        "changes since the day before",
        {k.look.name: round(k.change, 12) for k in figures.kinds},
        shares.drop("normal").round(12).to_dict(),
    )
    same("of unknown kinds before", figures.n_unknown_before, int(earlier["label"].eq(-1).sum()))
    hours = pd.to_numeric(today["hour"].str[:2])
    shift = pd.cut(hours, [-1, 5, 13, 21, 23], labels=["22–06", "06–14", "14–22", "late"]).astype(str)
    keys = {
        "folder": today["image"].str.split("/").str[0], "hour": today["hour"], "lot": today["lot"], "day": images["day"],
        "shift": shift.replace("late", "22–06"),
    }  # fmt: skip
    same("groupings", {grouping.by for grouping in figures.groupings}, set(keys))
    for grouping in figures.groupings:
        rows, key = images if grouping.by == "day" else today, keys[grouping.by]
        sizes = rows.groupby(key).size()
        same(f"sizes by {grouping.by}", dict(zip(grouping.names, grouping.sizes, strict=True)), sizes.to_dict())
        for what, chart, is_one in (
            ("defects", grouping.defects, rows["label"].ne(0)), ("unknown", grouping.unknown, rows["label"].eq(-1)),
        ):  # fmt: skip
            shares, p = is_one.groupby(key).mean(), is_one.mean()
            width = 3 * (p * (1 - p) / sizes) ** 0.5
            for name, found, expected in (
                ("shares", chart.shares, shares), ("upper limits", chart.high, (p + width).clip(0, 1)),
                ("lower limits", chart.low, (p - width).clip(0, 1)),
            ):  # fmt: skip
                same(f"{name} of {what} by {grouping.by}", found.round(12).tolist(), expected.round(12).tolist())
    print(f"  {len(figures.groupings)} groupings, {len(figures.kinds)} kinds: {len(wrong)} figures differ from pandas'")
    return wrong


def opened(html: Path, keep: Path | None) -> float | None:
    """Seconds from nothing to a page that is drawn, the best of three; None where there is no Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as drive:
        browser = drive.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with closing(browser):
            best = 1e9
            for scheme in ("light", "dark", "light"):
                tab = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
                said: list[str] = []
                tab.on("console", lambda message, said=said: said.append(message.text))
                started = time.perf_counter()
                tab.goto(html.as_uri(), wait_until="load")
                tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                best = min(best, time.perf_counter() - started)
                assert not said, said
                if keep is not None:
                    tab.screenshot(path=str(keep / f"day-{scheme}.png"), full_page=True)
                tab.close()
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder for the page, the PDF and pictures of the screen")
    given = parser.parse_args()
    problems = page(given.rows, given.keep)
    for problem in problems:
        print(f"FAILED: {problem}")
    print("failed" if problems else "all as promised")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
