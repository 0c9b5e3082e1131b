"""The pieces of the service: forms, shapes and figures, each against an independent implementation."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anomalyncd.config import CropConfig
from anomalyncd.export.coco import run_lengths as of_whole_image
from anomalyncd.serve.metrics import Metrics
from anomalyncd.serve.shapes import RunBudget, TooManyRunsError, region_shapes, run_lengths
from anomalyncd.serve.uploads import Upload, UploadError, parse

NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


@given(files=st.lists(st.tuples(NAMES, st.binary(max_size=80)), min_size=1, max_size=4))
def test_a_form_that_another_library_wrote(files):
    """Contents of any bytes come out as they went in; httpx escapes what a name must not have."""
    request = httpx.Request("POST", "http://x", files=[("image", file) for file in files])
    found = parse(request.read(), request.headers["Content-Type"], "image", 4)
    assert [upload.image for upload in found] == [content for _, content in files]
    for number, ((name, _), upload) in enumerate(zip(files, found, strict=True)):
        if name.isalnum() or not name:
            assert upload.name == (name or f"image_{number}")


@given(content=st.binary(max_size=60), tail=st.sampled_from([b"", b"\r\n", b"--", b"\r\n--", b"\r\n--frontie"]))
def test_contents_that_look_like_an_end(content, tail):
    content += tail
    head = b'--frontier\r\ncontent-disposition: form-data; name="image"; filename="a"\r\nX: y\r\n\r\n'
    body = b"preamble\r\n" + head + content + b"\r\n--frontier--\r\nepilogue"
    if b"\r\n--frontier" not in content:
        assert parse(body, 'multipart/form-data; boundary="frontier"', "image", 1) == [Upload("a", content)]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", "multipart/form-data; boundary=b", "not whole"),
        (b"--b--", "multipart/form-data; boundary=b", "at least one file"),
        (b"--b\r\n\r\nx\r\n--b--", "multipart/form-data; boundary=b", "one is called ''"),
        (b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\nx', "multipart/form-data; boundary=b", "not whole"),
        (b'--b\r\nContent-Disposition: form-data; name="img"\r\n\r\nx\r\n--b--', "multipart/form-data; boundary=b", "'img'"),
        (b"--b", "multipart/form-data", "boundary"),
        (b"--b", "multipart/form-data; boundary=\N{SKULL}", "boundary"),
        (b"[]", "application/json", "an object"),
        (b"{", "application/json", "JSON"),
        (b'{"images": []}', "application/json", "at least 1"),
        (b'{"images": [{"image": "####"}]}', "application/json", "images.0.image: expected the content of a file"),
        (b'{"images": [{"image": "", "path": "/etc/passwd"}]}', "application/json", "images.0.path"),
        (b'{"images": [{"image": "", "name": "\\ud800"}]}', "application/json", "Invalid JSON"),
        (b"[" * 100_000, "application/json", "recursion"),
    ],
)  # fmt: skip
def test_malformed_bodies_are_named(body, kind, words):
    with pytest.raises(UploadError, match=words) as error:
        parse(body, kind, "image", 4)
    assert error.value.status == 422


@given(shape=arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))), data=st.data())
def test_run_lengths_of_a_part_are_those_of_the_whole(shape, data):
    height, width = (side + data.draw(st.integers(0, 3)) for side in shape.shape)
    y, x = (data.draw(st.integers(0, whole - part)) for whole, part in zip((height, width), shape.shape, strict=True))
    whole = np.zeros((height, width), bool)
    whole[y : y + shape.shape[0], x : x + shape.shape[1]] = shape
    if shape.any():
        assert run_lengths(shape, (x, y), (height, width)) == of_whole_image(whole)


@given(shape=arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))), below=st.integers(0, 1))
def test_runs_are_counted_before_they_are_made(shape, below):
    if shape.any():
        size = (shape.shape[0] + below, shape.shape[1])
        budget = RunBudget(100)
        lengths = run_lengths(shape, (0, 0), size, budget)
        assert len(lengths) <= 100 - budget.left <= len(lengths) + 1, "the last run may be empty"
        with pytest.raises(TooManyRunsError):
            run_lengths(shape, (0, 0), size, RunBudget(len(lengths) - 1))


def test_a_region_thinner_than_a_pixel_is_its_box():
    mask = np.zeros((100, 100), bool)
    mask[:, 51] = True
    (shape,) = region_shapes(mask, (10, 10), CropConfig(), 1)
    assert shape.shape == (10, 1) and shape.all()
    assert [s.shape for s in region_shapes(None, (4, 5), CropConfig(), 1)] == [(4, 5)], "the whole image"


def test_figures_are_text_that_prometheus_reads():
    metrics = Metrics()
    metrics.answered("/v1/predict", 200, 0.02)
    metrics.answered("/v1/predict", 422, 99)
    for outcome in ("known", "known", "unknown", "unreadable"):
        metrics.seen(outcome)
    metrics.worked(3, 0.5)
    lines = metrics.text([("now", "What is so.", lambda: 7)]).splitlines()
    for line in (
        'anomalyncd_requests_total{path="/v1/predict",status="422"} 1',
        'anomalyncd_request_seconds_bucket{path="/v1/predict",le="0.025"} 1',
        'anomalyncd_request_seconds_bucket{path="/v1/predict",le="60.0"} 1',
        'anomalyncd_request_seconds_bucket{path="/v1/predict",le="+Inf"} 2',
        'anomalyncd_images_total{outcome="unreadable"} 1', "anomalyncd_unknown_share 0.333333",
        'anomalyncd_batch_images_bucket{le="2"} 0', 'anomalyncd_batch_images_bucket{le="4"} 1', "now 7",
    ):  # fmt: skip
        assert line in lines
    for line in lines:
        assert line.startswith("# ") or (len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0)
