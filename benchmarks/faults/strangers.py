"""Run folders that a stranger made: nothing outside them is read, written or moved, and every command says one clear line.

A real run of the tiny network is changed in one way, later in two: links, pipes and folders in the place of any file,
cut and
foreign files, numbers and names in tables that no program writes,
models whose checksums fit but whose content does not, a
log of the review with a table that never ends. All commands that read a run are called on it,
in a process of their own.
"""

from __future__ import annotations

import csv
import ctypes
import hashlib
import io
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anomalyncd import AnomalyNCD, cli
from anomalyncd.demo import make_line
from anomalyncd.errors import AnomalyNCDError

from .scenes import recipes, small_line
from .server import ForkServer, limit_memory

Change = Callable[[Path, Path, np.random.Generator], None]  # of a run, with the folder of somebody who trusts us
LETTER = "my secret letter"
LIMIT = 120  # seconds for all commands on one folder
MOST_MB = 2000  # more than a process has that has done nothing yet
COMMANDS = (
    "evaluate", "export csv", "export coco", "export folders", "export labelstudio", "report", "review", "load",
    "predict",
    "update",
)  # fmt: skip
TABLES = ("images.csv", "regions.csv", "manifest.csv", "corrections.csv", "groups.csv", "loss.csv")
CELLS = (
    "", "0", "-1", "1e9", "1000000000", "9" * 18, "9" * 30, "nan", "inf", "-inf", "1e308", "x", "../home/letter.txt",
    "/dev/zero", "a\nb", "a\0b", "=1+1", "n" * 5000, "\ud83d", "True", "0x10", "1_0", "\x1b[2J",
)  # fmt: skip
COUNT = (
    '{"answers": {"eigengap": 3}, "count": 3, "finer": null, "high": 3, "low": 3, "normal": true, "verdict": "agreed"}'
)
JSONS = (
    "", "null", "5", "[]", "{}", '"x"', "[" * 100_000, '{"1":' * 100_000, "9" * 5000, '{"1": 5}', '{"1": null}',
    '{"x": "y"}',
    '{"1": "' + "n" * 100_000 + '"}', '{"1": "a\\u0000b"}', '{"1": "\\ud800"}', '{"' + "9" * 400 + '": "x"}',
    '{"-1": "dent"}',
    '{"format": 5}', '{"format": 7}', '{"format": "6"}', '{"format": 1e400}', '{"format": true}',
    '{"format": 6, "learn": 5}',
    '{"low": NaN, "high": Infinity}', '{"low": 1e308, "high": -1e308, "scores": [1e400]}',
    '{"count": "x", "low": [], "high": 1}',
    '{"merges": [5], "splits": [{}]}', '{"merges": [{"classes": [[1e400], [1]], "share": 1}], "splits": []}',
    '{"merges": [], "splits": [{"class": 1, "share": ' + "9" * 400 + ', "parts": [5]}]}',
    '{"merges": [{"classes": [[[[]]], 5], "share": []}], "splits": 5}',
    *(COUNT.replace(*changed) for changed in (
        ('"agreed"', "[]"), ("3", '"x"'), ("3", "9" * 400), ("3", "1e400"), ("3", "-1"), ("3", "null"), ("true", "[]"))),
    '{"low": 0, "high": 1, "scores": [' + "9" * 400 + "]}", '{"normal_scores": [1e400, -1e400, {}], "scores": 5}',
    '{"labels": [1e400], "line": ' + "9" * 400 + ', "normal_scores": [], "rate": 0, "scores": [0], "source": "x"}',
    "\ufeff{}", "{'a': 1}", '{"a": 1} trailing', "\0" * 1000,
)  # fmt: skip
YAMLS = (
    "", "5", "- a", "learn: 5", "learn: &a {b: *a}", "zzz: 1", "crop: {size: 1}", "model: {input_size: 999999999}",
    "random_state: " + "9" * 5000, "detect: {name: 'os:system'}", "detect: {name: 'home.letter:Class'}", "n_classes: x",
    "model: {weights: ../home/letter.txt}", "model: {backbone: ../home/letter.txt}",
    "!!python/object/apply:os.system [ls]",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]",
    "detect: {settings: {a: &a [x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b], "
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e,*e]}}",
    "[" * 5000, "\t", "device: cuda:99", "preset: worst", "x" * 1_100_000, "binarize: {min_map_size: 10000000}",
)  # fmt: skip
FOREIGN = {
    "zip": b"PK\x03\x04" + bytes(100), "program": b"\x7fELF\2\1\1" + bytes(200),
    "pickle": b"\x80\x04cos\nsystem\n(S'ls'\ntR.",
    "gzip": b"\x1f\x8b\x08" + bytes(50), "picture": b"\x89PNG\r\n\x1a\n" + bytes(60), "letter": b"some words",
    "page": b"<html><script>alert(1)</script></html>", "zeros": bytes(4096), "number": b"9" * 5000,
    "bitmap": b"BM" + bytes(60),
    "array": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (9,), }".ljust(128) + b"\n",
    "header": struct.pack("<Q", 2**62) + b"{}", "database": b"SQLite format 3\0" + bytes(84),
}  # fmt: skip
with suppress(ModuleNotFoundError):  # an earlier version, which is tried to see that it fails, has them elsewhere
    from anomalyncd.checksums import seal, unseal
    from anomalyncd.review.schema import ActionRequest
    from anomalyncd.review.session import Session
