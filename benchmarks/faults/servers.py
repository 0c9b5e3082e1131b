"""What strangers, slow clients, stale pages and crashes can do to `serve` and `review`. Each returns what went wrong."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from anomalyncd.run.finished import FinishedRun

from .scenes import content, differences
from .web import HOST, Answer, Command, Web, half_body, half_head, nothing, slow_crowd

OTHER_SITES = (
    {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "http://evil.example"}, {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
)  # fmt: skip
SERVED_BYTES = 32_000_000  # of a request, by default
OWN_TOKEN = "a token of my own"
ROUNDING = 1e-3  # of numbers in an answer: a batch has whatever images wait
SLOWEST = 20.0  # seconds for a good answer beside a crowd, on a busy machine


def other_sites(web: Web, paths: Sequence[str]) -> list[str]:
    """Requests that a browser sends for pages of other sites, to addresses that tell something or make work."""
    failures = []
    for path in paths:
        if (own := web.ask(path, Sec_Fetch_Site="same-origin").status) != 200:
            failures.append(f"{path} of its own site: {own}")
        for headers in OTHER_SITES:
            if (found := web.ask(path, **headers).status) != 403:
                failures.append(f"{path} for another site ({headers}): {found} instead of 403")
    return failures


def many_pictures(web: Command, count: int) -> list[str]:
    """So many overlays of large images at once: they may take no more memory than three would."""
    before = web.peak_mb
    if (one := web.ask(f"/overlay/{count}", timeout=600)).status != 200:
        return [f"an overlay: {one.status} {one.body[:100]!r}"]
    alone = web.peak_mb
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda image: web.ask(f"/overlay/{image}", timeout=600), range(count)))
    slowest = max(answer.seconds for answer in answers)
    print(
        f"  review takes {before:.0f} MB, with one overlay {alone:.0f} MB, with {count} at once {web.peak_mb:.0f} MB; "
        f"the slowest after {slowest:.1f} s",
        flush=True,
    )
    failures = [f"overlay: {a.status} {a.body[:100]!r}" for a in answers if a.status != 200]
    if web.peak_mb > before + 3 * (alone - before):
        failures.append(f"{count} overlays took {web.peak_mb:.0f} MB, one took {alone:.0f} MB")
    return failures


def bombs(web: Command, contents: Mapping[str, Callable[[Path], Any]], good: bytes, most_mb: float) -> list[str]:
    """Images that are made to harm, four at a time: each is refused in words or classed, and takes no flood of memory."""

    def send(name: str) -> tuple[str, Answer] | None:
        sent = contents[name](Path())
        if len(sent) > SERVED_BYTES:
            return None
        return name, web.ask("/v1/predict", sent, kind="application/octet-stream", timeout=600)

    before = web.peak_mb
    with ThreadPoolExecutor(4) as pool:
        answers = [sent for sent in pool.map(send, contents) if sent is not None]
    counts = Counter(answer.status for _, answer in answers)
    print(
        f"  {len(answers)} images: {dict(counts)}; serve took {before:.0f} MB before, {web.peak_mb:.0f} MB at most",
        flush=True,
    )
    failures = [f"{name}: {a.status} {a.body[:100]!r}" for name, a in answers if a.status not in (200, 422)]
    if web.peak_mb > most_mb:
        failures.append(f"took {web.peak_mb:.0f} MB")
    if (after := web.ask("/v1/predict", good, kind="image/png")).status != 200:
        failures.append(f"a good image after them: {after.status}")
    return failures


def too_many_pictures(web: Web, count: int, images: int) -> list[str]:
    """More overlays than may wait: some are told in words to come back, and others are answered meanwhile."""
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(web.ask, f"/overlay/{number % images}", timeout=600) for number in range(count)]
        other = web.ask("/api/version")
        answers = [one.result() for one in asked]
    counts = Counter(answer.status for answer in answers)
    print(f"  {count} overlays at once: {dict(counts)}; /api/version meanwhile after {other.seconds:.2f} s", flush=True)
    failures = [f"/api/version beside many pictures: {other.status}"] if other.status != 200 else []
    if sorted(counts) != [200, 503]:
        failures.append(f"{count} overlays: {dict(counts)}, expected some 200 and some 503")
    return failures + [f"503 without words: {a.body[:100]!r}" for a in answers if a.status == 503 and not _is_told(a)]


def _is_told(answer: Any) -> bool:
    return "later" in answer.detail and "Retry-After" in {name.title() for name in answer.headers}


def slow_connections(
    web: Web, count: int, good: Sequence[Callable[[], Any]], body_path: str, seconds: float = 15.0
) -> list[str]:
    """A crowd of slow connections of each kind for so many seconds; all that good clients ask must be answered with 200."""
    failures = []
    for name, start in (("half heads", half_head), ("half bodies", half_body(body_path)), ("nothing", nothing)):
        answers = []
        with slow_crowd(web, count, start) as crowd:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                answers += [ask() for ask in good]
            opened = crowd.opened
        wrong = [answer for answer in answers if answer.status != 200]
        slowest = max(answer.seconds for answer in answers)
        print(
            f"  {name}: {count} held, {opened} opened in {seconds:.0f} s; {len(answers) - len(wrong)} of {len(answers)} "
            f"good requests answered, the slowest after {slowest:.2f} s",
            flush=True,
        )
        failures += [f"{name}: a good request got {a.status} {a.body[:80]!r}" for a in wrong[:3]]
        if slowest > SLOWEST:
            failures.append(f"{name}: a good request took {slowest:.0f} s")
    return failures


def half_requests_end(web: Web, body_path: str, limit: float) -> list[str]:
    """A head and a body that come a byte at a time: the server must not wait for them for ever."""
    failures = []
    for name, start in (("head", half_head), ("body", half_body(body_path)), ("nothing", nothing)):
        with closing(socket.create_connection((HOST, web.port), timeout=0.5)) as line:
            line.sendall(start(web))
            started, ended = time.monotonic(), False
            while not ended and time.monotonic() < started + limit:
                try:
                    ended = line.recv(4096) is not None  # closed, or told that it was too slow
                except TimeoutError:
                    with suppress(OSError):
                        line.sendall(b"x" if start is not nothing else b"")
                except OSError:
                    ended = True
            if not ended:
                failures.append(f"half a request ({name}) is waited for longer than {limit:.0f} s")
    return failures


def stale_actions(web: Web) -> list[str]:
    """Someone acts on what is no longer so: a conflict that says so and how things stand; nothing is stored."""
    failures: list[str] = []
    old = web.ask("/api/state").json
    labels = [card["label"] for card in old["classes"] if card["label"] > 0]
    sent = {"key": f"stale-{time.monotonic_ns()}", "version": old["version"], "table": old["table"]}
    first = {**sent, "action": {"kind": "name", "label": labels[0], "name": "seen first"}}
    done = [web.post("/api/actions", **first) for _ in range(2)]
    if [a.status for a in done] != [200, 200] or done[0].json["id"] != done[1].json["id"]:
        failures.append(f"the same request twice: {[a.status for a in done]}")
    now = web.ask("/api/state").json
    late = [
        {"kind": "name", "label": labels[1], "name": "too late"}, {"kind": "merge", "from": labels[1], "into": labels[0]},
        {"kind": "split", "label": labels[1]}, {"kind": "move", "regions": [0], "to": None},
        {"kind": "false_alarm", "regions": [0]}, {"kind": "draw", "image": 0, "strokes": [{"points": [[0, 0]]}], "to": None},
        {"kind": "undo", "action": now["undo"]["id"]},
    ]  # fmt: skip
    for action in late:
        answer = web.act(old, **action)
        if answer.status != 409 or answer.json.get("state") != web.ask("/api/state").json:
            failures.append(f"{action['kind']} by someone who saw version {old['version']}: {answer.status}")
    after = web.ask("/api/state").json
    if after["version"] != now["version"]:
        failures.append(f"version {now['version']} became {after['version']} by actions on an old state")
    if web.act(after, **late[0]).status != 200:
        failures.append("an action on the present state is refused")
    return failures


def late_answers(run: Path, image: bytes, count: int) -> list[str]:
    """Requests that get 504: the service must not say at its end that all were answered."""
    with Command("serve", run, "--timeout", 0.01) as web:
        answers = [web.ask("/v1/predict", image, kind="image/png") for _ in range(count)]
        code, said = web.end()
    late = sum(a.status == 504 for a in answers)
    print(f"  {late} of {count} requests got 504; at the end: {_last_words(said)!r}", flush=True)
    if not late or code:
        return [f"{late} requests were late, exit code {code}: {said}"]
    if f"{late} too late (504)" not in said or "Everything accepted was answered" in said:
        return [f"after {late} answers 504 it says: {_last_words(said)}"]
    return []


def _last_words(said: str) -> str:
    return next((line for line in said.splitlines() if "accepted was" in line), "nothing")


def told_secrets(commands: Sequence[str], run: Path, work: Path) -> list[str]:
    """A token of one's own in what is printed, and places of this machine in answers about a run that is damaged."""
    failures = []
    for command in commands:
        hurt = Path(shutil.copytree(run, work / f"hurt-{command}"))
        with Command(command, hurt, token=OWN_TOKEN) as web:
            paths = ["/v1/model", "/metrics", "/openapi.json", "/nowhere"]
            if command == "review":
                paths = [
                    "/api/state",
                    "/api/version",
                    "/api/moves",
                    "/api/classes/1/regions?limit=500",
                    "/crops/0",
                    "/overlay/0",
                ]
            bodies = [web.ask(path).body for path in paths]
            for name in ("regions.csv", "manifest.csv", "images.csv") if command == "review" else ():
                (hurt / name).write_bytes(b"image,nothing\n" if name != "images.csv" else b"")
                bodies += [web.ask(path).body for path in paths]
                bodies.append(web.post("/api/apply", version=0).body)
                shutil.copy(run / name, hurt / name)
            _, said = web.end()
        told = [body[:200] for body in bodies if any(str(place).encode() in body for place in (hurt, work, run.parent))]
        failures += [f"{command}: an answer tells a place of the server: {body!r}" for body in told[:3]]
        if OWN_TOKEN in said or OWN_TOKEN.replace(" ", "%20") in said:
            failures.append(f"{command} prints the user's own token")
    return failures


