"""The review towards the web: bad input, tricks, and who is let in.

Covers app.py, schema.py and page_data.py.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from anomalyncd.review import app as app_module
from anomalyncd.review.page_data import Pictures
from anomalyncd.run.folder import REGIONS_TABLE
from anomalyncd.run.tables import read_csv, to_csv

TOKEN = "a-token-for-tests"


def sent(client, action, **changes):
    state = client.look()
    key = f"bad-key-{next(client.numbers)}"
    content = {"key": key, "version": state["version"], "table": state["table"], "action": action}
    body = json.dumps({**content, **changes})  # any text, even what is none
    return client.http.post("/api/actions", content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "action",
    [
        None, 5, [], {}, {"kind": "format"}, {"kind": "name"}, {"kind": "name", "label": "x", "name": "a"},
        {"kind": "name", "label": 1, "name": ""}, {"kind": "name", "label": 1, "name": " \n\t"},
        {"kind": "name", "label": 1, "name": "x" * 81}, {"kind": "name", "label": 1, "name": "x" * 600},
        {"kind": "name", "label": 1, "name": "\ud800"}, {"kind": "name", "label": 1, "name": "a\u202eb"},
        {"kind": "name", "label": 1, "name": None}, {"kind": "name", "label": 10**30, "name": "a"},
        {"kind": "name", "label": 1, "name": "a", "more": 1}, {"kind": "merge", "from": 1},
        {"kind": "merge", "from": 1.5, "into": 2}, {"kind": "split", "label": 1, "parts": 1},
        {"kind": "split", "label": 1, "parts": 11}, {"kind": "split", "label": 1, "parts": 10**40},
        {"kind": "move", "regions": [], "to": 1}, {"kind": "move", "regions": [-1], "to": 1},
        {"kind": "move", "regions": ["../etc/passwd"], "to": 1}, {"kind": "move", "regions": [0]},
        {"kind": "move", "regions": [10**30], "to": 1}, {"kind": "move", "regions": [0], "to": "new"},
        {"kind": "false_alarm", "regions": {"a": 1}}, {"kind": "undo"}, {"kind": "undo", "action": -1},
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_in_words(client, action):
    answer = sent(client, action)
    assert answer.status_code == 422 and isinstance(answer.json()["detail"], str) and answer.json()["detail"]
    assert client.look()["version"] == 0


@pytest.mark.parametrize(
    "action",
    [
        {"kind": "name", "label": 77, "name": "a"}, {"kind": "name", "label": -1, "name": "a"},
        {"kind": "name", "label": 1, "name": "Unknown"}, {"kind": "merge", "from": 1, "into": 1},
        {"kind": "merge", "from": 1, "into": 77}, {"kind": "merge", "from": 0, "into": 1},
        {"kind": "merge", "from": 1, "into": -1}, {"kind": "split", "label": 77}, {"kind": "split", "label": 0},
        {"kind": "split", "label": 1, "parts": 10}, {"kind": "move", "regions": [999], "to": 1},
        {"kind": "move", "regions": [0], "to": 77}, {"kind": "move", "regions": [0], "to": -1},
        {"kind": "false_alarm", "regions": [0, 18]}, {"kind": "undo", "action": 10**15}, {"kind": "redo", "action": 1},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_a_conflict_and_says_how_things_stand(client, action):
    answer = sent(client, action)
    assert answer.status_code == 409, answer.text
    assert answer.json()["detail"] and answer.json()["state"] == client.look()
    assert client.state["version"] == 0


@pytest.mark.parametrize(
    "changes", [{"key": "short"}, {"key": "no spaces in it"}, {"version": -1}, {"version": "x"}, {"table": 3}]
)
def test_the_envelope_is_checked_too(client, changes):
    assert sent(client, {"kind": "name", "label": 1, "name": "a"}, **changes).status_code == 422


def test_numbers_of_another_table_are_refused(client):
    answer = sent(client, {"kind": "move", "regions": [0], "to": 2}, table="0" * 16)
    assert answer.status_code == 409 and "changed" in answer.json()["detail"]


def test_noise_is_never_a_server_error(client):
    rng = random.Random(0)
    fields = ["kind", "label", "name", "regions", "to", "from", "into", "parts", "action"]
    values = [None, -1, 0, 1, 3, 10**20, 1.5, "", "1", "\x00", [], [0], [[0]], {}, True, "name", "move", "undo"]
    for _ in range(300):
        action = {rng.choice(fields): rng.choice(values) for _ in range(5)}
        assert sent(client, action).status_code in (200, 409, 422), action
    headers = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"key": NaN}', b"null", b'"x"'):
        answer = client.http.post("/api/actions", content=body, headers=headers)
        assert answer.status_code in (400, 422), body


@pytest.mark.parametrize(
    "path",
    [
        "/api/classes/x/regions", "/api/classes/1/regions?limit=0", "/api/classes/1/regions?limit=9999", "/crops/x",
        "/api/classes/1/regions?offset=-1", "/api/classes/1/regions?order=random", "/crops/-1", "/crops/1.5",
        "/overlay/0?region=x", "/api/classes/99999999999999999999/regions",
    ],
)  # fmt: skip
def test_bad_addresses_are_refused_in_words(client, path):
    answer = client.http.get(path)
    assert answer.status_code == 422 and answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/crops/../config.yaml", "/crops/..%2f..%2fconfig.yaml", "/crops/%2e%2e/regions.csv", "/overlay/..%5c..%5cx",
        "/../../etc/passwd", "/review.sqlite", "/config.yaml", "/page/index.html", "/index.html", "/docs", "/redoc",
        "/openapi.json", "//etc/passwd",
        "/crops/999", "/overlay/999", "/overlay/0?region=17", "/overlay/0?region=99999",
    ],
)  # fmt: skip
def test_nothing_but_pictures_by_number_is_served(client, path):
    assert client.http.get(path).status_code in (404, 422)


def test_a_table_that_points_outside_the_run_is_not_followed(review, run, tmp_path):
    secret = np.full((256, 256, 3), 77, np.uint8)
    cv2.imwrite(str(tmp_path / "secret.png"), secret)
    table = read_csv(run / REGIONS_TABLE)
    table.loc[0, "crop"] = "../secret.png"
    table.loc[1, "crop"] = str(tmp_path / "secret.png")
    (run / REGIONS_TABLE).write_text(to_csv(table), encoding="utf-8")
    client = review()
    assert [client.http.get(f"/crops/{region}").status_code for region in (0, 1, 2)] == [404, 404, 200]


def test_pictures_are_pictures(client):
    for path, side in (("/crops/0", 160), ("/overlay/0?region=0", 800), ("/overlay/19?heat=1", 800)):
        answer = client.http.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/jpeg", answer.text
        picture = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
        assert max(picture.shape) == side
    cyan = cv2.imdecode(np.frombuffer(client.http.get("/overlay/0?region=0").content, np.uint8), cv2.IMREAD_COLOR)
    assert (cyan.astype(int) @ [1, 1, -2] > 250).any(), "the outline of the region is drawn"


def test_an_image_that_is_gone_is_said_so(review, run):
    manifest = read_csv(run / "manifest.csv")
    manifest["file"] = "/nowhere/at/all.png"
    (run / "manifest.csv").write_text(to_csv(manifest), encoding="utf-8")
    answer = review().http.get("/overlay/0")
    assert answer.status_code == 404 and "no longer" in answer.json()["detail"]


def test_a_run_that_vanishes_is_said_so(client, run):
    (run / REGIONS_TABLE).unlink()
    answer = client.http.get("/api/state")
    assert answer.status_code == 503 and REGIONS_TABLE in answer.json()["detail"]


def test_a_conflict_in_a_run_that_vanished_is_still_a_conflict(client, run):
    client.act("name", key="used-before", label=1, name="dent")
    (run / REGIONS_TABLE).unlink()
    answer = client.send("name", key="used-before", label=1, name="scratch")
    assert answer.status_code == 409 and "key" in answer.json()["detail"] and "state" not in answer.json()


def test_the_page_does_not_say_more_than_it_knows(client):
    words = client.http.get("/api.js").text
    assert "It was not stored" not in words and "will show once the page is connected again" in words


def test_the_page_and_its_files(client):
    page = client.http.get("/")
    assert page.status_code == 200 and "review.js" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["referrer-policy"] == "no-referrer"
    for name in ("review.js", "api.js", "cards.js", "dialogs.js", "review.css"):
        answer = client.http.get(f"/{name}")
        assert answer.status_code == 200 and "innerHTML" not in answer.text, "what the data says is text, never markup"
    described = client.http.get("/api/openapi.json").json()["paths"]
    assert {"/api/state", "/api/actions", "/api/apply", "/crops/{region}"} <= set(described)


def test_paging_goes_through_all_regions_once(client):
    everything = client.regions(1, order="unsure")
    pages = [client.regions(1, order="unsure", offset=offset, limit=2) for offset in range(0, len(everything) + 2, 2)]
    assert [region for page in pages for region in page] == everything and len(everything) > 4
    assert client.regions(1, order="sure", contains="000") == [r for r in client.regions(1, order="sure") if r == 0]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "192.168.1.5:8765",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "localhost.evil.example",
    ],
)
def test_names_of_other_machines_are_refused(client, host):
    assert client.http.get("/api/state", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "127.0.0.2"])
def test_names_of_this_machine_are_served(client, host):
    assert client.http.get("/api/state", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9999"}, {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:8765.evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_requests_from_other_sites_change_nothing(client, headers):
    content = {
        "key": "cross-site",
        "version": 0,
        "table": client.state["table"],
        "action": {"kind": "name", "label": 1, "name": "x"},
    }
    assert client.http.post("/api/actions", json=content, headers=headers).status_code == 403
    assert client.look()["version"] == 0
    own = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    assert client.http.post("/api/actions", json=content, headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/", "/review.js", "/api/state", "/api/moves", "/crops/0", "/overlay/0", "/nowhere"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)  # fmt: skip
def test_requests_from_other_sites_make_no_work_and_tell_nothing(client, path, headers, monkeypatch):
    monkeypatch.setattr(Pictures, "_read_whole", None)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert client.http.request(method, path, headers=headers).status_code == 403


def test_a_link_from_another_site_opens_the_page_and_nothing_else(client):
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.http.get("/", headers=linked).status_code == 200
    assert client.http.get("/overlay/0", headers=linked).status_code == 403
    for own in ("none", "same-origin"):  # typed, and asked for by the page
        assert client.http.get("/overlay/0", headers={"Sec-Fetch-Site": own}).status_code == 200


class Held:
    """Pictures that are not made before they are let go."""

    def __init__(self, monkeypatch):
        self.go, self.lock, self.now, self.most = threading.Event(), threading.Lock(), 0, 0
        monkeypatch.setattr(Pictures, "image", self.image)

    def image(self, *_, **__):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go.wait(30)
        with self.lock:
            self.now -= 1
        return b"a picture"


def test_few_pictures_are_made_at_once_and_the_rest_wait_or_are_told_to(review, monkeypatch):
    monkeypatch.setattr(app_module, "WAITING", 4)
    held, client = Held(monkeypatch), review()
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(client.http.get, f"/overlay/{number}") for number in range(12)]
        while (n_done := sum(one.done() for one in asked)) < 6:
            time.sleep(0.01)
        assert n_done == 6 and client.look(), "nothing else waits for them"
        held.go.set()
        statuses = [one.result().status_code for one in asked]
    assert held.most == app_module.AT_ONCE == 2
    assert sorted(statuses) == [200] * 6 + [503] * 6
    answer = asked[statuses.index(503)].result()
    assert "Too many pictures" in answer.json()["detail"] and answer.headers["Retry-After"] == "1"
    assert client.http.get("/overlay/0").status_code == client.http.get("/crops/0").status_code == 200


def places(run):
    return {str(run), str(run.parent), str(run.resolve())}


def test_no_answer_tells_where_things_lie(client, run, monkeypatch):
    addresses = [
        "/api/state", "/api/version", "/api/moves", "/api/classes/1/regions?limit=500", "/crops/0", "/overlay/0", "/nowhere",
        "/api/classes/77/regions",
    ]  # fmt: skip
    answers = [client.http.get(address) for address in addresses]
    whole = {name: (run / name).read_bytes() for name in ("regions.csv", "images.csv", "manifest.csv", "classes.json")}
    for name, content in whole.items():
        for damaged in (b"", b"image\n", b"{", b"\xff"):
            (run / name).write_bytes(damaged)
            answers += [client.http.get(address) for address in addresses]
            answers.append(client.send("name", label=1, name="dent"))
        (run / name).write_bytes(content)

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(run / "review.sqlite"))

    monkeypatch.setattr(client.http.app.state.session.log, "append", broken)
    told = client.send("name", label=1, name="dent")
    assert told.status_code == 503 and told.json()["detail"].endswith("No space left on device: 'run/review.sqlite'")
    monkeypatch.setattr(client.http.app.state.session, "refresh", lambda: sqlite3.connect(str(run / "no" / "file")))
    answers += [told, client.http.get("/api/state")]
    assert {answer.status_code for answer in answers} >= {200, 404, 409, 503}
    assert [answer.text for answer in answers if any(place in answer.text for place in places(run))] == []


def test_forms_and_large_requests_are_refused(client):
    body = json.dumps({"key": "form-post", "version": 0})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert client.http.post("/api/apply", content=body, headers={"Content-Type": kind}).status_code == 415
    headers = {"Content-Type": "application/json"}
    assert client.http.post("/api/actions", content=b"[" + b"1," * 600_000, headers=headers).status_code == 413
    in_pieces = (b" " * 100_000 for _ in range(20))  # without a length in the header
    assert client.http.post("/api/actions", content=in_pieces, headers=headers).status_code == 413


def test_with_a_token_nothing_is_served_without_it(review):
    client = review(token=TOKEN)
    pages = ["/", "/review.js", "/api/state", "/crops/0", "/overlay/0", "/api/openapi.json"]
    for path in (*pages, "/?token=wrong-token", "/?token=", f"/api/state?token={TOKEN}"):
        answer = client.http.get(path)
        assert answer.status_code == 401 and TOKEN not in answer.text, path
    for header in (
        "Bearer wrong-token",
        "Bearer",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9",
    ):
        assert client.http.get("/api/state", headers={"Authorization": header.encode("latin-1")}).status_code == 401
    for cookie in (TOKEN, "x", '"'):
        assert client.http.get("/api/state", headers={"Cookie": f"anomalyncd_8765={cookie}"}).status_code == 401
    assert client.http.post("/api/actions", json={}).status_code == 401


def test_the_token_opens_from_any_host_as_header_and_as_cookie(review):
    client = review(token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}", "Host": "line-3.factory:8765"}
    assert client.http.get("/api/state", headers=bearer).status_code == 200
    first = client.http.get(f"/?token={TOKEN}", follow_redirects=False)
    assert first.status_code == 303 and first.headers["location"] == "/", "the token leaves the address bar"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and TOKEN not in cookie
    client.look()
    client.act("name", label=1, name="dent")
    content = {"key": "cross-site", "version": 0}
    assert client.http.post("/api/apply", json=content, headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_mistake_of_ours_has_a_number_and_no_traceback(client, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the program")

    monkeypatch.setattr("anomalyncd.review.app.moves_answer", broken)
    answer = client.http.get("/api/moves")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["detail"].split()[2].rstrip(":") in caplog.text and "a secret" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_request_that_the_schema_allows_makes_an_unexpected_error(client):
    app = client.http.app

    async def without_end(scope, receive, send):
        """The app, which would be over after the first of schemathesis' calls."""
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    here = {"Host": "127.0.0.1"}
    found = schemathesis.openapi.from_asgi("/api/openapi.json", without_end, headers=here)
    operations = [operation.ok() for operation in found.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:

        @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def check(case):
            case.call_and_validate(headers=here, checks=[not_a_server_error])

        check()
