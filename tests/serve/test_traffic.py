"""What Prometheus gets, read back with the parser of its own library."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anomalyncd.serve.traffic import Metrics


def test_figures_are_text_that_prometheus_reads():
    metrics = Metrics()
    metrics.request_done("/v1/predict", 200, 0.02)
    metrics.request_done("/v1/predict", 422, 99)
    for outcome in ("known", "known", "unknown", "unreadable"):
        metrics.image_done(outcome)
    metrics.batch_done(3, 0.5)
    metrics.add_gauge("now", "What is so.", lambda: 7)
    families = text_string_to_metric_families(metrics.text().decode())
    found = {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    path = "path=/v1/predict"
    assert found["anomalyncd_requests_total", path, "status=422"] == 1
    assert found["anomalyncd_request_seconds_bucket", "le=0.025", path] == 1
    assert found["anomalyncd_request_seconds_bucket", "le=60.0", path] == 1
    assert found["anomalyncd_request_seconds_bucket", "le=+Inf", path] == 2
    assert found["anomalyncd_images_total", "outcome=unreadable"] == 1
    assert found[("anomalyncd_unknown_share",)] == pytest.approx(1 / 3)
    assert found["anomalyncd_batch_images_bucket", "le=2.0"] == 0
    assert found["anomalyncd_batch_images_bucket", "le=4.0"] == 1
    assert found[("anomalyncd_batch_seconds_sum",)] == 0.5
    assert found[("now",)] == 7


def test_two_services_count_apart():
    one, other = Metrics(), Metrics()
    one.image_done("known")
    assert b'outcome="known"} 1.0' in one.text() and b'outcome="known"} 0.0' in other.text()