def killed_applies(start: Path, count: int, rng: np.random.Generator, work: Path) -> list[str]:
    """SIGKILL in the middle of an apply: the next start knows whether the tables were written."""
    failures: list[str] = []
    moments = {"before the tables": 0, "after them, before the log": 0, "after the log": 0}
    longest = 0.0
    for number in range(count):
        run = Path(shutil.copytree(start, work / f"apply-{number}"))
        with Command("review", run) as web:
            state = web.ask("/api/state").json
            label = next(card["label"] for card in state["classes"] if card["n_regions"])
            region = web.ask(f"/api/classes/{label}/regions").json["regions"][0]["id"]
            n_regions = sum(card["n_regions"] for card in state["classes"])
            # A person confirms what is there: nothing in the labels tells afterwards whether that was applied.
            state = web.act(state, kind="move", regions=[region], to=label).json["state"]
            if is_drawn := number % 2 == 1:  # and another time draws what was missed
                strokes = [{"points": [[0.3, 0.3], [0.6, 0.3], [0.6, 0.6], [0.3, 0.6]]}]
                state = web.act(state, kind="draw", image=0, strokes=strokes, to=label).json["state"]
            begun = time.monotonic()
            web.post("/api/apply", version=state["version"])
            delay = float(rng.uniform(0, longest)) if number % 3 == 2 and longest else None
            while time.monotonic() < begun + (60 if delay is None else delay):
                if delay is None and (run / "corrections.csv").exists():
                    longest = max(longest, time.monotonic() - begun)
                    break
            web.process.kill()
            web.process.join()
        done = any((run / folder / "corrections.csv").exists() for folder in ("", "commit"))
        with closing(sqlite3.connect(run / "review.sqlite")) as log:
            logged = log.execute("SELECT kind FROM actions ORDER BY id DESC").fetchone()[0]
        moment = list(moments)[0 if not done else 1 if logged == "applying" else 2]
        moments[moment] += 1
        with Command("review", run) as web:
            state = web.ask("/api/state").json
        expected = (0, True) if done else (1 + is_drawn, False)
        found = FinishedRun(run)
        if len(found.store.regions) != n_regions + (is_drawn and done):
            failures.append(f"killed {moment}: {len(found.store.regions)} regions, {n_regions} before the drawing")
        if (state["n_actions"], state["applied"] > 0) != expected:
            failures.append(
                f"killed {moment}: {state['n_actions']} corrections wait, applied {state['applied']}, {state['notice']!r}"
            )
        shutil.rmtree(run)
    print(f"  {count} applies killed: " + ", ".join(f"{n} {moment}" for moment, n in moments.items()), flush=True)
    if not moments["after them, before the log"]:
        failures.append("no kill came between the tables and the log")
    return failures


