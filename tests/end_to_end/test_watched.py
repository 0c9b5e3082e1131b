"""`watch` that is killed while files arrive, half-written and over each other, its disk full or its model changed."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import pytest
from fastapi.testclient import TestClient

from anomalyncd.review.app import make_app

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.scenes import recipes, small_line
from faults.server import ForkServer

from watch import PACE, disk, kills, rows_of, watching

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForkServer, Path]]:
    place = tmp_path_factory.mktemp("watched")
    with ForkServer() as server:
        assert server.run(*recipes(small_line(place / "line"))[2].command(place / "run")).code == 0
        yield server, place / "run"


def test_each_content_once_whenever_it_is_killed(made: tuple[ForkServer, Path], tmp_path: Path) -> None:
    pytest.importorskip("paho")
    assert kills(*made, tmp_path, images=40, n_kills=3, seed=0, pause=0.1) == []


def test_a_full_disk_and_a_dead_receiver_lose_nothing(made: tuple[ForkServer, Path], tmp_path: Path) -> None:
    assert disk(*made, tmp_path, images=60, seed=0, seconds=8, kinds=("csv",)) == []


class Arriving:
    """Copies of the run's images, each a little different, renamed into a folder until it is told to stop."""

    def __init__(self, images: Path, folder: Path) -> None:
        self.expected: list[str] = []  # names
        self._images, self._folder, self._stop = sorted(images.rglob("*.png")), folder, threading.Event()
        folder.mkdir()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        pictures = [cv2.imread(str(path)) for path in self._images]
        for number in itertools.count():
            image = pictures[number % len(pictures)].copy()
            image[0, 0] = number % 256, number // 256, 0
            cv2.imwrite(str(self._folder / ".new.png"), image)
            (self._folder / ".new.png").rename(self._folder / f"{number:05d}.png")
            self.expected.append(f"{number:05d}.png")
            if self._stop.wait(0.2):
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_new_model_is_taken_up_while_images_arrive_and_none_is_missed(
    made: tuple[ForkServer, Path], tmp_path: Path
) -> None:
    server, run = made[0], tmp_path / "run"
    shutil.copytree(made[1], run)
    line, table = made[1].parent / "line" / "images", tmp_path / "table.csv"

    def until(found: Callable[[list[dict[str, str]]], bool]) -> list[dict[str, str]]:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            assert process.poll() is None, "watch has ended"
            if table.exists() and found(rows := rows_of(table)):
                return rows
            time.sleep(0.05)
        raise AssertionError("nothing of the kind came")

    arriving = Arriving(line, tmp_path / "arriving")
    with watching(run, tmp_path / "arriving", "--out", table, *PACE) as process:
        first = until(lambda rows: len(rows) > 3)[0]["model"]
        more = small_line(tmp_path / "more", seed=1)
        assert server.run("update", run, more / "images", "--quiet").code == 0
        until(lambda rows: rows[-1]["model"] != first)
        with TestClient(make_app(run), base_url="http://127.0.0.1:8765") as client:
            labels = [card["label"] for card in client.get("/api/state").json()["classes"] if card["label"] > 0]
            for label in labels:
                seen = client.get("/api/state").json()
                action = {"kind": "name", "label": label, "name": f"kind {label} by hand"}
                request = {
                    "key": f"the-name-of-{label}",
                    "version": seen["version"],
                    "table": seen["table"],
                    "action": action,
                }
                assert client.post("/api/actions", json=request).status_code == 200
            version = client.get("/api/state").json()["version"]
            assert client.post("/api/apply", json={"key": "the-apply-of-all", "version": version}).status_code == 202
            while client.get("/api/version").json()["job"]["state"] == "running":
                time.sleep(0.05)
            assert client.get("/api/version").json()["job"]["state"] == "done"
        until(lambda rows: rows[-1]["class_name"].endswith("by hand"))
        arriving.stop()
        rows = until(lambda rows: len(rows) >= len(arriving.expected))
    assert sorted(row["image"] for row in rows) == arriving.expected
    assert [int(row["seq"]) for row in rows] == list(range(1, len(rows) + 1))
    assert {row["status"] for row in rows} == {"ok"} and len({row["model"] for row in rows}) >= 2