MARKS = "detector.json", "detector/detector.safetensors"


@dataclass
class Tally:
    """What came of the folders."""

    n_folders: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = 0.0, ""
    largest: tuple[float, str] = 0.0, ""


def make_run(server: ForkServer, work: Path) -> tuple[Path, Path]:
    """A finished run with a detector, a review and corrections; and a folder of two new images."""
    line = small_line(work / "line")
    new = make_line(work / "new", n_per_class=1, n_normal=0, n_combined=0, size=96, kinds=["hole", "scratch"], seed=1)
    run = work / "run"
    if (made := server.run(*recipes(line)[2].command(run))).code:
        raise RuntimeError(made.output)
    (run / "count.json").write_text(COUNT)
    (run / "corrections.csv").write_text("image,region,label\nhole/000.png,0,1\n")
    if "Session" not in globals():
        return run, new / "images"
    session = Session(run)
    actions: list[dict[str, Any]] = [
        {"kind": "name", "label": 1, "name": "dent"}, {"kind": "merge", "from": 2, "into": 1}, {"kind": "undo",
        "action": 2},
        {"kind": "move", "regions": [0, 1], "to": None},
    ]  # fmt: skip
    for number, action in enumerate(actions):
        request = {"key": f"key-number-{number}", "version": session.version, "table": session.classes.before.table}
        session.act(ActionRequest.model_validate({**request, "action": action}))
    session.close()
    return run, new / "images"


def changes(run: Path) -> list[tuple[str, Change]]:
    """Every way to spoil this run that is known here, by its name."""
    files = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    folders = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_dir())
    chosen = [name for name in files if "/" not in name]
    for folder in ("tokens", "crops", "masks", "maps", "detector", "normal"):
        chosen += [name for name in files if name.startswith(f"{folder}/")][:3]
    absent = [
        "commit", "commit.partial", "report.html", "report.html.partial", "pictures", "export", "kept", "x.partial",
        "tokens/x.partial", "tokens/00001.safetensors", "tokens/trained.safetensors", "review.sqlite-wal",
        "review.sqlite-shm", "review.sqlite-journal", "classes.png", "count.json", "scores.csv", "metrics.json", "base",
        "applied.json", "copy.partial", "seen", "training", "suspects.csv", "known.csv",
    ]  # fmt: skip
    found: list[tuple[str, Change]] = []
    for name in [*chosen, *folders, *absent, ".lock", "review.lock"]:
        for kind, put in PLACED.items():
            found.append((f"{name}: {kind}", partial(_put, name, put)))
    for name in chosen:
        for kind, content in FOREIGN.items():
            found.append((f"{name}: a {kind}", partial(_write, name, content)))
        for kind, damage in DAMAGES.items():
            found.append((f"{name}: {kind}", partial(_damage, name, damage)))
        if not name.startswith("detector/"):  # all of which is read, because a detector may be as large
            found.append((f"{name}: 20 GB of nothing", partial(_grow, name)))
    for name in (name for name in chosen if name.endswith(".json")):
        found += [(f"{name}: JSON {number}", partial(_write, name, text.encode("utf-8", "surrogatepass")))
                  for number, text in enumerate(JSONS)]  # fmt: skip
    found += [(f"config.yaml: YAML {n}", partial(_write, "config.yaml", text.encode())) for n, text in enumerate(YAMLS)]
    for name in TABLES:
        if (run / name).exists():
            for column in next(csv.reader(io.StringIO((run / name).read_text()))):
                found += [(f"{name}: {column} is {cell[:20]!r}", partial(_cell, name, column, cell)) for cell in CELLS]
                found.append((f"{name}: without {column}", partial(_without, name, column)))
            found += [(f"{name}: {kind}", partial(_rows, name, change)) for kind, change in ROWS.items()]
    found += [(f"model: {kind}", partial(_reseal, "model.safetensors", change)) for kind, change in MODELS.items()]
    found += [
        (f"shard: {kind}", partial(_reseal, "tokens/00000.safetensors", change)) for kind, change in SHARDS.items()
    ]
    found += [(f"review: {number}", partial(_sql, text)) for number, text in enumerate(SQL)]
    found += [(f"commit: {kind}", change) for kind, change in COMMITS.items()]
    found += [(f"manifest.csv: {kind}", partial(_named, column, place)) for kind, (column, place) in NAMED.items()]
    return [*found, ("folders in folders", _deep), ("a journal of the review", _journal)]


