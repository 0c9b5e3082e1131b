"""What a service has done so far, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


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
