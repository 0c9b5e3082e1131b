"""The routes of the studio: what they answer, and whom they refuse.

Covers answers, days, orders, pictures, predictions, schema, reviews, uploads.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from starlette.types import Receive, Scope, Send

from anomalyncd.studio.app import make_studio
from anomalyncd.studio.jobs import Jobs
from anomalyncd.studio.roots import Roots
from anomalyncd.studio.uploads import Uploads

Open = Callable[..., Any]
TOKEN = "a-token-of-my-own"


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of these tests wait for ever: what they do is tested elsewhere."""
    monkeypatch.setattr(Jobs, "start", lambda _: None)


def test_the_state_tells_runs_counts_and_roots(studio: Open) -> None:
    state = studio().get("/api/state").json()
    (run,) = state["runs"]
    assert state["roots"] == ["pictures", "work"] and state["jobs"] == []
    assert run["name"] == "plate" and run["n_images"] == 12 and run["is_finished"]
    assert sum(one["n_images"] for one in run["classes"]) == 12
    assert run["n_kinds"] == sum(one["label"] > 0 for one in run["classes"])
    assert run["n_normal"] == sum(one["n_images"] for one in run["classes"] if one["label"] == 0)


def test_an_empty_workspace_is_made(studio: Open, place: Path) -> None:
    state = studio("new/deep").get("/api/state").json()
    assert state["runs"] == [] and (place / "new/deep").is_dir()


def test_a_run_that_cannot_be_read_is_shown_with_words(studio: Open, place: Path) -> None:
    (place / "work/plate/images.csv").write_text("nonsense\n1\n")
    (run,) = studio().get("/api/state").json()["runs"]
    assert not run["is_finished"] and run["trouble"] and str(place) not in run["trouble"]


