"""The service in this process: right answers, refusals in words, and many clients at once.

Covers app.py, batching.py, guard.py and traffic.py.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from anomalyncd.cli.servers import load
from anomalyncd.errors import SettingsError
from anomalyncd.run.finished import FinishedRun
from anomalyncd.serve.app import make_api
from anomalyncd.serve.batching import _decode_upload
from anomalyncd.serve.traffic import Limits
from command import call
from scenes import images
from serve.api_client import TOKEN, as_form, as_json, check_same, client_of, open_api, predicted

PREDICT = "/v1/predict"
PART_HEAD = b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n'


@pytest.fixture(scope="module")
def api(served: dict[str, Path]) -> Iterator[TestClient]:
    """Of the run that makes its maps itself."""
    with open_api(served["image"]) as client:
        yield client


def picture(served: dict[str, Path], stem: str = "010") -> bytes:
    return (served["scenes"] / "images" / f"{stem}.png").read_bytes()


def count(client: TestClient, line: str) -> float:
    """A figure of /metrics."""
    text = client.get("/metrics").text
    return next(float(row.split()[-1]) for row in text.splitlines() if row.startswith(line))


@pytest.mark.parametrize("needs", ["image", "map", "mask"])
def test_it_answers_as_predict_does(served, needs):
    scenes = served["scenes"]
    stems, expected = predicted(served[needs], scenes, needs)
    with open_api(served[needs]) as client:
        assert client.get("/v1/model").json()["needs"] == needs
        for place in (0, 7, 14, 26):
            form = client.post(PREDICT, files=as_form(scenes, [stems[place]], needs))
            assert form.status_code == 200, form.text
            check_same(form.json()["images"][0], expected, place)
        together = client.post(PREDICT, json=as_json(scenes, stems, needs)).json()["images"]
        assert [one["name"] for one in together] == stems
        for place, one in enumerate(together):
            check_same(one, expected, place)


@pytest.mark.parametrize("needs", ["image", "map"])
def test_many_clients_at_once_share_batches_and_get_what_each_alone_would(served, needs):
    scenes = served["scenes"]
    stems, expected = predicted(served[needs], scenes, needs)
    with open_api(served[needs], wait_seconds=0.2, batch=8) as client, ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda stem: client.post(PREDICT, files=as_form(scenes, [stem], needs)), stems))
        batches = count(client, "anomalyncd_batch_images_count")
        assert count(client, 'anomalyncd_images_total{outcome="known"}') + count(
            client, 'anomalyncd_images_total{outcome="unknown"}'
        ) == len(stems)
        assert count(client, "anomalyncd_queue_images") == 0
    for place, answer in enumerate(answers):
        check_same(answer.json()["images"][0], expected, place)
    assert batches < len(stems) / 2


def test_an_exported_run_answers_the_same(served, tmp_path):
    pytest.importorskip("onnxruntime")
    call("export", served["image"], "--format", "onnx", "--out", tmp_path / "onnx")
    with pytest.raises(SettingsError, match="on this processor"):
        load(tmp_path / "onnx", "cuda")
    stems, expected = predicted(served["image"], served["scenes"], "image")
    with open_api(tmp_path / "onnx") as client:
        assert client.get("/v1/model").json()["classes"][1]["n_images"] is None
        answers = client.post(PREDICT, json=as_json(served["scenes"], stems, "image")).json()["images"]
    for place, one in enumerate(answers):
        check_same(one, expected, place)


def test_the_precision_is_obeyed(served):
    with pytest.raises(SettingsError, match="--precision"):
        load(served["image"], "cpu", "float8")
    assert load(served["image"], "cpu", "bfloat16")[0].model.config.precision == "bfloat16"


def test_one_image_as_it_is(api, served):
    for kind in ("image/png", "IMAGE/PNG", "application/octet-stream", "image/jpeg; charset=binary"):
        answer = api.post(PREDICT, content=picture(served), headers={"Content-Type": kind})
        assert answer.status_code == 200 and answer.json()["images"][0]["width"] == 64


def test_masks_in_three_forms(api, served):
    run, name = FinishedRun(served["image"]), "010.png"
    (expected,) = run.region_masks(name)
    region = {
        form: api.post(PREDICT, params={"masks": form}, files={"image": picture(served)}).json()["images"][0][
            "regions"
        ][0]
        for form in ("none", "rle", "png")
    }
    assert region["none"]["mask"] is None
    packed = coco.frPyObjects(region["rle"]["mask"], *region["rle"]["mask"]["size"])
    assert np.array_equal(coco.decode(packed).astype(bool), expected)
    box = region["png"]["box"]
    drawn = cv2.imdecode(np.frombuffer(base64.b64decode(region["png"]["mask"]), np.uint8), cv2.IMREAD_UNCHANGED) > 0
    assert drawn.shape == (box["height"], box["width"])
    whole = np.zeros_like(expected)
    whole[box["y"] : box["y"] + box["height"], box["x"] : box["x"] + box["width"]] = drawn
    assert np.array_equal(whole, expected)


def test_an_unreadable_image_is_refused_alone_and_told_among_others(api, served):
    alone = api.post(PREDICT, files={"image": b"no image"})
    assert alone.status_code == 422 and "image: expected a PNG" in alone.json()["detail"]
    files = [("image", ("bad.png", picture(served)[:200])), ("image", ("good.png", picture(served)))]
    bad, good = api.post(PREDICT, files=files).json()["images"]
    assert bad["name"] == "bad.png" and "damaged" in bad["error"] and good["label"] >= 0


def test_what_a_run_needs(served):
    scenes, content = served["scenes"], picture(served)
    for needs in ("map", "mask"):
        with open_api(served[needs]) as client:
            bare = client.post(PREDICT, content=content, headers={"Content-Type": "image/png"})
            assert bare.status_code == 422 and f"`{needs}`" in bare.json()["detail"]
            other = {"map": "mask", "mask": "map"}[needs]
            wrong = client.post(PREDICT, files=[*as_form(scenes, ["010"], needs), (other, ("x", content))])
            assert wrong.status_code == 422 and f"leave `{other}` out" in wrong.json()["detail"]
            few = client.post(PREDICT, files=[*as_form(scenes, ["010"], needs), ("image", ("x", content))])
            assert few.status_code == 422 and f"one {needs} for each of 2" in few.json()["detail"]
            odd = client.post(PREDICT, files=[("image", ("x", content)), (needs, ("y", b"\x93NUMPY nonsense"))])
            assert odd.status_code == 422 and odd.json()["detail"].startswith(f"{needs}: ")
    with open_api(served["image"]) as client:
        extra = client.post(PREDICT, files=as_form(scenes, ["010"], "map"))
        assert extra.status_code == 422 and "makes the maps itself" in extra.json()["detail"]


def test_no_name_is_ever_a_path(api, served, tmp_path, monkeypatch):
    """Names come back as they came; what they point at is neither read nor written."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"")
    before = {path: path.stat().st_mtime_ns for path in served["image"].rglob("*")}
    opened = []
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: opened.append(self))
    monkeypatch.setattr("builtins.open", lambda name, *_, **__: opened.append(name))
    names = (
        str(secret),
        f"../../../../..{secret}",
        "file:///etc/passwd",
        "C:\\secret.png",
        "\N{SKULL}" * 300,
        "a" * 500,
    )
    for name in names:
        one = api.post(PREDICT, files={"image": (name, plain_picture())}).json()["images"][0]
        assert "error" not in one and len(one["name"]) <= 255
    for body in ({"images": [{"image": str(secret)}]}, {"images": [{"image": "../secret.png"}]}, {"path": str(secret)}):
        assert api.post(PREDICT, json=body).status_code == 422
    assert not opened
    assert before == {path: path.stat().st_mtime_ns for path in served["image"].rglob("*")}


