"""Readers of what people and other programs hand over beside images: archives, labels, ignored parts, tables that grow."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from anomalyncd.binarize.ignore import ignored, read_ignored
from anomalyncd.data import load_dataset, read_image
from anomalyncd.data.dataset import Dataset
from anomalyncd.day.html import write_day
from anomalyncd.day.source import read_table
from anomalyncd.errors import BadFileError
from anomalyncd.known.given import gather_known
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.drift import DriftMonitor
from anomalyncd.watch.ledger import content_id
from anomalyncd.watch.places import Places
from anomalyncd.watch.table import open_table

from .seeds import Seeds

Doors = dict[str, tuple[Callable[[Path], object], list[tuple[str, bytes]], float]]  # name → reader, seeds, share
N_READ = 3  # images of an archive
DAY = "2026-11-18T10:00:00.000+00:00"


def doors(seeds: Seeds, work: Path) -> Doors:
    """Each door with valid files for it; work : a folder to make and to write in."""
    work.mkdir(parents=True, exist_ok=True)
    square = [[8, 8], [40, 8], [40, 40], [8, 40]]
    polygons = [json.dumps({"width": 64, "height": 64, "polygons": [square]}), "[[[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]]]"]
    labels = [
        "image,label,region\nimages/a.png,crack,0\nimages/b.png,good,\n",
        "image,map,mask,label\nimages/a.png,maps/a.npy,masks/a.png,crack\n",
    ]
    found: Doors = {
        "archive": (_archive, [(".tar", _tar(form)) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)], 2),
        "ignored parts": (
            _ignored,
            [(".json", text.encode()) for text in polygons] + [one for one in seeds["mask"] if one[0] == ".png"],
            1,
        ),
        "labels of people": (_labels, [(".csv", text.encode()) for text in labels], 1),
        "table of a day": (_day, _days(work / "days"), 1),
        "table that grows": (_grown, _ledgers(work / "ledgers"), 1),
    }
    if find_spec("pyarrow"):
        frame = pd.DataFrame(
            {"image": ["images/a.png", "images/b.png"], "map": ["maps/a.npy", None], "label": [1.0, None]}
        )
        lists = [(".parquet", _parquet(frame[names])) for names in (["image"], ["image", "label"])]
        found["list in Parquet"] = (lambda path: [(one.id, one.label) for one in load_dataset(path)], lists, 2)
    return found


def _archive(path: Path) -> object:
    found = []
    for sample in list(load_dataset(path))[:N_READ]:
        try:
            found.append((sample.id, hashlib.sha256(read_image(sample.image)).hexdigest()))
        except BadFileError:
            found.append((sample.id, ""))
    return found


def _ignored(path: Path) -> object:
    return int(ignored(read_ignored(path), (64, 48)).sum())


def _labels(path: Path) -> object:
    return [(one.sample.id, one.name, one.region) for one in gather_known(path, Dataset(()))]


def _day(path: Path) -> object:
    figures = write_day(read_table(path), path.with_suffix(".html"))
    return figures.day, figures.n_images, figures.n_defects, len(figures.kinds)


def _grown(path: Path) -> object:
    """A ledger that goes on after a restart; that of a CSV lies beside it."""
    table = path if path.suffix == ".sqlite" else path.with_suffix(".csv")
    if table != path:
        shutil.copyfile(path, table.with_name(f"{table.name}.watch"))
        table.unlink(missing_ok=True)
    ledger, grown = open_table(table)
    with closing(ledger):
        DriftMonitor.restore(ledger.note("drift")).add({"brightness": 1.0})
        grown.flush()
        Places(path.parent / "places", link=False).place(ledger)
        numbers = ledger.commit([_entry("new.png")], targets=["webhook"])
        grown.flush(last=True)
        return numbers, len(ledger.files()), [message.body for message in ledger.messages("webhook", 0, 9)][:1]


def _entry(name: str) -> Entry:
    row = {"id": content_id(name, "00"), "time": DAY, "image": name, "status": "ok", "label": 1, "class_name": "dent"}
    region = {
        "image": name,
        "region": 0,
        "label": 1,
        "class_name": "dent",
        "x": 1,
        "y": 2,
        "width": 3,
        "height": 4,
        "area": 9.0,
    }
    return Entry(row | {"brightness": 99.0, "contrast": 9.0, "score": 0.5}, "9 1 1", [region])


def _tar(form: int) -> bytes:
    held = io.BytesIO()
    picture = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    from .seeds import Image, pillow

    content = pillow(Image.fromarray(picture), "PNG")
    with tarfile.open(fileobj=held, mode="w", format=form) as tar:
        for name in ("crack/0.png", "crack/" + "long" * 40 + ".png", "größe.png"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_795_000_000
            tar.addfile(member, io.BytesIO(content))
    return held.getvalue()


def _days(work: Path) -> list[tuple[str, bytes]]:
    found = []
    for suffix in (".csv", ".sqlite"):
        work.mkdir(exist_ok=True)
        ledger, table = open_table(work / f"line{suffix}")
        with closing(ledger):
            ledger.commit([_entry(f"{name}.png") for name in "abc"])
            table.flush(last=True)
        found.append((suffix, (work / f"line{suffix}").read_bytes()))
    return [*found, (".csv", b"image,label,class_name\na.png,1,dent\nb.png,0,normal\n")]


def _ledgers(work: Path) -> list[tuple[str, bytes]]:
    work.mkdir()
    found = []
    for suffix in (".csv", ".sqlite"):
        ledger, _ = open_table(work / f"line{suffix}")
        with closing(ledger):
            monitor = DriftMonitor()
            monitor.add({"brightness": 99.0})
            place = {_entry("a.png").id: ("gone.png", str(work / "dent" / "gone.png"))}
            ledger.commit(
                [_entry("a.png")], targets=["webhook"], places=place, notes={"drift": json.dumps(monitor.state())}
            )
        found.append((".watch" if suffix == ".csv" else suffix, ledger.path.read_bytes()))
    return found


def _parquet(frame: pd.DataFrame) -> bytes:
    held = io.BytesIO()
    frame.to_parquet(held)
    return held.getvalue()
