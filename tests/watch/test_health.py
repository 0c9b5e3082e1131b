"""Health and metrics of `watch`, as those of `serve`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

pytest.importorskip("prometheus_client")
from anomalyncd.serve.traffic import Metrics
from anomalyncd.watch.drift import Shift
from anomalyncd.watch.health import LATE_SECONDS, make_health
from anomalyncd.watch.watcher import Status


def test_health_tells_what_is_wrong() -> None:
    status, metrics = Status(), Metrics()
    with TestClient(make_health(status, metrics, {"webhook": lambda: 7}), base_url="http://127.0.0.1") as client:
        assert client.get("/health").json() == {"status": "ready", "detail": ""}
        status.problem = "table.csv: cannot be written (No space left on device)."
        answer = client.get("/health")
        assert answer.status_code == 503 and answer.json() == {"status": "failing", "detail": status.problem}
        status.places = (Path("/data/line 3"),)
        status.problem = "/data/line 3/table.csv: cannot be written (see /var/log/x.log)."
        assert client.get("/health").json()["detail"] == "line 3/table.csv: cannot be written (see x.log)."
        status.problem, status.looked = "", time.monotonic() - LATE_SECONDS - 1
        assert client.get("/health").status_code == 503
        status.looked, status.waiting, status.shifts = time.monotonic(), 3, {"score": Shift("score", 1, 2, 0.001)}
        metrics.image_done("unknown")
        text = client.get("/metrics").text
        for line in (
            "anomalyncd_waiting_files 3.0", "anomalyncd_webhook_queue 7.0", "anomalyncd_drift_score 1.0",
            "anomalyncd_drift_contrast 0.0", 'anomalyncd_images_total{outcome="unknown"} 1.0', "anomalyncd_failing 0.0",
        ):  # fmt: skip
            assert line in text
        status.away = {"webhook": "webhook: 401 Unauthorized"}
        answer = client.get("/health")
        assert answer.status_code == 200 and answer.json() == {"status": "ready", "detail": "webhook: 401 Unauthorized"}
        status.stopping = True
        assert client.get("/health").status_code == 503 and client.get("/health/live").status_code == 200


def test_strangers_are_kept_out() -> None:
    app = make_health(Status(), Metrics(), {}, token="a long secret")
    with TestClient(app, base_url="http://plant.example") as client:
        assert client.get("/metrics").status_code == 401 and client.get("/health").status_code == 200
        assert client.get("/metrics", headers={"Authorization": "Bearer a long secret"}).status_code == 200
    with TestClient(make_health(Status(), Metrics(), {}), base_url="http://plant.example") as client:
        assert client.get("/metrics").status_code == 403
