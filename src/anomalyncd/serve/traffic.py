"""What the service allows and what it counts: limits, requests under way, figures for Prometheus, and its guard."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import SettingsError
from .guard import RETRY, SAFE_METHODS, Guard, refusal, try_later

OPEN = ("/health", "/health/live")  # without a token, for programs that watch over the process
ROUTES = (*OPEN, "/metrics", "/v1/model", "/v1/predict", "/openapi.json")
CLIENT_GONE = 499  # the client did not wait for its answer; only ever counted, never sent
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Limits:
    """Bounds of a service.

    n_bytes : of one request
    held_bytes : of all requests that are being read or worked on
    images : in one request
    pixels : of an image
    map_pixels : of a map or mask, where each region costs a look at all of them
    read_seconds : until the whole of a request must have come
    seconds : from then until its answer
    runs : of all masks in one answer, where they are asked for as run lengths
    queue : images that wait or are worked on, of all requests
    decoded_pixels : of images, maps and masks that wait or are worked on; above, no other image is decoded
    batch : images that the network sees at once
    wait_seconds : how long a batch that is not full waits for more, and only while more are on their way
    threads : that decode and prepare images
    """

    n_bytes: int = 32_000_000
    held_bytes: int = 256_000_000
    images: int = 32
    pixels: int = 64_000_000
    map_pixels: int = 16_000_000
    read_seconds: float = 20.0
    seconds: float = 60.0
    runs: int = 200_000
    queue: int = 128
    decoded_pixels: int = 256_000_000
    batch: int = 16
    wait_seconds: float = 0.005
    threads: int = 4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0 and name != "wait_seconds":
                raise SettingsError(f"{name} must be above 0, but got {value}.")
        if self.queue < self.images:
            raise SettingsError(
                f"the queue ({self.queue} images) must hold at least one request of {self.images} images."
            )
        if self.held_bytes < self.n_bytes:
            raise SettingsError(f"held_bytes ({self.held_bytes}) must be at least n_bytes ({self.n_bytes}).")


class Metrics:
    """Counts of all threads of one service, in a registry of its own: two services of one process stay apart.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.image_done("known")
    >>> 'anomalyncd_images_total{outcome="known"} 1.0' in metrics.text().decode()
    True
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "anomalyncd_requests_total", "Requests by status.", ["path", "status"], registry=registry
        )
        spent = "From the head of a request to the end of its answer."
        self._seconds = Histogram("anomalyncd_request_seconds", spent, ["path"], buckets=SECONDS, registry=registry)
        self._images = Counter("anomalyncd_images_total", "Images by outcome.", ["outcome"], registry=registry)
        for outcome in ("known", "unknown", "unreadable"):
            self._images.labels(outcome)
        together = "Images that the network saw at once."
        self._batch_images = Histogram("anomalyncd_batch_images", together, buckets=BATCHES, registry=registry)
        self._batch_seconds = Histogram(
            "anomalyncd_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=registry
        )
        share = "Share of unknown ones among the images classed so far."
        self.add_gauge("anomalyncd_unknown_share", share, self._unknown_share)

    def add_gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a figure that `value` tells whenever somebody looks."""
        Gauge(name, meaning, registry=self._registry).set_function(value)

    def request_done(self, path: str, status: int, seconds: float) -> None:
        """Count one request; path : of a route, not what a client made up"""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch_done(self, size: int, seconds: float) -> None:
        """Count one batch of images."""
        self._batch_images.observe(size)
        self._batch_seconds.observe(seconds)

    def image_done(self, outcome: str) -> None:
        """Count one image: `known`, `unknown` or `unreadable`."""
        self._images.labels(outcome).inc()

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _unknown_share(self) -> float:
        known, unknown = (
            self._registry.get_sample_value("anomalyncd_images_total", {"outcome": outcome}) or 0.0
            for outcome in ("known", "unknown")
        )
        return unknown / (known + unknown) if known + unknown else 0.0


@dataclass
class Traffic:
    """What is under way; only the event loop changes it.

    active : requests that have no whole answer yet
    held_bytes : of the bodies of requests whose answer has not begun
    stopping : new work is refused
    unanswered : requests that were accepted and got no answer but a status: 504 too late, 500 by a mistake of ours
    cut : that were cut off at the end
    """

    active: int = 0
    held_bytes: int = 0
    stopping: bool = False
    unanswered: collections.Counter[int] = field(default_factory=collections.Counter)
    cut: int = 0

    def summary(self) -> str:
        """How what was accepted ended, for whoever stops the service.

        Examples
        --------
        >>> Traffic().summary()
        'Everything accepted was answered.'
        >>> Traffic(unanswered=collections.Counter({504: 12}), cut=1).summary()
        'Not everything accepted was answered: 12 too late (504), 1 cut off at the end.'
        """
        late, failed = self.unanswered[504], self.unanswered[500]
        ends = ((late, "too late (504)"), (failed, "failed (500, see above)"), (self.cut, "cut off at the end"))
        if parts := [f"{count} {words}" for count, words in ends if count]:
            return f"Not everything accepted was answered: {', '.join(parts)}."
        return "Everything accepted was answered."


class ServiceGuard(Guard):
    """Lets requests for the health of the process through without a token, and counts all requests."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, traffic: Traffic, metrics: Metrics) -> None:
        super().__init__(app, token, limits.n_bytes, limits.read_seconds)
        self.limits, self.traffic, self.metrics = limits, traffic, metrics

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        traffic, started, status, held = self.traffic, time.perf_counter(), CLIENT_GONE, 0

        async def held_receive() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            traffic.held_bytes += size
            if traffic.held_bytes > self.limits.held_bytes:
                raise try_later("Too many large requests at once: try again later.")
            return message

        async def noted_send(message: Message) -> None:
            nonlocal status, held
            if message["type"] == "http.response.start":
                status = message["status"]
                traffic.held_bytes -= held
                held = 0
            await send(message)

        traffic.active += 1
        try:
            await super().answer(scope, held_receive, noted_send)
        finally:
            traffic.active -= 1
            traffic.held_bytes -= held
            if status in (500, 504):
                traffic.unanswered[status] += 1
            path = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.request_done(path, status, time.perf_counter() - started)

    def refuse(self, request: Request) -> Response | None:
        if request.scope["path"] in OPEN:
            return None
        refused = super().refuse(request)
        if refused is None and self.traffic.stopping and request.method not in SAFE_METHODS:
            return refusal(503, "The service is stopping: ask another one, or try again later.", RETRY)
        return refused
