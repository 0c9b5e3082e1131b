"""A client of the service, and what the command line would have said about the same images."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from anomalyncd import AnomalyNCD
from anomalyncd.cli.servers import load
from anomalyncd.discovery.classify import Prediction
from anomalyncd.serve.app import make_api
from anomalyncd.serve.traffic import Limits

TOKEN = "a token of the tests"
SUFFIX = {"map": ".npy", "mask": ".png"}


def open_api(run: Path, *, token: str | None = None, host: str = "127.0.0.1", **limits: Any) -> TestClient:
    """A client for a run, which ends the service where its `with` block ends."""
    predictor, counts = load(run, "cpu")
    return client_of(make_api(predictor, counts=counts, token=token, limits=Limits(**limits)), host)


def client_of(app: Any, host: str = "127.0.0.1") -> TestClient:
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False)


def beside(scenes: Path, stem: str, needs: str) -> bytes | None:
    """The map or mask of a scene; empty for a mask of a good one."""
    if needs == "image":
        return None
    path = scenes / f"{needs}s" / f"{stem}{SUFFIX[needs]}"
    return path.read_bytes() if path.exists() else b""


def as_form(scenes: Path, stems: list[str], needs: str) -> list[tuple[str, tuple[str, bytes]]]:
    files = []
    for stem in stems:
        files.append(("image", (f"{stem}.png", (scenes / "images" / f"{stem}.png").read_bytes())))
        if (content := beside(scenes, stem, needs)) is not None:
            files.append((needs, (f"{stem}{SUFFIX[needs]}", content)))
    return files


def as_json(scenes: Path, stems: list[str], needs: str) -> dict[str, Any]:
    def coded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    images = []
    for stem in stems:
        one = {"image": coded((scenes / "images" / f"{stem}.png").read_bytes()), "name": stem}
        if (content := beside(scenes, stem, needs)) is not None:
            one[needs] = coded(content)
        images.append(one)
    return {"images": images}


def predicted(run: Path, scenes: Path, needs: str) -> tuple[list[str], Prediction]:
    """Names and classes of all scenes, as `AnomalyNCD.predict` has them."""
    given = {} if needs == "image" else {f"{needs}s": scenes / f"{needs}s"}
    found = AnomalyNCD.load(run, device="cpu").predict(scenes / "images", **given)
    return [Path(name).stem for name in found.images["image"]], found


def check_same(answer: dict[str, Any], expected: Prediction, place: int) -> None:
    """One image of an answer against the row of a prediction."""
    row = expected.images.iloc[place]
    assert answer["label"] == row["label"] and answer["class_name"] == row["class_name"]
    assert np.allclose(list(answer["probabilities"].values()), expected.probabilities[place], atol=1e-3)
    assert answer["false_alarm"] == pytest.approx(row["false_alarm"], abs=1e-3)
    regions = expected.regions[expected.regions["image"] == row["image"]]
    assert [r["false_alarm"] for r in answer["regions"]] == pytest.approx(regions["false_alarm"].tolist(), abs=1e-3)
    assert [r["label"] for r in answer["regions"]] == regions["label"].tolist()
    boxes = [[r["box"][k] for k in ("x", "y", "width", "height")] for r in answer["regions"]]
    assert boxes == regions[["x", "y", "width", "height"]].to_numpy().tolist()