def _put(name: str, put: Callable[[Path, Path], None], run: Path, home: Path, rng: np.random.Generator) -> None:
    path = run / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, home)


def _socket(path: Path, _: Path) -> None:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # whose whole name may be too long for a socket
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


PLACED: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda path, home: path.symlink_to(home / "letter.txt"),
    "a link to a picture": lambda path, home: path.symlink_to(home / "picture.png"),
    "a link to a folder": lambda path, home: path.symlink_to(home),
    "a relative link": lambda path, home: path.symlink_to(os.path.relpath(home / "letter.txt", path.parent)),
    "a link to nothing": lambda path, home: path.symlink_to(home / "gone"),
    "a link to itself": lambda path, _: path.symlink_to(path.name),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a socket": _socket,
    "a folder": lambda path, _: path.mkdir(),
    "a folder with a link": lambda path, home: (path.mkdir(), (path / "deep").symlink_to(home))[0],
    "a file": lambda path, _: path.touch(),
    "a link to a device": lambda path, _: path.symlink_to("/dev/zero"),
}


def _write(name: str, content: bytes, run: Path, home: Path, rng: np.random.Generator) -> None:
    (run / name).write_bytes(content)


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "gone": lambda data, rng: b"",
    "cut": lambda data, rng: data[: int(rng.integers(len(data)))] if data else b"",
    "cut once more": lambda data, rng: data[: int(rng.integers(len(data)))] if data else b"",
    "cut at its start": lambda data, rng: data[int(rng.integers(len(data))) :] if data else b"",
    "cut by one": lambda data, rng: data[:-1],
    "twice": lambda data, rng: data + data,
    "flipped": lambda data, rng: bytes(
        b ^ (1 << int(rng.integers(8))) if rng.random() < 0.01 else b for b in data[:50_000]
    ),
    "noise": lambda data, rng: rng.bytes(max(1, min(len(data), 50_000))),
}


def _damage(
    name: str, damage: Callable[[bytes, np.random.Generator], bytes], run: Path, home: Path, rng: np.random.Generator
) -> None:
    content = damage((run / name).read_bytes(), rng)
    (run / name).write_bytes(content) if content else (run / name).unlink()


def _grow(name: str, run: Path, home: Path, rng: np.random.Generator) -> None:
    os.truncate(run / name, 20 << 30)


def _table(run: Path, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO((run / name).read_text(encoding="utf-8"))))


def _store(run: Path, name: str, rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    (run / name).write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))


def _cell(name: str, column: str, cell: str, run: Path, home: Path, rng: np.random.Generator) -> None:
    rows = _table(run, name)
    if column in rows[0] and len(rows) > 1:
        rows[int(rng.integers(1, len(rows)))][rows[0].index(column)] = cell
    _store(run, name, rows)


def _without(name: str, column: str, run: Path, home: Path, rng: np.random.Generator) -> None:
    rows = _table(run, name)
    place = rows[0].index(column)
    _store(run, name, [[*row[:place], *row[place + 1 :]] for row in rows])