def test_folders_are_listed_with_their_images(studio: Open) -> None:
    http = studio()
    assert http.get("/api/folders").json()["folders"] == ["masks", "plates"]
    found = http.get("/api/folders", params={"root": 0, "path": "plates"}).json()
    assert found["n_images"] == 12 and found["name"] == "plates" and found["images"][0] == "000.png"
    answer = http.get("/folders/picture", params={"root": 0, "path": "plates/000.png"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/jpeg"


OUTSIDE = [
    "..", "../private", "plates/../../private", "/etc", "a\0b", "link", "link/secret", "no such", "x" * 4000,
    "plates/000.png/..", "..\\private", "C:\\", "~", "loop", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_sent_is_taken_for_a_place_outside(studio: Open, place: Path, path: str) -> None:
    (place / "pictures/link").symlink_to(place / "private")
    (place / "pictures/loop").symlink_to(place / "pictures/loop")
    http = studio()
    if path != "\ud800":  # which no address can hold
        assert http.get("/api/folders", params={"root": 0, "path": path}).status_code == 404
        assert http.get("/folders/picture", params={"root": 0, "path": f"{path}/secret.png"}).status_code == 404
    body = json.dumps({"images": {"root": 0, "path": path}})
    for address in ("/api/runs", "/api/runs/plate/predict"):
        answer = http.post(address, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (404, 422) and str(place) not in answer.text
    assert http.get("/api/state").json()["jobs"] == [] and sorted(p.name for p in (place / "work").iterdir()) == [
        ".studio", "plate",
    ]  # fmt: skip


def test_a_link_that_stays_inside_may_be_chosen_and_one_that_leads_out_is_not_shown(studio: Open, place: Path) -> None:
    (place / "pictures/inside").symlink_to(place / "pictures/plates")
    (place / "pictures/outside").symlink_to(place / "private")
    http = studio()
    assert http.get("/api/folders").json()["folders"] == ["inside", "masks", "plates"]
    assert http.get("/api/folders", params={"path": "inside"}).json()["n_images"] == 12


def test_a_new_run_is_a_command_in_the_queue(studio: Open, place: Path) -> None:
    http = studio()
    body = {
        "name": "  first / ../ try ", "images": {"root": 0, "path": "plates"},
        "normal": {"root": 0, "path": "masks"}, "kinds": 3,
    }  # fmt: skip
    answer = http.post("/api/runs", json=body)
    assert answer.status_code == 202 and answer.json()["state"] == "waiting" and answer.json()["run"] == "first-try"
    (job,) = http.app.state.jobs.all()
    said = job.order["arguments"]
    assert said[:6] == [
        "discover", str(place / "pictures/plates"), "--normal", str(place / "pictures/masks"), "--classes", "4",
    ]  # fmt: skip
    assert said[said.index("--out") + 1] == str(place / "work/first-try") and "--backbone=tiny" in said
    again = http.post("/api/runs", json={**body, "all_defective": True}).json()
    assert again["run"] == "first-try-2"
    said = http.app.state.jobs.all()[1].order["arguments"]
    assert "--no-normal" in said and said[said.index("--classes") + 1] == "3"


def test_what_waits_can_be_stopped_resumed_and_forgotten(studio: Open, place: Path) -> None:
    http = studio()
    http.post("/api/demo", json={})
    assert (place / "work/demo").is_dir()
    for act, state in (("stop", "stopped"), ("resume", "waiting"), ("stop", "stopped")):
        assert http.post(f"/api/jobs/1/{act}", json={}).json()["state"] == state
    assert http.post("/api/jobs/1/forget", json={}).status_code == 200
    assert http.get("/api/jobs/1").status_code == 404 and http.post("/api/jobs/1/stop", json={}).status_code == 404
    assert not (place / "work/demo").exists() and (place / "work/plate").exists()


def test_predict_says_what_the_run_needs(studio: Open) -> None:
    http = studio()
    assert http.get("/api/runs/plate").json()["needs"] == "mask" and http.get("/api/runs/none").status_code == 404
    answer = http.post("/api/runs/plate/predict", json={"images": {"root": 0, "path": "plates"}})
    assert answer.status_code == 409 and "mask" in answer.json()["detail"]
    body = {"images": {"root": 0, "path": "plates"}, "maps": {"root": 0, "path": "masks"}}
    assert http.post("/api/runs/plate/predict", json=body).status_code == 202
    said = http.app.state.jobs.all()[0].order["arguments"]
    assert said[0] == "predict" and "--masks" in said and http.get("/api/jobs/1/result").status_code == 409


def test_a_prediction_is_shown_by_class(studio: Open, place: Path) -> None:
    http = studio()
    body = {"images": {"root": 0, "path": "plates"}, "maps": {"root": 0, "path": "masks"}}
    http.post("/api/runs/plate/predict", json=body)
    (job,) = http.app.state.jobs.all()
    shutil.copy(place / "work/plate/images.csv", job.folder / "images.csv")
    found = http.get("/api/jobs/1/result", params={"limit": 5}).json()
    assert found["total"] == 12 and len(found["images"]) == 5
    label = found["classes"][0]["label"]
    some = http.get("/api/jobs/1/result", params={"label": label}).json()
    assert some["total"] == found["classes"][0]["n_images"] and {one["label"] for one in some["images"]} == {label}
    assert http.get("/jobs/1/images/0").status_code == 200 and http.get("/jobs/1/images/12").status_code == 404
    table = (job.folder / "images.csv").read_text().replace("000.png", "../../private/secret.png")
    (job.folder / "images.csv").write_text(table)
    assert http.get("/jobs/1/images/0").status_code == 404  # a table may say anything


def test_pictures_of_a_run(studio: Open) -> None:
    http = studio()
    for address in ("/runs/plate/picture", "/runs/plate/images/0"):
        answer = http.get(address)
        assert answer.status_code == 200 and answer.content[:2] == b"\xff\xd8"
    for address in ("/runs/none/picture", "/runs/plate/images/99", "/runs/%2e%2e/picture", "/runs/.studio/picture"):
        assert http.get(address).status_code == 404


def test_a_report_gets_an_origin_of_its_own(studio: Open, place: Path) -> None:
    http = studio()
    assert http.get("/runs/plate/report").status_code == 404
    (place / "work/plate/report.html").write_text("<p>hello")
    answer = http.get("/runs/plate/report")
    assert answer.text == "<p>hello" and answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
    (place / "work/plate/report.html").unlink()
    (place / "work/plate/report.html").symlink_to(place / "private/secret.png")
    assert http.get("/runs/plate/report").status_code != 200


def test_the_review_of_a_run_is_inside(studio: Open, place: Path) -> None:
    http = studio()
    assert http.get("/runs/plate/review", follow_redirects=False).headers["location"] == "/runs/plate/review/"
    assert "<title>Review" in http.get("/runs/plate/review/").text
    state = http.get("/runs/plate/review/api/state").json()
    assert sum(card["n_regions"] for card in state["classes"]) == 10 and state["run"] == "plate"
    action = {"kind": "name", "label": state["classes"][0]["label"], "name": "blot"}
    body = {"key": "a-first-key", "version": state["version"], "table": state["table"], "action": action}
    assert http.post("/runs/plate/review/api/actions", json=body).status_code == 200
    assert http.get("/runs/plate/review/crops/0").status_code == 200
    assert http.get("/runs/none/review/").status_code == 404
    (place / "work/broken").mkdir()
    (place / "work/broken/stages.json").write_text('{"format": 7}')
    answer = http.get("/runs/broken/review/api/state")
    assert answer.status_code == 503 and str(place) not in answer.text


def test_two_studios_do_not_share_a_workspace(studio: Open, place: Path) -> None:
    studio()
    with pytest.raises(Exception, match="another studio"):
        make_studio(place / "work", Roots([]))


def test_without_roots_only_the_workspace_can_be_chosen_from(place: Path) -> None:
    app = make_studio(place / "work", Roots([]))
    assert app.state.workspace.path == (place / "work").resolve()
    app.state.close()


PLACES = (
    "/api/state",
    "/api/folders",
    "/runs/plate/picture",
    "/runs/plate/report",
    "/runs/plate/review/api/state",
    "/",
)


@pytest.mark.parametrize("address", PLACES)
def test_every_route_is_behind_the_guard(studio: Open, address: str) -> None:
    http = studio(token=TOKEN)
    assert http.get(address).status_code == 401
    assert http.get(address, headers={"Authorization": "Bearer wrong-token"}).status_code == 401
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    assert http.get(address, headers=allowed).status_code in (200, 404)
    assert http.get(address, headers={**allowed, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.get(address, headers={**allowed, "Origin": "http://evil.example"}).status_code == 403


def test_a_link_opens_the_page_and_the_token_becomes_a_cookie(studio: Open) -> None:
    http = studio(token=TOKEN)
    answer = http.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert answer.status_code == 303 and TOKEN not in answer.headers["set-cookie"]
    assert http.get("/api/state").status_code == 200


@pytest.mark.parametrize("address", ["/api/runs", "/api/demo", "/api/jobs/1/stop", "/runs/plate/review/api/actions"])
def test_posts_of_others_too_large_or_not_json_are_refused(studio: Open, address: str) -> None:
    http = studio()
    assert http.post(address, json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert http.post(address, json={}, headers={"Host": "evil.example"}).status_code == 403
    assert http.post(address, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert http.post(address, json={"name": "x" * 1_100_000}).status_code == 413
    assert http.post(address, content=b"{", headers={"Content-Type": "application/json"}).status_code in (404, 422)


def test_no_request_makes_an_unexpected_error(place: Path) -> None:
    app: FastAPI = make_studio(place / "work", Roots([place / "pictures"]), TOKEN)

    async def without_end(scope: Scope, receive: Receive, send: Send) -> None:
        """The app, which would be over after the first of schemathesis' calls."""
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    allowed = {"Authorization": f"Bearer {TOKEN}"}
    found = schemathesis.openapi.from_asgi("/api/openapi.json", without_end, headers=allowed)
    operations = [operation.ok() for operation in found.get_all_operations()]
    assert len(operations) >= 22  # all that there are, the review of a run has its own
    for operation in operations:

        @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=allowed, checks=[not_a_server_error])

        check()
    app.state.close()


def picture_bytes(place: Path) -> bytes:
    return (place / "pictures/plates/000.png").read_bytes()


def test_files_that_are_dropped_become_a_folder_to_choose(studio: Open, place: Path) -> None:
    http = studio()
    folder = http.post("/api/uploads", json={"name": "my plates"}).json()
    assert folder == {"root": 1, "path": "dropped/my-plates"}
    kind = {"Content-Type": "application/octet-stream"}
    for name, kept in (("a.png", "a.png"), ("a.png", "a-2.png"), ("../../b c.PNG", "b-c.PNG"), ("x/y.jpg", "y.jpg")):
        sent = http.post("/api/uploads/my-plates", params={"name": name}, content=picture_bytes(place), headers=kind)
        assert sent.status_code == 201 and sent.json() == {"name": kept}
    found = http.get("/api/folders", params=folder).json()
    assert found["n_images"] == 4 and http.post("/api/runs", json={"images": folder}).status_code == 202
    assert sorted(p.name for p in (place / "work/dropped/my-plates").iterdir()) == [
        "a-2.png",
        "a.png",
        "b-c.PNG",
        "y.jpg",
    ]
    assert {p.name for p in place.iterdir()} == {"work", "pictures", "private"}


@pytest.mark.parametrize(
    ("folder", "name", "content", "status"),
    [
        ("some", "a.png", b"no picture", 415), ("some", "a.exe", None, 415), ("some", "..", None, 415),
        ("some", "", None, 415), ("some", "a.png", b"", 415), ("some", "x" * 2000, None, 422), ("none", "a.png", None, 404),
        ("..%2F..", "a.png", None, 404), ("link", "a.png", None, 404), (".hidden", "a.png", None, 404),
        ("some%2F..%2F..", "a.png", None, 404), ("..%5C..", "a.png", None, 404),
    ],
)  # fmt: skip
def test_what_is_no_image_or_no_folder_is_not_kept(
    studio: Open, place: Path, folder: str, name: str, content: bytes | None, status: int
) -> None:
    http = studio()
    http.post("/api/uploads", json={"name": "some"})
    (place / "work/dropped/link").symlink_to(place / "private")
    (place / "work/dropped/.hidden").mkdir()
    before = sorted(place.rglob("*"))
    content = picture_bytes(place) if content is None else content
    answer = http.post(
        f"/api/uploads/{folder}", params={"name": name}, content=content, headers={"Content-Type": "image/png"}
    )
    assert answer.status_code == status and str(place) not in answer.text
    assert sorted(place.rglob("*")) == before


def test_uploads_are_bounded_and_guarded(studio: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anomalyncd.studio import uploads

    http = studio(token=TOKEN)
    known, kind = {"Authorization": f"Bearer {TOKEN}"}, {"Content-Type": "image/png"}
    http.post("/api/uploads", json={"name": "some"}, headers=known)

    def send(content: bytes, **headers: str) -> int:
        address = "/api/uploads/some?name=a.png"
        return int(http.post(address, content=content, headers={**known, **kind, **headers}).status_code)

    assert http.post("/api/uploads/some?name=a.png", content=b"x", headers=kind).status_code == 401
    assert send(picture_bytes(place), Origin="http://evil.example") == 403
    assert send(picture_bytes(place), **{"Content-Type": "text/plain"}) == 415
    assert send(picture_bytes(place), **{"Content-Length": str(10**9)}) == 413
    assert send(bytes(uploads.MOST_BYTES + 1)) == 413
    monkeypatch.setattr(uploads, "MOST_FILES", 1)
    assert send(picture_bytes(place)) == 201 and send(picture_bytes(place)) == 413
    monkeypatch.setattr(uploads, "MOST_FILES", 9)
    monkeypatch.setattr(uploads, "MOST_OF_ALL", len(picture_bytes(place)))
    assert send(picture_bytes(place)) == 413
    assert (
        http.post(
            "/api/runs", content=bytes(2_000_000), headers={**known, "Content-Type": "application/json"}
        ).status_code
        == 413
    )


def test_many_of_one_name_at_once_are_all_kept(studio: Open, place: Path) -> None:
    http = studio()
    http.post("/api/uploads", json={"name": "some"})
    uploads, content = Uploads(http.app.state.workspace), picture_bytes(place)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: uploads.take("some", "a.png", content), range(24)))
    assert len(set(names)) == 24 and all((place / "work/dropped/some" / name).read_bytes() == content for name in names)


def test_a_run_may_not_take_the_folder_of_what_is_dropped(studio: Open) -> None:
    http = studio()
    answer = http.post("/api/runs", json={"name": "Dropped", "images": {"root": 0, "path": "plates"}})
    assert answer.json()["run"] == "Dropped-2"


def test_known_kinds_and_parts_to_ignore_become_options(studio: Open, place: Path) -> None:
    http = studio()
    box = [[0.1, 0.1], [0.2, 0.1], [0.2, 0.2], [0.1, 0.2]]
    images = {"root": 0, "path": "plates"}
    body = {"name": "one", "images": images, "known": {"root": 0, "path": "masks"}, "ignore": [box]}
    assert http.post("/api/runs", json=body).status_code == 202
    assert http.post("/api/runs", json={"name": "two", "images": images, "known_run": "plate"}).status_code == 202
    one, two = (job.order["arguments"] for job in http.app.state.jobs.all())
    assert one[one.index("--known") + 1] == str(place / "pictures/masks")
    assert json.loads(Path(one[one.index("--ignore") + 1]).read_text()) == [box]
    assert two[two.index("--known") + 1] == str(place / "work/plate") and "--ignore" not in two
    both = {"images": images, "known": images, "known_run": "plate"}
    assert http.post("/api/runs", json=both).status_code == 409
    assert http.post("/api/runs", json={"images": images, "known_run": "../private"}).status_code == 409
    for shapes in ([[[0, 0], [1, 1]]], [[[0, 0], [1, 1], [2, 0]]], [box] * 51, "../x"):
        assert http.post("/api/runs", json={"images": images, "ignore": shapes}).status_code == 422


def test_it_is_told_what_ignored_parts_take_away_and_the_run_is_made_beside(studio: Open, place: Path) -> None:
    from anomalyncd.run.finished import FinishedRun

    http = studio()
    everything, nothing = [[[0, 0], [1, 0], [1, 1], [0, 1]]], [[[0, 0], [0.01, 0], [0, 0.01]]]
    table = FinishedRun(place / "work/plate").regions
    told = http.post("/api/runs/plate/ignore/check", json={"ignore": everything}).json()
    assert told["n_regions"] == len(table) and sum(one["n_images"] for one in told["classes"]) == len(table)
    assert told["n_images"] == table[table["label"] > 0]["image"].nunique()
    assert http.post("/api/runs/plate/ignore/check", json={"ignore": nothing}).json()["n_regions"] == 0
    assert http.post("/api/runs/plate/ignore", json={"ignore": everything}).status_code == 409  # not made here
    http.app.state.jobs.add(
        {"kind": "discover", "run": "plate", "title": "plate"},
        ["discover", "x", "--ignore", "old.json", "--out", str(place / "work/plate")],
    )
    assert http.post("/api/runs/plate/ignore", json={"ignore": nothing}).json()["run"] == "plate-2"
    said = http.app.state.jobs.all()[-1].order["arguments"]
    assert said[said.index("--out") + 1] == str(place / "work/plate-2") and said.count("--ignore") == 1
    assert "--known" not in said  # nobody has named anything


def test_days_of_sqlite_and_parquet_follow_what_watch_writes(studio: Open, place: Path) -> None:
    work, http = place / "work", studio()
    rows = pd.DataFrame({"image": ["a.png"], "label": [0], "class_name": ["normal"], "time": ["2026-11-18T10:00:00"]})
    with closing(sqlite3.connect(work / "line.sqlite")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        rows.to_sql("images", db, index=False)
        rows.to_sql("regions", db, index=False)
        db.commit()
        assert "2026-11-18" in http.get("/days/line.sqlite").text
        rows.assign(time="2026-11-19T10:00:00").to_sql("images", db, index=False, if_exists="append")
        db.commit()
        assert "2026-11-19" in http.get("/days/line.sqlite").text
    pytest.importorskip("pyarrow")
    (work / "days.parquet").mkdir()
    rows.to_parquet(work / "days.parquet" / "2026-11-18.parquet")
    assert "days.parquet" in http.get("/api/state").json()["tables"]
    assert "2026-11-18" in http.get("/days/days.parquet").text
    rows.assign(time="2026-11-19T10:00:00").to_parquet(work / "days.parquet" / "2026-11-19.parquet")
    assert "2026-11-19" in http.get("/days/days.parquet").text
    (work / "days.parquet" / "2026-11-20.parquet").symlink_to(place / "private/secret.png")
    assert http.get("/days/days.parquet").status_code == 409


def test_the_page_of_the_day_of_tables_and_predictions(studio: Open, place: Path) -> None:
    shutil.copy(place / "work/plate/images.csv", place / "work/line.csv")
    (place / "work/line_regions.csv").write_text("image\n")
    (place / "work/link.csv").symlink_to(place / "private/secret.png")
    http = studio()
    assert http.get("/api/state").json()["tables"] == ["line.csv"]
    page = http.get("/days/line.csv")
    assert page.status_code == 200 and "sandbox" in page.headers["content-security-policy"] and "line" in page.text
    for name in ("link.csv", "none.csv", "..%2Fprivate", "plate"):
        assert http.get(f"/days/{name}").status_code == 404
    body = {"images": {"root": 0, "path": "plates"}, "maps": {"root": 0, "path": "masks"}}
    http.post("/api/runs/plate/predict", json=body)
    assert http.get("/jobs/1/day").status_code == 404 and http.get("/jobs/7/day").status_code == 404
    (job,) = http.app.state.jobs.all()
    shutil.copy(place / "work/plate/images.csv", job.folder / "images.csv")
    assert http.get("/jobs/1/day").status_code == 200
    (job.folder / "images.csv").write_text("nonsense\n1\n")
    answer = http.get("/jobs/1/day")
    assert answer.status_code == 409 and str(place) not in answer.text
