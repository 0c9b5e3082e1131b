"""`anomalyncd watch` on bad days: kills, half-written and replaced files, a full disk, a dead receiver; latency and memory.

    python benchmarks/watch.py kills --images 2000 --kills 20   each content once in the table, at a webhook and by MQTT
    python benchmarks/watch.py disk                             a disk that is full for a while, a receiver that is away
    python benchmarks/watch.py latency --images 60              from the moment a file is closed to its row, with PatchCore
                                                                and the default network; --work DIR keeps the run
    python benchmarks/watch.py memory --images 10000            of the process, over many images

Needs Linux. `kills` needs mosquitto (Debian: apt-get install mosquitto); where there is none it leaves MQTT out and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from faults.disk import small_disk
from faults.scenes import recipes, small_line
from faults.server import ForkServer

from anomalyncd.demo import make_line

TOPIC = "line/defects"
PACE = ("--every", 0.1, "--settle", 0.4, "--quiet")
SIDE = 64
LITTLE = ("--set", f"crop.size={SIDE}", "--set", f"model.input_size={SIDE}", "--set", f"model.image_size={SIDE}")


def picture(rng: np.random.Generator) -> bytes:
    """A PNG that no other is equal to; every second one has a bright spot."""
    image = rng.integers(90, 110, (SIDE, SIDE, 3), dtype=np.uint8)
    if rng.random() < 0.5:
        y, x, height, width = *rng.integers(4, 30, 2), *rng.integers(6, 30, 2)
        image[y : y + height, x : x + width] = rng.integers(150, 255, 3)
    return cv2.imencode(".png", image)[1].tobytes()


def id_of(name: str, content: bytes) -> str:
    """As docs/every-day.md tells it: of the name and the content."""
    return hashlib.sha256(f"{name}\0{hashlib.sha256(content).hexdigest()}".encode()).hexdigest()[:32]


@dataclass
class Receiver:
    """Whoever is told.

    taken : id → how often it came
    counted : ids in the order in which a receiver counts them that goes by docs/every-day.md: what has a `seq` up to the
        highest so far was there before
    broken : id → how often it was taken, but the answer was broken off; refused : how many requests got a no
    """

    taken: Counter[str] = field(default_factory=Counter)
    counted: list[str] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    highest: int = 0

    def take(self, message: dict[str, Any]) -> None:
        self.taken[message["id"]] += 1
        if message["seq"] > self.highest:
            self.highest = message["seq"]
            self.counted.append(message["id"])

    @property
    def again(self) -> int:
        """Deliveries of what was there already."""
        return sum(self.taken.values()) - len(self.taken)

    @property
    def again_by_kills(self) -> int:
        """Those that the receiver did not bring about itself by breaking off."""
        return sum(max(0, count - 1 - self.broken[id]) for id, count in self.taken.items())


@contextlib.contextmanager
def webhook(rng: np.random.Generator, trouble: float = 0.0) -> Iterator[tuple[Receiver, str]]:
    """A real HTTP server; trouble : share of requests that get a 503, and as many that are taken but not answered."""
    receiver, lock = Receiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                draw = rng.random()
                if draw < trouble:
                    receiver.refused += 1
                else:
                    message = json.loads(body)
                    assert message["id"] == self.headers["Idempotency-Key"]
                    receiver.take(message)
                    receiver.broken[message["id"]] += draw < 2 * trouble
            if trouble <= draw < 2 * trouble:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.send_response(503 if draw < trouble else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # clients are killed all the time
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_port}/defects"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def broker(work: Path) -> Iterator[tuple[Receiver, str] | None]:
    """A real mosquitto on loopback with a subscriber; None where it is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        yield None
        return
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = work / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    process = subprocess.Popen([program, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    receiver = Receiver()
    client = Client(CallbackAPIVersion.VERSION2)
    listens = threading.Event()
    client.on_connect = lambda *_: client.subscribe(TOPIC, qos=2)
    client.on_subscribe = lambda *_: listens.set()
    client.on_message = lambda _client, _data, message: receiver.take(json.loads(message.payload))
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                client.connect("127.0.0.1", port)
                break
            time.sleep(0.1)
        client.loop_start()
        listens.wait(60)
        yield receiver, f"mqtt://127.0.0.1:{port}/{TOPIC}"
    finally:
        client.disconnect()
        client.loop_stop()
        process.terminate()
        process.wait(30)


class Line:
    """Writes images into a folder, in a thread: in any order and pace, half at first, under another name, over each other.

    A file is replaced only once its content is in the table: one that is gone before it was whole for long enough is
    seen by nobody, and need not be.
    """

    def __init__(self, folder: Path, count: int, rng: np.random.Generator, table: Path, pause: float) -> None:
        self.folder, self.count, self.rng, self.table, self.pause = folder, count, rng, table, pause
        self.expected: dict[str, str] = {}  # id → name
        self.kinds: Counter[str] = Counter()
        self.done = threading.Event()
        folder.mkdir(parents=True)
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        rng, left = self.rng, self.count
        names = [f"{'' if k % 3 else f'camera{k % 2}/'}{k:05d}.png" for k in rng.permutation(self.count)]
        written: dict[str, str] = {}  # name → id of its content
        halves: list[tuple[float, Path, bytes]] = []
        while left or halves:
            for place in [k for k, (when, _, _) in enumerate(halves) if time.monotonic() > when][::-1]:
                _, path, rest = halves.pop(place)
                with path.open("ab") as file:
                    file.write(rest)
            if not left:
                time.sleep(0.05)
                continue
            content, kind = (
                picture(rng),
                str(rng.choice(["plain", "renamed", "half", "replaced"], p=[0.4, 0.2, 0.2, 0.2])),
            )
            name = names[left - 1]
            if kind == "replaced":
                there = self._in_table(written)
                name = str(rng.choice(there)) if there else name
                kind = kind if there else "plain"
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            if kind in ("renamed", "replaced"):
                hidden = path.with_name(f".{path.name}.part")
                hidden.write_bytes(content)
                hidden.rename(path)
            elif kind == "half":
                cut = int(rng.integers(1, len(content)))
                path.write_bytes(content[:cut])
                halves.append((time.monotonic() + float(rng.exponential(1.0)), path, content[cut:]))
            else:
                path.write_bytes(content)
            self.expected[id_of(name, content)] = name
            if kind != "half":
                written[name] = id_of(name, content)
            self.kinds[kind] += 1
            left -= 1
            time.sleep(float(rng.exponential(self.pause)))
        self.done.set()

    def _in_table(self, written: dict[str, str]) -> list[str]:
        if not written or not self.table.exists():
            return []
        ids = {row["id"] for row in rows_of(self.table)}
        return [name for name, id in written.items() if id in ids][-200:]


def rows_of(table: Path) -> list[dict[str, str]]:
    """Whole lines of a CSV that may be growing."""
    text = table.read_text()
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def kills(server: ForkServer, run: Path, work: Path, images: int, n_kills: int, seed: int, pause: float) -> list[str]:
    """Kill `watch` again and again while files arrive; returns what went wrong, a line each."""
    rng = np.random.default_rng(seed)
    table, folder, problems, killed = work / "table.csv", work / "arriving", [], 0
    with webhook(np.random.default_rng(seed + 1), 0.02) as (hooked, url), broker(work) as mqtt:
        line = Line(folder, images, rng, table, pause)
        command = ["watch", run, folder, "--out", table, "--webhook", url, *PACE]
        if mqtt is None:
            print("  no mosquitto is installed: MQTT was not tried")
        else:
            command += ["--mqtt", mqtt[1]]
        started = time.perf_counter()
        while killed < n_kills or not line.done.is_set():
            share = len(line.expected) / images
            wait = images * pause / n_kills
            limit = float(rng.uniform(0.5, 1.5) * max(wait, 2.0)) if killed < n_kills else 20.0
            ended = server.run(*command, kill_after=limit)
            killed += ended.killed and share < 1
            if not ended.killed:
                problems.append(f"ended by itself: {ended.problem or ended.output}")
                break
            if share >= 1 and line.done.is_set():
                break
        ended = server.run(*command, "--once", limit=1200)
        if ended.code:
            problems.append(f"the last call: {ended.problem or ended.output}")
        seconds = time.perf_counter() - started
        time.sleep(1.0)
        rows, regions = rows_of(table), Counter(row["seq"] for row in rows_of(work / "table_regions.csv"))
        places = [("table", [row["id"] for row in rows]), ("webhook", hooked.counted)]
        places += [] if mqtt is None else [("MQTT", mqtt[0].counted)]
        for name, found in places:
            missing, surplus = line.expected.keys() - set(found), set(found) - line.expected.keys()
            problems += [f"{name}: {len(missing)} contents missing"] * bool(missing)
            problems += [f"{name}: {len(surplus)} contents that were never written whole"] * bool(surplus)
            problems += [f"{name}: {len(found) - len(set(found))} contents twice"] * (len(found) > len(set(found)))
        if mqtt is not None and mqtt[0].again:
            problems.append(f"MQTT: {mqtt[0].again} messages came again")
        problems += [f"unreadable: {row['image']}" for row in rows if row["status"] != "ok"][:3]
        if [int(row["seq"]) for row in rows] != list(range(1, len(rows) + 1)):
            problems.append("table: numbers are not 1, 2, 3 …")
        wrong = [row["image"] for row in rows if regions[row["seq"]] != int(row["n_regions"] or 0)]
        problems += [f"regions: {len(wrong)} images with more or fewer than they have"] * bool(wrong)
        kinds = ", ".join(f"{count} {kind}" for kind, count in line.kinds.items())
        print(f"  {images} contents ({kinds}), {killed} kills, {seconds:.0f} s: {len(rows)} rows", flush=True)
        print(
            f"  webhook: {len(hooked.taken)} ids, {len(hooked.counted)} counted; {hooked.refused} refused at first; "
            f"{hooked.again} came again, {hooked.again_by_kills} of them after a kill, else because it had broken off"
        )
        if mqtt is not None:
            print(f"  MQTT: {len(mqtt[0].taken)} ids, {mqtt[0].again} came again")
    return problems


def disk(
    server: ForkServer,
    run: Path,
    work: Path,
    images: int,
    seed: int,
    seconds: float = 25,
    kinds: Sequence[str] = ("csv", "sqlite"),
) -> list[str]:
    """Fill the disk of the table under `watch`, and take the receiver away; make room, bring it back."""
    rng, problems = np.random.default_rng(seed), []
    folder = work / "here"
    folder.mkdir()
    expected = {}
    for k in range(images):
        content = picture(rng)
        (folder / f"{k:04d}.png").write_bytes(content)
        expected[id_of(f"{k:04d}.png", content)] = k
    for kind in kinds:
        with small_disk(work / f"disk-{kind}") as small, socket.create_server(("127.0.0.1", 0)) as nobody:
            table = small.path / f"table.{kind}"
            dead = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
            nobody.close()
            small.limit(200_000)
            watching = ["watch", run, folder, "--out", table, *PACE]
            first = server.run(*watching, "--webhook", dead, kill_after=seconds)
            told = [line.rpartition("/")[2] for line in first.output.splitlines() if "cannot be written" in line]
            stuck = rows_in(table)
            if not first.killed or len(stuck) == images:
                problems.append(f"{kind}: no full disk was met: {first.output[-300:]}")
            # The same again, but now somebody makes room while it runs.
            timer = threading.Timer(seconds, small.limit, [100_000_000])
            timer.start()
            second = server.run(*watching, "--webhook", dead, "--once", limit=600)
            timer.join()
            with webhook(rng) as (hooked, url):
                last = server.run(*watching, "--webhook", url, "--once", limit=600)
            found = rows_in(table)
            print(
                f"  {kind}: {len(stuck)} of {images} rows until the disk was full ({told[0][:90] if told else 'not told'}),"
            )
            print(
                f"    {len(found)} after, {len(set(found))} different; webhook {len(hooked.counted)}, {hooked.again} again"
            )
            if (
                second.code
                or last.code
                or sorted(found) != sorted(expected)
                or sorted(hooked.counted) != sorted(expected)
            ):
                problems.append(f"{kind}: {second.output[-300:]} {last.output[-300:]}")
    return problems


def rows_in(table: Path) -> list[str]:
    """Ids in a table."""
    if not table.exists():
        return []
    if table.suffix == ".csv":
        return [row["id"] for row in rows_of(table)]
    with contextlib.closing(sqlite3.connect(table)) as db, contextlib.suppress(sqlite3.OperationalError):
        return [id for (id,) in db.execute("SELECT id FROM images")]
    return []  # just made


@contextlib.contextmanager
def watching(*command: object) -> Iterator[subprocess.Popen[bytes]]:
    """`watch` as a process of its own, ended by a signal."""
    arguments = [sys.executable, "-m", "anomalyncd", "watch", *map(str, command)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def real_run(work: Path) -> tuple[Path, Path]:
    """(images, run) of the demo line with PatchCore and the default network; those that are there are taken."""
    line = make_line(work / "line", n_per_class=6, n_normal=40, n_combined=0, kinds=["hole", "scratch"])
    images, run = line / "images", work / "run"
    given = ("--normal", images / "good", "--classes", 3, "--out", run, "--quiet")
    subprocess.run([sys.executable, "-m", "anomalyncd", "discover", *map(str, (images, *given))], check=True)
    return images, run


def latency(work: Path, images: int, seed: int, pause: float = 2.0) -> None:
    """Write one file after the other and see when its row is there; beside it, what the network needs for it."""
    from anomalyncd.data.dataset import Sample
    from anomalyncd.data.images import read_image
    from anomalyncd.run.finished import FinishedRun

    source, run = real_run(work)
    rng, predictor, own = np.random.default_rng(seed), FinishedRun(run).predictor(), []
    files = [path.read_bytes() for path in sorted(source.rglob("*.png"))]
    for k in range(14):
        started = time.perf_counter()
        for found in predictor.extract([Sample("one", read_image(files[int(rng.integers(len(files)))]))]):
            predictor.classify(found)
        own += [time.perf_counter() - started] * (k >= 4)  # the first ones warm up
    del predictor
    with tempfile.TemporaryDirectory() as place:
        folder, table = Path(place) / "arriving", Path(place) / "table.sqlite"
        folder.mkdir()
        closed: dict[str, float] = {}
        with watching(run, folder, "--out", table, "--quiet"):
            for k in range(images + 1):
                name = f"{k:05d}.png"
                (folder / name).write_bytes(files[int(rng.integers(len(files)))])
                closed[name] = time.time()
                while k == 0 and not rows_in(table):  # the first waits for the process to start
                    time.sleep(0.1)
                time.sleep(float(rng.uniform(0.5, 1.5)) * pause)
            while len(rows_in(table)) < images + 1:
                time.sleep(0.2)
        with contextlib.closing(sqlite3.connect(table)) as db:
            times = dict(db.execute("SELECT image, time FROM images"))
    del closed["00000.png"]
    waits = np.array([datetime.fromisoformat(times[name]).timestamp() - when for name, when in closed.items()])
    print(f"  {images} images, one every {pause:.2f} s: closed → row p50 {np.percentile(waits, 50):.2f} s, "
          f"p99 {np.percentile(waits, 99):.2f} s; network and all for one image p50 {np.percentile(own, 50):.2f} s, "
          f"p99 {np.percentile(own, 99):.2f} s; load {os.getloadavg()[0]:.1f}")  # fmt: skip


def memory(run: Path, work: Path, images: int, seed: int) -> list[str]:
    """Memory of the process while many images come and are moved away."""
    rng, folder, table = np.random.default_rng(seed), work / "arriving", work / "table.csv"
    folder.mkdir()
    marks = [images // 10, images // 4, images // 2, images]
    sizes: list[float] = []
    with watching(
        run, folder, "--out", table, "--move", work / "kinds", "--every", 0.05, "--settle", 0, "--quiet"
    ) as process:
        written = 0
        while len(sizes) < len(marks):
            waiting = sum(1 for _ in folder.iterdir())
            for _ in range(min(64 - waiting, images - written)):
                hidden = folder / f".{written}.png"
                hidden.write_bytes(picture(rng))
                hidden.rename(folder / f"{written:06d}.png")
                written += 1
            time.sleep(0.1)
            if process.poll() is not None:
                return ["ended by itself"]
            if written - waiting >= marks[len(sizes)]:
                # Anonymous: without what libraries have mapped, which the system takes away and gives back as it likes.
                status = Path(f"/proc/{process.pid}/status").read_text()
                own, all_of_it = (int(status.split(name)[1].split()[0]) / 1000 for name in ("RssAnon:", "VmRSS:"))
                sizes.append(own)
                print(f"  {written - waiting} images: {own:.0f} MB anonymous, {all_of_it:.0f} MB resident", flush=True)
    growth = sizes[-1] - sizes[0]
    return [f"grew by {growth:.0f} MB"] if growth > 20 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "disk", "latency", "memory"))
    parser.add_argument("--images", type=int)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.05, help="kills: mean seconds from one file to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="latency: folder that keeps the images and the run")
    given = parser.parse_args()
    images = given.images or {"kills": 2000, "disk": 150, "latency": 60, "memory": 10_000}[given.what]
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        if given.what == "latency":
            latency(given.work or work, images, given.seed)
            return 0
        line = small_line(work / "line")
        with ForkServer() as server:
            made = server.run(*recipes(line)[2].command(work / "run"), *LITTLE)
            if made.code:
                raise SystemExit(made.output)
            if given.what == "kills":
                problems = kills(server, work / "run", work, images, given.kills, given.seed, given.pause)
            elif given.what == "disk":
                problems = disk(server, work / "run", work, images, given.seed)
        if given.what == "memory":
            problems = memory(work / "run", work, images, given.seed)
    for problem in problems:
        print(f"FAILED: {problem}")
    print("failed" if problems else "all as promised")
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