ROWS: dict[str, Callable[[list[list[str]]], list[list[str]]]] = {
    "no row": lambda rows: rows[:1],
    "no column": lambda rows: [row[1:] for row in rows],
    "a row less": lambda rows: rows[:-1],
    "a row twice": lambda rows: [*rows, rows[-1]],
    "all rows twice": lambda rows: [*rows, *rows[1:]],
    "another order": lambda rows: [rows[0], *rows[:0:-1]],
    "a row too short": lambda rows: [*rows, ["x"]],
    "a row too long": lambda rows: [*rows, ["x"] * 500],
    "a column twice": lambda rows: [[*row, row[0]] for row in rows],
    "ten thousand columns": lambda rows: [[*row, *(["p_x"] * 10_000)] for row in rows[:2]],
    "other names": lambda rows: [rows[0], *([f"other {row[0]}", *row[1:]] for row in rows[1:])],
    "numbers as names": lambda rows: [rows[0], *([str(n), *row[1:]] for n, row in enumerate(rows[1:]))],
    "no table": lambda rows: [["words"], ["more words"]],
}


def _rows(
    name: str, change: Callable[[list[list[str]]], list[list[str]]], run: Path, home: Path, rng: np.random.Generator
) -> None:
    _store(run, name, change(_table(run, name)))


NAMED: dict[str, tuple[str, Callable[[Path], str]]] = {
    f"{column} is {kind}": (column, place)
    for column in ("file", "map")
    for kind, place in {
        "a letter": lambda home: str(home / "letter.txt"), "a picture": lambda home: str(home / "picture.png"),
        "a pipe": lambda home: str(home / "pipe.png"), "a folder": lambda home: str(home),
        "a device": lambda _: "/dev/zero",
        "a letter that begins as a picture": lambda home: str(home / "bitmap.txt"),
        "outside": lambda _: "maps/../../home/letter.txt",
        "a row of a stack": lambda home: f"{home / 'letter.npy'}[999999999]",
        "of this process": lambda _: "/proc/self/environ",
        "the run itself": lambda home: str(home.parent / "run" / "model.safetensors"),
        "a link": lambda home: str(home / "link.png"),
        "in an archive that is gone": lambda home: str(home / "gone.tar" / "a.png"),
        "in an archive that is a picture": lambda home: str(home / "picture.png" / "a.tar" / "a.png"),
        "in a store": lambda _: "s3://bucket/a.png",
        "on the web": lambda _: "http://127.0.0.1:9/a.png",
    }.items()
}  # fmt: skip


def _named(column: str, place: Callable[[Path], str], run: Path, home: Path, rng: np.random.Generator) -> None:
    """A table may name files outside, which are read as images and maps, and as nothing else."""
    rows = _table(run, "manifest.csv")
    for row in rows[1:]:
        row[rows[0].index(column)] = place(home)
    _store(run, "manifest.csv", rows)


Arrays = dict[str, Any]


def _meta(**changed: Any) -> Callable[[Arrays, dict[str, str]], None]:
    def change(arrays: Arrays, notes: dict[str, str]) -> None:
        meta = json.loads(notes["anomalyncd"])
        for name, value in changed.items():
            section, _, key = name.partition("__")
            if key:
                meta[section][key] = value
            else:
                meta[name] = value
        notes["anomalyncd"] = json.dumps(meta)

    return change


def _arrays(change: Callable[[Any], Any]) -> Callable[[Arrays, dict[str, str]], None]:
    def all_of_them(arrays: Arrays, notes: dict[str, str]) -> None:
        for name in arrays:
            arrays[name] = np.ascontiguousarray(change(arrays[name]))

    return all_of_them