def alike(answer: bytes, other: bytes) -> bool:
    """Whether two answers of the service are the same but for rounding: images that come together share a pass."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, float) and isinstance(b, float):
            return abs(a - b) <= ROUNDING
        return bool(a == b)

    return same(json.loads(answer), json.loads(other))


def killed_services(start: Path, image: bytes, count: int, rng: np.random.Generator, work: Path) -> list[str]:
    """SIGKILL of a service that four clients ask: the run stays as it was, and all answers are those of the next one."""
    run = Path(shutil.copytree(start, work / "service"))
    before, n_answered, cut = content(run), 0, 0
    failures: list[str] = []
    expected: bytes | None = None
    for _ in range(count):
        with Command("serve", run) as web:
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(web.ask, "/v1/predict", image, kind="image/png") for _ in range(12)]
                time.sleep(float(rng.uniform(0, 1.5)))
                web.process.kill()
                answers = [one.result() for one in asked]
            web.process.join()
        whole = [answer.body for answer in answers if answer.status == 200]
        n_answered, cut = n_answered + len(whole), cut + len(answers) - len(whole)
        expected = expected or (whole[0] if whole else None)
        failures += [
            f"another answer than before: {body[:100]!r}" for body in whole if not alike(body, expected or body)
        ]
        failures += [f"status {a.status} of a service that is killed" for a in answers if a.status not in (0, 200)]
    with Command("serve", run) as web:
        last = web.ask("/v1/predict", image, kind="image/png")
    if last.status != 200 or (expected is not None and not alike(last.body, expected)):
        failures.append(f"the next start answers {last.status} {last.body[:100]!r}")
    failures += [f"the run of a killed service: {wrong}" for wrong in differences(content(run), before)]
    print(f"  {count} services killed: {n_answered} requests were answered, all alike, {cut} cut off", flush=True)
    return failures


def repeated_region(run: Path, work: Path) -> list[str]:
    """A row of regions.csv that is there twice: one line that names the table, not the log of the review."""
    hurt = Path(shutil.copytree(run, work / "repeated"))
    rows = (hurt / "regions.csv").read_text().splitlines()
    with Command("review", hurt) as web:
        state = web.ask("/api/state").json
        web.act(state, kind="name", label=1, name="dent")
    (hurt / "regions.csv").write_text("\n".join([*rows, rows[1], ""]))
    try:
        with Command("review", hurt):
            return ["a table with a region that is there twice is taken for whole"]
    except RuntimeError as error:
        told = str(error)
    is_right = "regions.csv" in told and "once" in told and "log of a review" not in told and "Traceback" not in told
    return [] if is_right else [f"a region that is there twice: {told.strip()}"]


def enlarge_images(run: Path, work: Path, side: int) -> Path:
    """The run, with images of side × side pixels in the place of its own; they are written once and linked."""
    large = Path(shutil.copytree(run, work / "large"))
    (work / "pictures").mkdir()
    source = work / "pictures" / "large.png"
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(source, compress_level=1)
    with (large / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row |= {"file": str(work / "pictures" / f"{number}.png"), "height": str(side), "width": str(side)}
        os.link(source, row["file"])
    with (large / "manifest.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return large
