"""How `watch` is doing, over HTTP, as `serve` tells it: health, and figures for Prometheus."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware import Middleware

from .. import __version__
from ..errors import without_folders
from ..serve.server import config_of
from ..serve.traffic import Limits, Metrics, ServiceGuard, Traffic
from .drift import STREAMS
from .watcher import Status

LATE_SECONDS = 300.0  # without a look at the folder, after which something hangs


def make_health(
    status: Status, metrics: Metrics, waiting: dict[str, Callable[[], int]], *, token: str | None = None
) -> FastAPI:
    """The routes /health, /health/live and /metrics.

    Parameters
    ----------
    status : of the watcher
    metrics : that it counts in
    waiting : who is told → how many messages wait for them
    token : as of `serve`
    """
    metrics.add_gauge("anomalyncd_waiting_files", "Files that are not written down yet.", lambda: status.waiting)
    metrics.add_gauge("anomalyncd_failing", "1 while nothing goes on.", lambda: bool(_problem(status)))
    for name, count in waiting.items():
        metrics.add_gauge(f"anomalyncd_{name}_queue", f"Messages that the {name} has not taken.", count)
    for name in STREAMS:
        metrics.add_gauge(
            f"anomalyncd_drift_{name}", f"1 while the {name} of images is reported to drift.", _drifts(status, name)
        )
    app = FastAPI(
        title="anomalyncd watch", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        middleware=[Middleware(ServiceGuard, token=token, limits=Limits(), traffic=Traffic(), metrics=metrics)],
    )  # fmt: skip

    @app.get("/health")
    async def ready() -> Response:
        """Whether images are taken, and why not; or which receiver takes nothing."""
        problem = _problem(status)
        for place in (*status.places, None):
            problem = without_folders(problem, place)
        words = "stopping" if status.stopping else "failing" if problem else "ready"
        detail = problem or "; ".join(status.away.values())
        return JSONResponse({"status": words, "detail": detail}, status_code=200 if words == "ready" else 503)

    @app.get("/health/live")
    async def live() -> Response:
        """Answers as long as the process does."""
        return JSONResponse({"status": "stopping" if status.stopping else "ready"})

    @app.get("/metrics")
    async def measured() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


def serve_health(app: FastAPI, listener: socket.socket) -> None:
    """Answer in a thread of its own, as long as the process lives."""
    server = uvicorn.Server(config_of(app))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="anomalyncd-health", daemon=True).start()


def _problem(status: Status) -> str:
    if not status.problem and time.monotonic() - status.looked > LATE_SECONDS:
        return f"the folder was not looked through for {LATE_SECONDS:g} s"
    return status.problem


def _drifts(status: Status, stream: str) -> Callable[[], float]:
    return lambda: float(stream in status.shifts)
