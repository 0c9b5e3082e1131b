"""What a watched line ends with: each content of each path once, whatever happened in between. Covers columns, classing."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anomalyncd.checksums import sha256
from anomalyncd.errors import RunError
from anomalyncd.watch.arrivals import Arrival, marks_of
from anomalyncd.watch.classing import Reader
from anomalyncd.watch.columns import IMAGE_COLUMNS
from anomalyncd.watch.drift import BLOCK, REFERENCE
from anomalyncd.watch.ledger import Ledger, content_id
from anomalyncd.watch.places import Places
from anomalyncd.watch.table import GrowingTable
from anomalyncd.watch.watcher import Pace


def test_each_content_of_each_path_is_one_row(line) -> None:
    line.put("a.png", 10), line.put("b/c.png", 200), line.put("b/same.png", 10), line.put("notes.txt", b"x")
    line.go()
    table = line.rows()
    assert list(table) == list(IMAGE_COLUMNS)
    assert sorted(table["image"]) == ["a.png", "b/c.png", "b/same.png"] and table["seq"].tolist() == [1, 2, 3]
    row = table[table["image"] == "b/c.png"].iloc[0]
    assert (row["class_name"], row["label"], row["width"], row["height"], row["status"]) == ("bright", 1, 8, 6, "ok")
    assert (row["area"], row["brightness"], row["contrast"], row["score"]) == (0.5, 200, 0, 200)
    assert row["id"] == content_id("b/c.png", row["sha256"])
    regions = pd.read_csv(line.table.with_name("table_regions.csv"))
    assert regions[["seq", "image", "width"]].values.tolist() == [[row["seq"], "b/c.png", 4]]
    before = line.table.read_bytes()
    line.go()
    assert line.table.read_bytes() == before


def test_a_replaced_file_is_a_new_row_and_a_content_that_returns_is_not(line) -> None:
    for value in (10, 200, 10):
        path = line.put("a.png", value)
        line.go()
    path.touch()
    line.go()
    assert line.rows()["brightness"].tolist() == [10, 200]


def test_a_half_written_file_waits_and_one_that_never_is_whole_is_told_of(line, picture) -> None:
    content = picture(90)
    line.put("half.png", content[:40])
    line.put("empty.png", b"")
    watcher = line.watcher(pace=Pace(0.01, 0.0, patience=1000))
    ready, _ = watcher.arrivals.look()
    assert watcher._read(ready) == ([], {})
    for cut in (len(content) - 12, len(content) - 2):  # decoders are content with that
        line.put("half.png", content[:cut])
        ready, _ = watcher.arrivals.look()
        assert watcher._read([one for one in ready if one.name == "half.png"]) == ([], {})
    watcher.ledger.close()
    line.put("half.png", content)
    line.go()
    table = line.rows().set_index("image")
    assert table["status"].to_dict() == {"half.png": "ok", "empty.png": "unreadable"}
    line.put("half.png", content[:40])
    line.go()
    assert line.rows()["status"].tolist().count("unreadable") == 2
    assert "damaged" in line.rows()["message"].iloc[-1] or "broken" in line.rows()["message"].iloc[-1]


def test_an_image_that_the_network_chokes_on_does_not_stop_the_others(line) -> None:
    line.put("a.png", 10), line.put("b.png", 13), line.put("c.png", 200)
    line.go()
    table = line.rows().set_index("image")
    assert table["status"].to_dict() == {"a.png": "ok", "b.png": "unreadable", "c.png": "ok"}
    assert table.loc["b.png", "message"] == "could not be classed (RuntimeError: chokes on 13)"


def test_a_new_model_is_taken_up_and_one_that_cannot_be_read_is_waited_for(line) -> None:
    line.put("a.png", 200)
    watcher = line.watcher()

    def once() -> None:
        watcher._refresh()
        ready, _ = watcher.arrivals.look()
        watcher._take(ready, watcher._drift())

    once()
    line.train("second")
    line.glance.name = "renamed"
    line.put("b.png", 201)
    once()

    def broken() -> None:
        raise RunError("being written")

    watcher.model._load, line.glance.name = broken, "never"
    line.train("third, half")
    line.put("c.png", 202)
    once()
    table = line.rows()
    assert table["class_name"].tolist()[:2] == ["bright", "renamed"] and table["model"].nunique() == 2
    assert len(table) == 3 and table["model"].iloc[2] == table["model"].iloc[1]


def open_ledger(line) -> closing[Ledger]:
    return closing(Ledger(line.table.with_name("table.csv.watch"), tables=False))


class Failing(GrowingTable):
    """Fails a few times, before or after the work."""

    def __init__(self, table: GrowingTable, times: int) -> None:
        self.table, self.times = table, times

    def flush(self, *, last: bool = False) -> None:
        self.times -= 1
        if self.times >= 0:
            raise RunError("no space left")
        self.table.flush(last=last)


def test_files_that_wait_are_told_of(line, monkeypatch) -> None:
    line.put("a.png", b"x"), line.put("b.png", b"y")
    watcher, said = line.watcher(pace=Pace(0.01, 0.0, patience=0)), []
    monkeypatch.setattr(watcher.progress, "warn", said.append)
    watcher.reader.content = lambda arrival, patience: None  # locked by another program
    watcher.run(once=True), watcher.run(once=True)
    assert said == ["a.png waits because it cannot be opened, and 1 more like it"]


def test_trouble_is_told_waited_for_and_loses_nothing(line, monkeypatch) -> None:
    for k in range(5):
        line.put(f"{k}.png", 10 + k)
    watcher = line.watcher()
    monkeypatch.setattr("anomalyncd.watch.watcher.LONGEST_REST", 0.01)
    watcher.pace = Pace(0.01, 0.0, patience=60)
    watcher.table = Failing(watcher.table, 4)
    said: list[str] = []
    monkeypatch.setattr(watcher.progress, "warn", said.append)
    watcher.run(once=True)
    assert said == ["no space left"] and watcher.status.problem == ""
    assert sorted(line.rows()["image"]) == [f"{k}.png" for k in range(5)]


def test_a_receiver_that_takes_nothing_is_told_of_once_and_again_when_it_does(line, monkeypatch) -> None:
    waits = {"wake": lambda: None, "line": SimpleNamespace(name="webhook"), "since": time.monotonic()}
    sender = SimpleNamespace(problem="webhook: 401 Unauthorized", **waits)
    watcher, said = line.watcher(senders=[sender]), []
    for name in ("say", "warn"):
        monkeypatch.setattr(watcher.progress, name, lambda text, name=name: said.append(f"{name} {text}"))
    watcher.run(once=True)
    assert not said and not watcher.status.away  # one refusal is nothing
    sender.since -= 60
    watcher.run(once=True), watcher.run(once=True)
    assert watcher.status.away == {"webhook": sender.problem} and len(said) == 1
    assert said[0].startswith("warn webhook: 401 Unauthorized. Messages wait on disk")
    sender.problem = ""
    watcher.run(once=True)
    assert said[1:] == ["say webhook takes messages again"] and not watcher.status.away


def test_images_are_committed_while_the_table_cannot_be_written(line) -> None:
    line.put("a.png", 10)
    line.go()
    before = line.table.read_bytes()
    line.table.write_bytes(before + b"a line by hand\n")
    line.put("b.png", 200)
    with pytest.raises(RunError, match="found another file"):
        line.go()
    with open_ledger(line) as ledger:
        assert [image["image"] for _, image, _ in ledger.rows()] == ["b.png"]
    line.table.write_bytes(before)
    line.go()
    assert line.rows()["image"].tolist() == ["a.png", "b.png"]


def test_files_go_into_the_folders_of_their_classes(line, tmp_path) -> None:
    line.put("a.png", 10), line.put("sub/a.png", 200), line.put("x.png", b"no image")
    line.go(places=Places(tmp_path / "kinds", link=False))
    placed = sorted(path.relative_to(tmp_path / "kinds").as_posix() for path in (tmp_path / "kinds").rglob("*.png"))
    assert placed == ["bright/sub_a.png", "normal/a.png", "unreadable/x.png"]
    assert not list(line.folder.rglob("*.png")) and Path(line.rows()["file"].iloc[0]).exists()
    line.put("a.png", 11)
    line.go(places=Places(tmp_path / "kinds", link=False))
    assert len(list((tmp_path / "kinds" / "normal").iterdir())) == 2 and len(line.rows()) == 4


def test_drift_is_counted_across_restarts_and_anew_for_a_new_model(line) -> None:
    watcher = line.watcher()
    drift = watcher._drift()
    for value in [50.0] * (BLOCK * REFERENCE):
        drift.add({"brightness": value + np.sin(value)})
    watcher.ledger.commit([], notes={"drift": json.dumps(drift.state()), "model of drift": watcher.model.id})
    watcher.ledger.close()
    line.put("a.png", 90)
    line.go()
    with open_ledger(line) as ledger:
        state = json.loads(ledger.note("drift"))
    assert len(state["streams"]["brightness"][1]) == REFERENCE and state["streams"]["brightness"][0] == [90]
    line.train("second")
    line.put("b.png", 91)
    line.go()
    with open_ledger(line) as ledger:
        assert json.loads(ledger.note("drift"))["streams"]["brightness"] == [[91], [], []]


def test_a_sqlite_table_and_days_of_parquet_hold_the_same(line) -> None:
    pytest.importorskip("pyarrow")
    line.put("a.png", 10), line.put("b.png", 200), line.put("x.png", b"no image")
    line.go()
    rows = line.rows()
    line.table = line.table.with_name("table.sqlite")
    line.go()
    with sqlite3.connect(line.table) as db:
        stored = pd.read_sql("SELECT * FROM images", db)
        assert db.execute("SELECT COUNT(*) FROM regions").fetchone() == (1,)
    line.table = line.table.with_name("table.parquet")
    line.go()
    line.put("c.png", 30)
    line.go()
    (file,) = [path for path in line.table.glob("*.parquet") if not path.stem.endswith("_regions")]
    daily = pd.read_parquet(file)
    assert len(daily) == 4 and len(pd.read_parquet(file.with_name(f"{file.stem}_regions.parquet"))) == 1
    for other in (stored, daily[daily["image"] != "c.png"]):
        for column in ("image", "status", "label", "class_name", "sha256", "area"):
            assert other[column].astype(str).replace({"nan": "", "None": "", "<NA>": ""}).tolist() == rows[
                column
            ].astype(str).replace({"nan": ""}).tolist() or column in ("label", "area")


def test_it_stops_when_it_is_told_to(line) -> None:
    watcher = line.watcher()
    threading.Timer(0.1, watcher.stop).start()
    started = time.monotonic()
    watcher.run()
    assert time.monotonic() - started < 5 and watcher.status.stopping


def test_a_file_that_no_memory_holds_is_written_down_as_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anomalyncd.watch.arrivals.memory_limit", lambda: 1_000_000)
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(3_000_000)
    arrival = Arrival("huge.png", str(marks_of(tmp_path / "huge.png")), 99.0)
    reader = Reader(tmp_path)
    found = reader.content(arrival)
    assert found is not None and found[1] == b"" and found[0].n_bytes == 3_000_000
    read = reader.decode(*found)
    assert read is not None and read.sample is None and read.error.startswith("too large: the file has 3,000,000 bytes")
    assert found[0].sha256 == sha256(tmp_path / "huge.png")


def test_once_ends_with_a_row_for_each_file_that_is_no_image(line) -> None:
    """The last look at a file comes when patience is over, not some time before."""
    line.put("text.png", b"some words")
    line.put("empty.png", b"")
    line.put("good.png", 200)
    line.go(pace=Pace(0.01, 0.0, patience=0.8))
    assert dict(zip(line.rows()["image"], line.rows()["status"], strict=True)) == {
        "text.png": "unreadable", "empty.png": "unreadable", "good.png": "ok",
    }  # fmt: skip