OTHER_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "NaN": lambda values: np.full_like(values, np.nan) if values.dtype.kind == "f" else values,
    "huge": lambda values: np.full_like(values, 6e4) if values.dtype.kind == "f" else values,
    "of other types": lambda values: values.astype(np.int8), "empty": lambda values: values[:0],
    "flat": lambda values: values.ravel(), "too short": lambda values: values[:-1],
    "deeper": lambda values: values[None],
}  # fmt: skip
MODELS: dict[str, Callable[[Arrays, dict[str, str]], None]] = {
    **{f"arrays {kind}": _arrays(change) for kind, change in OTHER_ARRAYS.items()},
    **{f"classes {value}": _meta(classes=value) for value in ([], [0], [0, 1, 2, 3], [-5, 1, 2], [0, 1, 10**12], "x",
    [[0]], None)},
    **{f"names {value}": _meta(names=value)
       for value in ({}, {"0": None}, {"0": 5, "1": [], "2": {}}, [], {"x": "y"}, {"1": "a\n\x1b[2Jb"}, {"9": "z"})},
    **{f"highest {value}": _meta(highest=value) for value in (-1, 10**30, "x", None, 1.5)},
    **{f"format {value}": _meta(format=value) for value in (5, "6", None, 10**30, [])},
    **{f"limit {value}": _meta(unknown_limit=value) for value in (-1, 1e308, "x", [], "nan")},
    **{f"binarizer {value}": _meta(binarizer=value)
       for value in (5, {}, {"low": "x", "high": 1}, {"low": 1, "high": 0}, {"low": 1e308, "high": -1e308},
       {"low": None, "high": 1})},
    **{f"false_alarms {value}": _meta(false_alarms=value) for value in (5, {}, [], "x")},
    **{f"classifier {value}": _meta(classifier=value) for value in (None, 5, {}, [], "x")},
    **{f"detector {value}": _meta(config__detect={"name": value})
       for value in ("os:system", "home.letter:Class", "musc", "anomalib:Padim", None, 5, "", "x" * 5000)},
    **{f"weights {value}": _meta(config__model={"backbone": "tiny", "weights": value})
       for value in ("../home/gone.safetensors", "/dev/zero", "", 5, "/proc/self/mem")},
    **{f"settings {value}": _meta(config=value)
       for value in ({}, 5, [], {"zzz": 1}, {"model": {"backbone": "nothing"}}, {"crop": {"size": 1}},
       {"batch_size": 10**12})},
    "version": _meta(version={"a": []}), "learns normal": _meta(learns_normal="maybe"),
    "no words": lambda arrays, notes: notes.clear(), "no arrays": lambda arrays,
    notes: arrays.clear() or arrays.update(x=np.ones(1)),
}  # fmt: skip


def _record(kind: str, key: str, value: Any) -> Callable[[Arrays, dict[str, str]], None]:
    def change(arrays: Arrays, notes: dict[str, str]) -> None:
        records = json.loads(notes["records"])
        for record in records[kind]:
            record[key] = value
        notes["records"] = json.dumps(records)

    return change


SHARDS: dict[str, Callable[[Arrays, dict[str, str]], None]] = {
    **{f"arrays {kind}": _arrays(change) for kind, change in OTHER_ARRAYS.items()},
    **{f"image {key} {value!r:.20}": _record("images", key, value)
       for key in ("index", "id", "height", "n_regions", "score", "error", "zzz")
       for value in (-1, 10**12, "../home/letter.txt", None, [1], 1e308)},
    **{f"region {key} {value!r:.20}": _record("regions", key, value)
       for key in ("index", "image", "region", "box", "square", "area", "score", "digest")
       for value in (-1, 10**12, "../../home/letter.txt", None, [0, 0, 10**9, 10**9], [-5, -5, 0, 0])},
}  # fmt: skip


def _reseal(
    name: str,
    change: Callable[[Arrays, dict[str, str]], None],
    run: Path,
    home: Path,
    rng: np.random.Generator,
) -> None:
    """Changed, with checksums that fit: whoever makes a run can make these too."""
    arrays, notes = unseal(run / name)
    change(arrays, notes)
    (run / name).write_bytes(seal(arrays, notes))