def plain_picture() -> bytes:
    content: bytes = cv2.imencode(".png", np.full((32, 32, 3), 99, np.uint8))[1].tobytes()
    return content


def test_who_may_come_in(served):
    predictor, _ = load(served["image"], "cpu")
    with client_of(make_api(predictor, token=TOKEN), "factory.example") as client:
        assert client.get("/health").json() == {"status": "ready"} and client.get("/health/live").status_code == 200
        for path in ("/v1/model", "/metrics", "/openapi.json", "/nowhere"):
            assert client.get(path).status_code == 401
        for value in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN):
            answer = client.post(PREDICT, files={"image": picture(served)}, headers={"Authorization": value})
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        allowed = {"Authorization": f"bearer {TOKEN}"}
        assert client.post(PREDICT, files={"image": picture(served)}, headers=allowed).status_code == 200
    with client_of(make_api(predictor), "factory.example") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/model").status_code == 403, "a name that was made to point here"
    with client_of(make_api(predictor)) as client:
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            assert client.post(PREDICT, headers=headers).status_code == 403
            for path in ("/v1/model", "/metrics", "/openapi.json", "/nowhere"):
                assert client.get(path, headers=headers).status_code == 403
            assert client.get("/health", headers=headers).status_code == 200
        for own in ("none", "same-origin"):
            assert client.get("/v1/model", headers={"Sec-Fetch-Site": own}).status_code == 200


