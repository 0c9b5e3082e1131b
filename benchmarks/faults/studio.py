"""What strangers, other sites, slow clients and kills can do to `studio`. Each returns what went wrong."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from .web import Command

OUTSIDE = (
    "..", "../private", "line/../../private", "/etc", "/etc/passwd", "link", "link/secret.png", "..\\private", "C:\\", "~",
    "loop", "a\0b", "x" * 5000, "line/..", "%2e%2e", "....//private", "\u202e", "line\n..",
)  # fmt: skip
GIVEN = {"number": "1", "image": "0", "row": "0", "run": "plate", "folder": "some", "table": "line.csv"}


def workspace(run: Path, line: Path, work: Path) -> Path:
    """work/ with a run and a table, pictures/ to choose from with links that lead out, private/ that nobody may see."""
    place = work / "studio"
    shutil.copytree(run, place / "work/plate")
    shutil.copytree(line / "images", place / "pictures/line")
    shutil.copy(run / "images.csv", place / "work/line.csv")
    (place / "private").mkdir()
    shutil.copy(next((line / "images").rglob("*.png")), place / "private/secret.png")
    (place / "pictures/link").symlink_to(place / "private")
    (place / "pictures/loop").symlink_to(place / "pictures/loop")
    return place


def open_studio(place: Path, **given: Any) -> Command:
    """The studio of such a place."""
    return Command("studio", place / "work", "--images", place / "pictures", **given)


def routes(web: Command) -> list[tuple[str, str]]:
    """Method and address of every route that the schema tells, with something in the place of each name; and pages."""
    paths = web.ask("/api/openapi.json").json["paths"]
    found = [
        (method.upper(), re.sub(r"{(\w+)}", lambda part: GIVEN[part[1]], path))
        for path, methods in paths.items()
        for method in methods
    ]
    pages = (
        "/",
        "/runs/plate/report",
        "/runs/plate/review/",
        "/runs/plate/review/api/state",
        "/days/line.csv",
        "/jobs/1/day",
    )
    return found + [("GET", page) for page in pages]


def refused_everywhere(place: Path) -> list[str]:
    """Every route, asked for other sites, under another name of this machine, and without the token: none does anything."""
    failures, before = [], _files(place)
    with open_studio(place, token="a-token-of-my-own") as web:
        known, tried = routes(web), 0
        for method, path in known:
            body = b"{}" if method == "POST" else None
            kind = "image/png" if path.startswith("/api/uploads/") else "application/json"
            for headers, wanted in (
                ({"Origin": "http://evil.example"}, (403,)),
                ({"Sec_Fetch_Site": "cross-site"}, (403,)),
                ({"Authorization": "Bearer another"}, (401,)),
            ):
                web.token, token = (None, web.token) if "Authorization" in headers else (web.token, web.token)
                answer = web.ask(path, body, kind=kind, **headers)
                web.token, tried = token, tried + 1
                if answer.status not in wanted:
                    failures.append(f"{method} {path} with {headers}: {answer.status} instead of {wanted[0]}")
            if body is not None and web.ask(path, body, kind="text/plain").status != 415:
                failures.append(f"POST {path} as text is not refused")
    if changed := _files(place) ^ before:
        failures.append(f"requests that were refused left {sorted(changed)[:3]}")
    print(f"  {len(known)} routes, {tried} requests of strangers", flush=True)
    return failures


def places_outside(place: Path, rng: np.random.Generator) -> list[str]:
    """Places that lead out of the roots, in every field that is a place or a name: nothing is told or made of them."""
    failures, counts = [], Counter[int]()
    secret = (place / "private/secret.png").read_bytes()
    before = _files(place / "private") | _files(place / "pictures")
    with open_studio(place) as web:
        web.post_plain("/api/uploads", {"name": "some"})
        for path in OUTSIDE:
            told = {"root": 0, "path": path}
            sent = quote(path, safe="")
            asked: list[Callable[[], Any]] = [
                lambda told=told: web.post_plain("/api/runs", {"images": told}),
                lambda told=told: web.post_plain("/api/runs", {"images": {"root": 0, "path": "line"}, "known": told}),
                lambda told=told: web.post_plain("/api/runs", {"images": {"root": 0, "path": "line"}, "normal": told}),
                lambda path=path: web.post_plain(
                    "/api/runs", {"images": {"root": 0, "path": "line"}, "known_run": path}
                ),
                lambda told=told: web.post_plain("/api/runs/plate/predict", {"images": told, "maps": told}),
                lambda sent=sent: web.ask(f"/api/folders?root=0&path={sent}"),
                lambda sent=sent: web.ask(f"/folders/picture?root=0&path={sent}%2Fsecret.png&side=900"),
                lambda sent=sent: web.ask(f"/days/{sent}"),
                lambda sent=sent: web.ask(f"/runs/{sent}/report"),
                lambda sent=sent: web.ask(f"/api/runs/{sent}"),
                lambda sent=sent: web.ask(f"/api/uploads/{sent}?name=a.png", secret, kind="image/png"),
                lambda sent=sent: web.ask(f"/api/uploads/some?name={sent}.png", secret, kind="image/png"),
            ]
            for number in rng.permutation(len(asked)).tolist():
                answer = asked[number]()
                counts[answer.status] += 1
                if answer.status == 0 or answer.status >= 500:
                    failures.append(f"{path[:40]!r}: {answer.status} {answer.body[:80]!r}")
                if str(place).encode() in answer.body:
                    failures.append(f"{path[:40]!r}: an answer tells a place of the server")
                if answer.status == 200 and answer.headers.get("content-type") == "image/jpeg":
                    failures.append(f"{path[:40]!r}: a picture of another place")
        failures += [f"a job was made: {job['title']!r}" for job in web.ask("/api/state").json["jobs"]]
    if changed := (_files(place / "private") | _files(place / "pictures")) ^ before:
        failures.append(f"outside of the workspace there is {sorted(changed)[:3]}")
    inside = {name.split("/")[0] for name in _files(place)}
    if inside - {"work", "pictures", "private"}:
        failures.append(f"beside the workspace there is {sorted(inside)}")
    print(f"  {len(OUTSIDE)} places outside: {dict(sorted(counts.items()))}", flush=True)
    return failures


def sent_bombs(place: Path, contents: Mapping[str, Callable[[Path], Any]], most_mb: float) -> list[str]:
    """Images that are made to harm, dropped four at a time: kept or refused in words, without a flood of memory."""
    failures = []
    with open_studio(place) as web:
        folder = web.post_plain("/api/uploads", {"name": "bombs"}).json["path"].split("/")[-1]
        before = web.peak_mb

        def send(name: str) -> tuple[str, Any]:
            content = contents[name](Path())
            return name, web.ask(f"/api/uploads/{folder}?name=a.png", content, kind="image/png", timeout=600)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(send, contents))
        counts = Counter(answer.status for _, answer in answers)
        failures = [f"{name}: {a.status} {a.body[:80]!r}" for name, a in answers if a.status not in (201, 413, 415)]
        if web.peak_mb > before + most_mb:
            failures.append(f"{web.peak_mb:.0f} MB, {before:.0f} before")
        print(f"  {len(answers)} images: {dict(counts)}; {web.peak_mb:.0f} MB, {before:.0f} before", flush=True)
    kept = list((place / "work/dropped" / folder).iterdir())
    if len(kept) != counts[201]:
        failures.append(f"{counts[201]} were kept, {len(kept)} files are there")
    return failures


def killed_uploads(place: Path, image: bytes, count: int, rng: np.random.Generator) -> list[str]:
    """SIGKILL while images are sent: what was answered is there whole, and nothing half is taken for an image."""
    failures, kept = [], 0
    for number in range(count):
        with open_studio(place) as web:
            folder = web.post_plain("/api/uploads", {"name": f"kill {number}"}).json["path"].split("/")[-1]
            answered: list[str] = []

            def send(web: Command = web, folder: str = folder, answered: list[str] = answered) -> None:
                for each in range(1000):
                    answer = web.ask(f"/api/uploads/{folder}?name={each}.png", image, kind="image/png")
                    if answer.status != 201:
                        return
                    answered.append(answer.json["name"])

            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(send)
                time.sleep(float(rng.uniform(0.05, 0.5)))
                web.process.kill()
                web.process.join()
                sending.result()
        there = place / "work/dropped" / folder
        kept += len(answered)
        for name in answered:
            if (there / name).read_bytes() != image:
                failures.append(f"{name} was answered, but it is not whole")
        half = [f.name for f in there.iterdir() if not f.name.startswith(".") and f.read_bytes() != image]
        failures += [f"{name} is half an image" for name in half]
    print(f"  {count} kills, {kept} images answered before them", flush=True)
    return failures


def _files(folder: Path) -> set[str]:
    own = (name for name in folder.rglob("*") if ".studio" not in name.parts and "review.lock" not in name.name)
    return {os.fsdecode(path.relative_to(folder)) for path in own}