BOMB = "x'" + zlib.compress(b'{"learned": "' + bytes(300_000_000)).hex() + "'"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id"
COLUMNS = "'' AS at, '' AS key, '' AS request, 'name' AS kind, '{}' AS body, '' AS base"
SQL = (
    "DROP TABLE actions", "DROP TABLE bases", "DELETE FROM bases", "PRAGMA user_version = 99",
    "PRAGMA user_version = -1",
    "PRAGMA user_version = 0", f"DROP TABLE actions; CREATE VIEW actions AS {ENDLESS}, {COLUMNS} FROM n",
    f"DROP TABLE bases; CREATE VIEW bases AS {ENDLESS}, 'x' AS digest, x'00' AS labels FROM n",
    "UPDATE actions SET kind = 'zzz'", "UPDATE actions SET kind = 'undo'", "UPDATE actions SET kind = 'redo'",
    "UPDATE actions SET kind = 'applying'", "UPDATE actions SET kind = 'applied'",
    "UPDATE actions SET kind = 'renumber'",
    "UPDATE actions SET kind = 'split'", "UPDATE actions SET body = 'x'", "UPDATE actions SET body = '{}'",
    "UPDATE actions SET body = '5'", "UPDATE actions SET body = x'ff'",
    "UPDATE actions SET body = '[' || hex(zeroblob(100000))",
    """UPDATE actions SET body = '{"label": 1000000000000000000000, "name": 5}'""",
    """UPDATE actions SET body = '{"regions": [["../home/letter.txt", -1]], "to": -7}', kind = 'move'""",
    """UPDATE actions SET body = '{"numbers": [[1, "x"]]}', kind = 'renumber'""",
    "UPDATE bases SET labels = x'00'", "UPDATE bases SET labels = 'text'", f"UPDATE bases SET labels = {BOMB}",
    "UPDATE bases SET labels = zeroblob(100000000)", "UPDATE actions SET base = 'zzz'", "UPDATE actions SET id = -id",
    "UPDATE actions SET id = 9223372036854775807 WHERE id = 4", "UPDATE actions SET key = x'ff'",
    "CREATE TRIGGER t BEFORE INSERT ON actions BEGIN DELETE FROM actions; END",
    "ALTER TABLE actions RENAME COLUMN kind TO sort", "CREATE TABLE more AS SELECT zeroblob(50000000)",
    "ATTACH '../home/letter.db' AS other; CREATE TABLE other.t (x)", "PRAGMA journal_mode = DELETE",
    "PRAGMA page_size = 512; VACUUM",
    "INSERT INTO actions SELECT 100 + id, at, key || id, request, 'apply', body, base FROM actions",
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE TABLE actions (x'",
)  # fmt: skip


def _sql(text: str, run: Path, home: Path, rng: np.random.Generator) -> None:
    database = sqlite3.connect(run / "review.sqlite", isolation_level=None)
    with suppress(sqlite3.Error):
        database.executescript(text.replace("ATTACH '../home/letter.db'", "ATTACH ':memory:'"))
    with suppress(sqlite3.Error):
        database.close()


def _commit(change: Callable[[Path, Path, Path], None], run: Path, home: Path, rng: np.random.Generator) -> None:
    (run / "commit").mkdir()
    change(run / "commit", run, home)


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


COMMITS: dict[str, Change] = {
    kind: partial(_commit, change)
    for kind, change in {
        "empty": lambda commit, run, home: None,
        "a file": lambda commit, run, home: (commit.rmdir(), commit.touch())[0],
        "a folder where a file is": lambda commit, run, home: (commit / "images.csv/x").mkdir(parents=True),
        "a file below a file": lambda commit, run, home: ((commit / "images.csv").mkdir(),
        (commit / "images.csv/x").touch())[0],
        "a file where a folder is": lambda commit, run, home: (commit / "crops").touch(),
        "a commit": lambda commit, run, home: ((commit / "commit").mkdir(), (commit / "commit/x").touch())[0],
        "a lock": lambda commit, run, home: (commit / ".lock").write_text("x"),
        "another format": lambda commit, run, home: (commit / "stages.json").write_text('{"format": 5}'),
        "no stages": lambda commit, run, home: (commit / "stages.json").write_text("{"),
        "no table": lambda commit, run, home: (commit / "images.csv").write_text("x"),
        "a link": lambda commit, run, home: (commit / "classes.json").symlink_to(home / "letter.txt"),
        "a pipe": lambda commit, run, home: os.mkfifo(commit / "classes.json"),
        "through a link": lambda commit, run, home: (
            (commit / "x").mkdir(), (commit / "x/letter.txt").write_text("bad"), (run / "x").symlink_to(home))[0],
        "a partial": lambda commit, run, home: (commit / "classes.json.partial").touch(),
        "odd names": lambda commit, run, home: _touch(commit, "a\nb", "\x1b[2J", "n" * 255, " ", "..x"),
    }.items()
}  # fmt: skip


def _deep(run: Path, home: Path, rng: np.random.Generator) -> None:
    """More folders in each other than Python calls functions in each other."""
    here = os.getcwd()
    os.chdir(run)
    try:
        for _ in range(1800 - len(str(run)) // 2):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)


def _journal(run: Path, home: Path, rng: np.random.Generator) -> None:
    """SQLite rolls back what a journal says, and then deletes the file that it names."""
    log, victim = run / "review.sqlite", str(home / "letter.txt").encode()
    page, magic = log.read_bytes()[:4096], bytes.fromhex("d9d505f920a163d7")
    head = (magic + struct.pack(">5I", 1, 1, log.stat().st_size // 4096, 512, 4096)).ljust(512, b"\0")
    body = struct.pack(">I", 1) + page + struct.pack(">I", (1 + sum(page[3896:0:-200])) % 2**32)
    tail = struct.pack(">I", 0x40000000 // 4096 + 1) + victim + struct.pack(">2I", len(victim), sum(victim)) + magic
    (run / "review.sqlite-journal").write_bytes(head + body + tail)


def make_home(home: Path) -> None:
    """The folder of somebody who trusts us."""
    (home / "more").mkdir(parents=True)
    for name in ("letter.txt", "letter.npy", "more/00000.safetensors", "more/letter.txt"):
        (home / name).write_text(f"{LETTER} {name}")
    (home / "letter.py").write_text(f"open({str(home / 'ran')!r}, 'w')")
    (home / "bitmap.txt").write_text(f"BM {LETTER}")
    import cv2

    cv2.imwrite(str(home / "picture.png"), np.full((96, 96, 3), 77, np.uint8))
    (home / "link.png").symlink_to("letter.txt")
    os.mkfifo(home / "pipe.png")


class Watch:
    """What any process opens or changes in a folder and the folders in it, from the kernel."""

    OPENED, CHANGED = 0x01 | 0x20, 0x02 | 0x04 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.file = libc.inotify_init1(os.O_NONBLOCK)
        for place in (folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())):
            if libc.inotify_add_watch(self.file, os.fsencode(place), self.OPENED | self.CHANGED) < 0:
                raise OSError(ctypes.get_errno(), f"cannot watch {place}")

    def seen(self) -> tuple[set[str], set[str]]:
        """Names that were opened, and names that were changed."""
        opened, changed, data = set[str](), set[str](), b""
        with suppress(BlockingIOError):
            while piece := os.read(self.file, 1 << 16):
                data += piece
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode("utf-8", "replace") or "."
            (changed if mask & self.CHANGED else opened).add(name)
            data = data[16 + length :]
        return opened, changed

    def close(self) -> None:
        os.close(self.file)


def open_all() -> None:
    """All commands on one run, as `sys.argv` says: run, new images, out. Prints a JSON line for each."""
    limit_memory(MOST_MB)
    try_all()


def try_all() -> None:
    """As `open_all`, with all the memory that there is."""
    run, new, out = map(Path, sys.argv[1:4])
    answers = os.fdopen(os.dup(1), "w")
    for command in COMMANDS:
        said = io.StringIO()
        code: object = 0
        try:
            with redirect_stdout(said), redirect_stderr(said):
                _do(command, run, new, out)
        except SystemExit as stop:
            code = stop.code or 0
        except AnomalyNCDError as error:
            code, _ = 2, said.write(f"error: {error}\n")
        except BaseException:
            said.write(traceback.format_exc())
            code = "traceback"
        answers.write(json.dumps([command, code, said.getvalue()[-3000:]]) + "\n")
        answers.flush()


def _do(command: str, run: Path, new: Path, out: Path) -> None:
    lines: dict[str, list[object]] = {
        "evaluate": ["evaluate", run, "--json"], "report": ["report", run, "--no-attention", "--quiet"],
        "predict": ["predict", run, new, "--out", out / "new.csv", "--quiet"],
    }  # fmt: skip
    if command == "review":
        if "Session" in globals():  # elsewhere in an earlier version
            Session(run).close()
    elif command == "load":
        AnomalyNCD.load(run, device="cpu")
    elif command == "update":  # in Python, without the pictures, which `report` has drawn
        AnomalyNCD.load(run, device="cpu").update(new)
    else:
        name, _, format = command.partition(" ")
        line = lines.get(command) or [name, run, "--format", format, "--out", out / format, "--quiet"]
        sys.argv = ["anomalyncd", *map(str, line)]
        cli.main()


@contextmanager
def _case(work: Path, run: Path) -> Iterator[Path]:
    """A fresh folder with a copy of the run and a home beside it."""
    case = work / "case"
    (case / "out").mkdir(parents=True)
    shutil.copytree(run, case / "run")
    make_home(case / "home")
    try:
        yield case
    finally:
        subprocess.run(["rm", "-rf", case], check=True)  # also what is deeper than `shutil.rmtree` can go


def attack(
    server: ForkServer, count: int, rng: np.random.Generator, work: Path, *, only: str = "", first: int = 0
) -> Tally:
    """So many hostile folders, each changed in one way; in two ways once all single ones were tried.

    only : part of the name of the changes to try
    first : number of the first folder, which is the same whatever was tried before it
    """
    run, new = make_run(server, work)
    known = [(name, change) for name, change in changes(run) if only in name]
    order = rng.permutation(len(known)).tolist()
    tally = Tally()
    with _case(work, run) as case:
        server.warm("faults.strangers:try_all", case / "run", new, case / "out")
    images = _content(work / "line") | _content(work / "new")
    seed = int(rng.integers(2**31))
    for number in range(first, first + count):
        rng = np.random.default_rng([seed, number])
        picked = [known[order[number]]] if number < len(order) else [known[i] for i in rng.integers(len(known), size=2)]
        name = " and ".join(kind for kind, _ in picked)
        with _case(work, run) as case:
            try:
                for _, change in picked:
                    change(case / "run", case / "home", rng)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
                pass  # the first left nothing that the second could change
            before, watch = _content(case / "home"), Watch(case / "home")
            ended = server.call("faults.strangers:open_all", case / "run", new, case / "out", limit=LIMIT)
            opened, changed = watch.seen()
            watch.close()
            wrong = _judge(ended.output, ended.hung, tally)
            named = name.startswith("manifest.csv: ") or " and manifest.csv: " in name
            if opened and not named:
                wrong.append(f"opened {sorted(opened)} outside the run")
            if changed or _content(case / "home") != before:
                wrong.append(f"changed {sorted(changed)} outside the run")
            if {path.name for path in case.iterdir()} != {"run", "home", "out"}:
                wrong.append("left something beside the run")
            if leak := _leaks(case):
                wrong.append(f"carried a letter into {leak}")
        for text in wrong:
            tally.failures.append(f"{number}, {name}: {text}")
            print(tally.failures[-1], flush=True)  # at once: there may be hours to go
        tally.n_folders += 1
        tally.kinds[name.partition(": ")[2].partition(" is ")[0] or name] += 1
        tally.slowest, tally.largest = (
            max(tally.slowest, (ended.seconds, name)),
            max(tally.largest, (ended.peak_mb, name)),
        )
    if (_content(work / "line") | _content(work / "new")) != images:
        tally.failures.append("images were changed")
    return tally


def _judge(output: str, hung: bool, tally: Tally) -> list[str]:
    """What the commands must not say."""
    wrong, done = [], []
    for line in output.splitlines():
        with suppress(ValueError):
            command, code, said = json.loads(line)
            done.append(command)
            errors = [text for text in said.splitlines() if text.startswith("error: ")]
            if code == "traceback" or "Traceback" in said:
                wrong.append(f"{command}: {' '.join(said.strip().splitlines()[-3:])[-400:]}")
            elif code and len(errors) != 1:
                wrong.append(f"{command}: exit code {code} with {len(errors)} lines of error: {said[-200:]!r}")
            tally.outcomes[command, "refused" if code else "done"] += 1
    if hung:
        wrong.append(f"hang in {next((name for name in COMMANDS if name not in done), '?')}")
    elif len(done) != len(COMMANDS):
        wrong.append(f"ended after {done[-1:]}: {output[-300:]!r}")
    return wrong


def _content(folder: Path) -> dict[str, str]:
    """What a folder holds."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
    }


def _leaks(case: Path) -> str:
    """Where a letter went that no command may hand on."""
    for folder in (case / "out", case / "run"):
        for path in folder.glob("**/*") if not (case / "run" / "d").exists() else ():
            small = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 28
            if small and LETTER.encode() in path.read_bytes():
                return path.relative_to(case).as_posix()
    return ""