def test_the_model_is_described_without_paths(api, served):
    about, labels = api.get("/v1/model"), images(served["image"])["label"].tolist()
    assert [c["n_images"] for c in about.json()["classes"]] == [labels.count(k) for k in range(4)]
    assert about.json()["detector"] == "patchcore"
    assert str(served["image"].parent) not in about.text


def test_too_much_is_refused(served):
    content = picture(served)
    with open_api(served["image"], n_bytes=5000, images=2, pixels=64 * 64) as client:
        answers = [
            client.post(PREDICT, content=bytes(5001), headers={"Content-Type": "image/png"}),
            client.post(PREDICT, content=(bytes(1000) for _ in range(9)), headers={"Content-Type": "image/png"}),
            client.post(PREDICT, files=[("image", ("", b"x"))] * 3),
            client.post(PREDICT, json={"images": [{"image": ""}] * 3}),
        ]
        assert [answer.status_code for answer in answers] == [413] * 4
        assert ["5000 bytes" in a.text for a in answers] == [True, True, False, False]
        wide = cv2.imencode(".png", np.zeros((65, 64, 3), np.uint8))[1].tobytes()
        refused = client.post(PREDICT, content=wide, headers={"Content-Type": "image/png"})
        assert refused.status_code == 422 and "more than the limit of 4,096" in refused.json()["detail"]
    with open_api(served["map"], map_pixels=1000) as client:
        for anomaly_map in (np.zeros((40, 26), np.float32), np.zeros((40, 26), np.uint8)):
            buffer = io.BytesIO()
            np.save(buffer, anomaly_map)
            form = (
                cv2.imencode(".png", anomaly_map)[1].tobytes() if anomaly_map.dtype == np.uint8 else buffer.getvalue()
            )
            refused = client.post(PREDICT, files={"image": content, "map": form})
            assert refused.status_code == 422 and "more than the limit of 1,000" in refused.json()["detail"]


def test_what_is_held_for_others_counts_too(served):
    app = make_api(load(served["image"], "cpu")[0], limits=Limits(n_bytes=20_000, held_bytes=21_000))
    with client_of(app) as client:
        for content in (picture(served), b"no image", bytes(20_001)):
            client.post(PREDICT, content=content, headers={"Content-Type": "image/png"})
            assert app.state.traffic.held_bytes == 0, "whatever became of it"
        app.state.traffic.held_bytes = 20_000
        refused = client.post(PREDICT, content=picture(served), headers={"Content-Type": "image/png"})
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
        assert app.state.traffic.held_bytes == 20_000


def test_masks_that_are_too_ragged_for_run_lengths(served):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[::2] = stripes[:, 0] = 255
    files = {"image": picture(served), "mask": cv2.imencode(".png", stripes)[1].tobytes()}
    with open_api(served["mask"], runs=1000) as client:
        refused = client.post(PREDICT, files=files)
        assert refused.status_code == 422 and "masks=png" in refused.json()["detail"]
        assert client.post(PREDICT, params={"masks": "png"}, files=files).status_code == 200
    with open_api(served["mask"]) as client:
        (region,) = client.post(PREDICT, files=files).json()["images"][0]["regions"]
        assert len(region["mask"]["counts"]) > 1000


