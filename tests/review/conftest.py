"""A small run that really learned something, made once, and clients for its review."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient

from anomalyncd import AnomalyNCD
from anomalyncd.discovery.relearn import Move
from anomalyncd.progress import Silent
from anomalyncd.review.app import make_app
from anomalyncd.run.finished import read_corrections
from anomalyncd.run.folder import CLASS_NAMES, CORRECTIONS, REGIONS_TABLE, RunFolder
from anomalyncd.run.tables import read_csv, read_names, to_csv

KINDS = 3
EACH = 6


@pytest.fixture(scope="session")
def fitted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 images with one defect each, of three kinds, and two without; sorted into normal and three classes."""
    folder = tmp_path_factory.mktemp("review")
    rng = np.random.default_rng(0)
    images, masks = [], []
    for index in range(KINDS * EACH + 2):
        image = rng.integers(90, 110, (64, 64, 3), dtype=np.uint8)
        mask = np.zeros((64, 64), bool)
        y, x = rng.integers(4, 24, 2)
        kind = index // EACH
        if kind < KINDS:
            height, width = ((20, 20), (4, 36), (36, 4))[kind]
            mask[y : y + height, x : x + width] = True
            image[mask] = ((250, 250, 250), (200, 20, 20), (10, 10, 60))[kind]
        images.append(folder / "images" / f"{index:03d}.png")
        masks.append(folder / "masks" / f"{index:03d}.png")
        for path, picture in ((images[-1], image), (masks[-1], mask.astype(np.uint8) * 255)):
            path.parent.mkdir(exist_ok=True)
            cv2.imwrite(str(path), picture)
    model = AnomalyNCD(KINDS + 1, backbone="tiny", features={"views": 2}, learn={"epochs": 3})
    model.fit(images, masks=masks, run=folder / "run")
    return folder / "run"


@pytest.fixture
def run(fitted_run: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(fitted_run, tmp_path / "run"))


def obey(
    run: Path, labels: Any, fixed: Any, names: Any, progress: Silent, *, also: dict[str, bytes], drawn: Any = ()
) -> list[Move]:
    """In the place of `relearn`: does what is asked and learns nothing. What was asked is in `obey.asked`."""
    obey.asked.append((dict(labels), set(fixed), dict(names)))
    with progress.task("Learning", 3) as advance:
        for _ in range(3):
            advance()
    table, known = read_csv(run / REGIONS_TABLE), read_names(run) | dict(names)
    keys = list(zip(table["image"], table["region"], strict=True))
    before = table["label"].tolist()
    table["label"] = after = [labels.get(key, label) for key, label in zip(keys, before, strict=True)]
    table["class_name"] = [known.get(label, f"class {label}") for label in after]
    held = {*fixed, *read_corrections(run)}
    placed = table.loc[[key in held for key in keys], ["image", "region", "label"]]
    RunFolder(run).write_text(CORRECTIONS, to_csv(placed))
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(table))
    kept = {0, *after}
    RunFolder(run).write_json(CLASS_NAMES, {str(k): name for k, name in known.items() if k in kept})
    for name, content in also.items():
        RunFolder(run).write(name, content)
    return [Move(*key, b, a) for key, b, a in zip(keys, before, after, strict=True) if a != b]


obey.asked = []  # type: ignore[attr-defined]


class Client:
    """A browser in miniature: remembers the state it saw last."""

    numbers = itertools.count()

    def __init__(self, http: Any) -> None:
        self.http = http
        self.state: dict[str, Any] = {}
        self.look()

    def close(self) -> None:
        """End the server."""
        self.http.__exit__(None, None, None)

    def look(self) -> dict[str, Any]:
        self.state = self.http.get("/api/state").json()
        return self.state

    def send(self, kind: str, *, key: str | None = None, **arguments: Any) -> Any:
        """The answer to an action by someone who has seen `self.state`."""
        content = {
            "key": key or f"test-key-{next(self.numbers)}", "version": self.state["version"], "table": self.state["table"],
            "action": {"kind": kind, **arguments},
        }  # fmt: skip
        return self.http.post("/api/actions", json=content)

    def act(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """An action that must succeed."""
        answer = self.send(kind, **arguments)
        assert answer.status_code == 200, answer.text
        self.state = answer.json()["state"]
        return self.state

    def undo(self) -> dict[str, Any]:
        return self.act("undo", action=self.state["undo"]["id"])

    def regions(self, label: int, **query: Any) -> list[int]:
        answer = self.http.get(f"/api/classes/{label}/regions", params={"limit": 500, "order": "image", **query})
        assert answer.status_code == 200, answer.text
        return [region["id"] for region in answer.json()["regions"]]

    @staticmethod
    def asked() -> Any:
        """What `relearn` was last asked for."""
        return obey.asked[-1]  # type: ignore[attr-defined]

    def counts(self) -> dict[int, int]:
        return {card["label"]: card["n_regions"] for card in self.state["classes"]}

    def names(self) -> dict[int, str]:
        return {card["label"]: card["name"] for card in self.state["classes"]}


Open = Callable[..., Client]


@pytest.fixture
def review(run: Path) -> Iterator[Open]:
    """Opens the review of the run; what is still open is closed at the end."""
    opened: list[TestClient] = []

    def open_review(path: Path | None = None, **arguments: Any) -> Client:
        http = TestClient(make_app(path or run, **{"learner": obey, **arguments}), base_url="http://127.0.0.1:8765")
        http.__enter__()
        opened.append(http)
        return Client(http)

    yield open_review
    for http in opened:
        http.app.state.close()  # twice does no harm


@pytest.fixture
def obeying() -> Callable[..., list[Any]]:
    return obey


@pytest.fixture
def client(review: Open) -> Client:
    return review()