def test_the_answer_is_made_within_the_deadline(served, monkeypatch):
    predictor, _ = load(served["image"], "cpu")
    go = threading.Event()
    monkeypatch.setattr("anomalyncd.serve.app.answer_json", lambda *_: go.wait(30) and b"{}")
    with client_of(make_api(predictor, limits=Limits(seconds=1))) as client, ThreadPoolExecutor(1) as pool:
        late = pool.submit(client.post, PREDICT, files={"image": picture(served)})
        try:
            assert late.result(10).status_code == 504
        finally:
            go.set()


@pytest.mark.parametrize("needs", ["image", "map"])
def test_images_are_decoded_only_so_far_ahead(served, needs, monkeypatch):
    slow, decoded = Slow(served[needs]), []
    monkeypatch.setattr("anomalyncd.serve.batching._decode_upload", lambda *a: decoded.append(a) or _decode_upload(*a))
    app = make_api(slow.predictor, limits=Limits(batch=1, threads=1, decoded_pixels=2 * 64 * 64))
    stems = [f"{number:03d}" for number in range(6)]
    with client_of(app) as client, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(client.post, PREDICT, json=as_json(served["scenes"], stems, needs))
        assert slow.begun.wait(30)
        time.sleep(0.2)
        ahead = len(decoded)
        slow.go.set()
        answer = accepted.result(30)
    assert ahead == {"image": 2, "map": 1}[needs], "a map has pixels too"
    assert len(answer.json()["images"]) == len(decoded) == 6 and app.state.batcher._decoded == 0


def test_limits_that_make_no_sense():
    with pytest.raises(SettingsError, match="queue"):
        Limits(queue=3, images=4)
    with pytest.raises(SettingsError, match="above 0"):
        Limits(seconds=0)


class Slow:
    """A predictor whose network waits until it is told to go on."""

    def __init__(self, run: Path) -> None:
        self.predictor, _ = load(run, "cpu")
        self.go, self.begun = threading.Event(), threading.Event()
        self._encode = self.predictor.extractor.encode
        self.predictor.extractor.encode = self.encode  # type: ignore[method-assign]

    def encode(self, prepared: Any) -> Any:
        self.begun.set()
        assert self.go.wait(30)
        return self._encode(prepared)


def test_a_full_queue_and_a_late_answer(served):
    slow = Slow(served["image"])
    app = make_api(slow.predictor, limits=Limits(queue=2, images=2, batch=1, seconds=20))
    content = {"image": picture(served)}
    with client_of(app) as client, ThreadPoolExecutor(3) as pool:
        accepted = [pool.submit(client.post, PREDICT, files=content) for _ in range(2)]
        while app.state.batcher.in_flight < 2:
            time.sleep(0.005)
        busy = client.post(PREDICT, files=content)
        assert busy.status_code == 503 and busy.headers["Retry-After"] == "1" and "waiting" in busy.json()["detail"]
        slow.go.set()
        assert [answer.result().status_code for answer in accepted] == [200, 200]
    slow = Slow(served["image"])
    app = make_api(slow.predictor, limits=Limits(seconds=0.1))
    with client_of(app) as client:
        late = client.post(PREDICT, files=content)
        assert late.status_code == 504 and late.json()["detail"] == "No answer within 0.1 s."
        assert app.state.traffic.summary() == "Not everything accepted was answered: 1 too late (504)."
        slow.go.set()
        while app.state.batcher.in_flight:
            time.sleep(0.005)
        app.state.batcher.limits = Limits()


@pytest.mark.parametrize(("seconds", "status"), [(1.0, 503), (60.0, 200)])
def test_what_would_be_late_is_refused_at_the_door(served, seconds, status):
    """At 0.3 s an image two take more than half of one second, and less than half of a minute."""
    slow = Slow(served["image"])
    app = make_api(slow.predictor, limits=Limits(seconds=seconds))
    content = {"image": picture(served)}
    with client_of(app) as client, ThreadPoolExecutor(2) as pool:
        threading.Timer(0.3, slow.go.set).start()
        client.post(PREDICT, files=content)
        while app.state.batcher.in_flight:
            time.sleep(0.005)
        slow.go.clear()
        held = pool.submit(client.post, PREDICT, files=content)
        while not app.state.batcher.in_flight:
            time.sleep(0.005)
        second = pool.submit(client.post, PREDICT, files=content)
        if status == 200:
            while app.state.batcher.in_flight < 2:
                time.sleep(0.005)
            slow.go.set()
        assert second.result(30).status_code == status
        slow.go.set()
        held.result(30)


def test_stopping_answers_what_was_accepted_and_refuses_the_rest(served):
    slow = Slow(served["image"])
    app = make_api(slow.predictor)
    content = {"image": picture(served)}
    with client_of(app) as client, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(client.post, PREDICT, files=content)
        assert slow.begun.wait(30)
        app.state.stop()
        refused = client.post(PREDICT, files=content)
        assert (
            refused.status_code == 503 and "stopping" in refused.json()["detail"] and "Retry-After" in refused.headers
        )
        assert client.get("/health").status_code == 503 and client.get("/health/live").status_code == 200
        assert app.state.traffic.active == 1
        slow.go.set()
        assert accepted.result().status_code == 200
    assert not app.state.batcher.is_alive


def test_a_mistake_of_ours_has_a_number_and_spoils_nothing_else(served, caplog):
    predictor, _ = load(served["image"], "cpu")
    encode = predictor.extractor.encode

    def choosy(prepared: Any) -> Any:
        if any(record.width == 33 for one in prepared for record in one.images):
            raise RuntimeError("cannot stand 33")
        return encode(prepared)

    predictor.extractor.encode = choosy  # type: ignore[method-assign]
    bad = cv2.imencode(".png", np.zeros((33, 33, 3), np.uint8))[1].tobytes()
    with client_of(make_api(predictor, limits=Limits(wait_seconds=0.3))) as client, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda content: client.post(PREDICT, files={"image": content}), (bad, picture(served))))
    assert [answer.status_code for answer in answers] == [500, 200]
    number = answers[0].json()["detail"].split()[2].rstrip(":")
    assert number in caplog.text and "cannot stand 33" in caplog.text and "33" not in answers[0].json()["detail"][27:]


def test_statuses_of_what_is_not_there(api, served):
    assert api.get("/nowhere").status_code == 404 and api.get(PREDICT).status_code == 405
    wrong = api.post(PREDICT, content=picture(served), headers={"Content-Type": "text/plain"})
    assert wrong.status_code == 415 and "image/png" in wrong.json()["detail"]
    assert api.post(PREDICT, content=picture(served)).status_code == 415
    assert api.post(PREDICT, params={"masks": "svg"}, files={"image": picture(served)}).status_code == 422
    for answer in (wrong, api.get("/nowhere")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(
        st.binary(max_size=300),
        st.text(max_size=200).map(str.encode),
        st.binary(max_size=60).map(lambda content: PART_HEAD + content + b"\r\n--b--"),
        st.binary(max_size=60).map(lambda b: b"--b\r\n" + b + b"\r\n\r\n\r\n--b--"),
        st.lists(st.none() | st.text() | st.dictionaries(st.text(), st.integers() | st.text())).map(
            lambda images: json.dumps({"images": images}).encode()
        ),
    ),
    kind=st.sampled_from(["application/json", "multipart/form-data; boundary=b", "image/png", "multipart/form-data"])
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
    query=st.text(st.characters(codec="ascii"), max_size=20),
)
def test_whatever_is_sent_is_refused_in_words(api, body, kind, query):
    answer = api.post(PREDICT, params={"masks": query} if query else {}, content=body, headers={"Content-Type": kind})
    assert answer.status_code in (413, 415, 422), answer.text
    assert answer.json()["detail"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=20), data=st.data())
def test_damaged_images_are_read_or_refused(api, served, places, data):
    content = bytearray(data.draw(st.sampled_from(_formats())))
    for place, value in places:
        content[place % len(content)] = value
    content = content[: data.draw(st.integers(1, len(content)))]
    answer = api.post(PREDICT, content=bytes(content), headers={"Content-Type": "image/png"})
    assert answer.status_code in (200, 422), answer.text


def _formats() -> list[bytes]:
    image = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    return [cv2.imencode(suffix, image)[1].tobytes() for suffix in (".png", ".jpg", ".bmp", ".tiff", ".webp")]
