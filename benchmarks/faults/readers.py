"""Everything that reads a file from outside, or one of the run folder that may have been damaged since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anomalyncd import AnomalyNCD
from anomalyncd.config import make_config
from anomalyncd.data import load_base, load_dataset, read_image, read_map, read_mask
from anomalyncd.data.images import decode
from anomalyncd.data.maps import StackRow, open_stack, read_row_names
from anomalyncd.detect import load_detector
from anomalyncd.discovery.model import DiscoveryModel, read_names
from anomalyncd.discovery.relearn import RunState
from anomalyncd.errors import AnomalyNCDError
from anomalyncd.export.source import Results
from anomalyncd.model.checkpoint import load_state_dict
from anomalyncd.review.classes import UncorrectedClasses
from anomalyncd.review.schema import ActionRequest
from anomalyncd.review.session import Session
from anomalyncd.run.evaluate import evaluate_run, read_labels
from anomalyncd.run.finished import FinishedRun, read_corrections
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.store import RegionStore
from anomalyncd.settings_text import parse_setting, read_config

from .doors import doors
from .scenes import small_line
from .seeds import Seeds, picture_seeds, text_seeds, weight_seeds

SERVED_PIXELS = 64_000_000  # as `serve` allows by default; its own module needs more than the default install


@dataclass(frozen=True)
class Reader:
    """One way in.

    read : path → something that can be compared; only an AnomalyNCDError may come out of it
    seeds : (suffix, content) of valid files
    place : where the file lies in the run folder; None where any path will do
    share : of the inputs, relative to the others
    """

    name: str
    read: Callable[[Path], object]
    seeds: list[tuple[str, bytes]]
    place: str | None = None
    share: float = 1.0


class Library:
    """All readers, with a run folder and a few images that they need around them.

    run : a finished run with a detector and a review; folder : images/, maps/ and masks/ that a list may name
    """

    def __init__(self, work: Path) -> None:
        self.run, self.folder = work / "run", work / "listed"
        seeds = picture_seeds()
        self._list_images(seeds)
        self._make_run(work / "line")
        seeds |= weight_seeds(work) | text_seeds(self.folder)
        self.readers = [*_outside(seeds), *_inside(self.run)]
        newer = doors(seeds, work / "doors").items()
        self.readers += [Reader(name, read, own, share=share) for name, (read, own, share) in newer]

    def _list_images(self, seeds: Seeds) -> None:
        for kind in ("image", "map", "mask"):
            for name in "ab":
                suffix, data = seeds[kind][0]
                path = self.folder / f"{kind}s" / f"{name}{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def _make_run(self, line: Path) -> None:
        images = small_line(line) / "images"
        model = AnomalyNCD(
            3, backbone="tiny", features={"views": 1}, learn={"epochs": 2},
            detect={"name": "patchcore", "settings": {"size": 64}},
        )  # fmt: skip
        model.fit(images, detector="patchcore", normal=images / "good", run=self.run)
        (self.run / "corrections.csv").write_text("image,region,label\nhole/000.png,0,1\n")
        session = Session(self.run)
        actions: list[dict[str, Any]] = [
            {"kind": "name", "label": 1, "name": "dent"}, {"kind": "merge", "from": 2, "into": 1},
            {"kind": "undo", "action": 2}, {"kind": "move", "regions": [0, 1], "to": None},
        ]  # fmt: skip
        for number, action in enumerate(actions):
            request = {"key": f"key-number-{number}", "version": session.version, "table": session.classes.before.table}
            session.act(ActionRequest.model_validate({**request, "action": action}))
        session.close()


def _outside(seeds: Seeds) -> list[Reader]:
    return [
        Reader("image", lambda path: _array(read_image(path)), seeds["image"], share=4),
        Reader("image of a request", _request, seeds["image"], share=1),
        Reader("stored pixels", _pixels, seeds["image"], share=1),
        Reader("map", lambda path: _array(read_map(path)), seeds["map"], share=3),
        Reader("mask", lambda path: _array(read_mask(path)), seeds["mask"], share=3),
        Reader("stack of maps", _stack, seeds["stack"]),
        Reader(
            "names of a stack", lambda path: read_row_names(path.with_suffix(".npy")), seeds["row names"], share=0.5
        ),
        Reader("list of images", lambda path: _dataset(load_dataset, path), seeds["list"], share=2),
        Reader("labelled list", lambda path: _dataset(load_base, path), seeds["base"], share=0.5),
        Reader("table of labels", read_labels, seeds["labels"]),
        Reader("settings", lambda path: make_config(read_config(path)).to_yaml(), seeds["settings"], share=2),
        Reader("one setting", _setting, seeds["setting"]),
        Reader("weights", _weights, seeds["weights"], share=2),
    ]


def _inside(run: Path) -> list[Reader]:
    def reader(name: str, *reads: Callable[[Path], object], share: float = 0.5, alias: str = "") -> Reader:
        path = run / name
        return Reader(
            alias or name.split("/")[-1], lambda _: _each(reads, run), [(path.suffix, path.read_bytes())], name, share
        )

    tables = (_loaded, _base, _evaluated, _exported, _state)
    return [
        reader("model.safetensors", _model, share=1.5),
        reader("detector/detector.safetensors", _detector, share=1.5),
        reader("tokens/00000.safetensors", _store, alias="shard of regions"),
        reader("classes.json", read_names, _base, share=1),
        reader("stages.json", _stages),
        reader("config.yaml", lambda run: make_config(read_config(run / "config.yaml")).to_yaml(), _exported),
        reader("images.csv", *tables),
        reader("regions.csv", *tables),
        reader("manifest.csv", *tables),
        reader("corrections.csv", read_corrections, _base),
        reader("loss.csv", _loaded, share=0.2),
        reader("range.json", _exported, share=0.2),
        reader("review.sqlite", _review, share=1.5),
    ]


def _each(reads: Iterable[Callable[[Path], object]], run: Path) -> list[object]:
    """All of them, even where one says that it cannot; then what the first one said."""
    found, said = [], None
    for read in reads:
        try:
            found.append(_comparable(read(run)))
        except AnomalyNCDError as error:
            said = said or error
    if said is not None:
        raise said
    return found


def _comparable(value: object) -> object:
    return value if isinstance(value, str | bytes | int | tuple | dict | list) else repr(value)


def _array(values: np.ndarray) -> tuple[object, ...]:
    return values.shape, str(values.dtype), hashlib.sha256(np.ascontiguousarray(values)).hexdigest()


def _request(path: Path) -> object:
    """As `serve` reads what it is sent."""
    return _array(read_image(path.read_bytes(), max_pixels=SERVED_PIXELS))


def _pixels(path: Path) -> object:
    return [(_array(pixels), form) for pixels, form in (decode(path), decode(path, palette_indices=True))]


def _stack(path: Path) -> object:
    return [_array(read_map(StackRow(path, row))) for row in range(min(4, len(open_stack(path))))]


def _dataset(load: Callable[[Path], Any], path: Path) -> object:
    found = load(path)
    return [(sample.id, sample.label, str(sample.map)) for sample in found], found.notes


def _setting(path: Path) -> object:
    return make_config(parse_setting(path.read_bytes().decode("utf-8", "surrogateescape"))).to_yaml()


def _weights(path: Path) -> object:
    return {
        name: (tuple(value.shape), str(value.dtype), float(value.sum()))
        for name, value in load_state_dict(path).items()
    }


def _model(run: Path) -> object:
    return hashlib.sha256(DiscoveryModel.read(run, device="cpu").pack()).hexdigest()


def _detector(run: Path) -> object:
    return type(load_detector("patchcore", run / "detector", device="cpu")).__name__


def _store(run: Path) -> object:
    store = RegionStore(RunFolder(run)).read()
    return len(store.images), len(store.regions), sorted(store.parts)


def _stages(run: Path) -> object:
    return [
        (RunFolder(run).has_begun(stage), RunFolder(run).is_done(stage, "")) for stage in ("maps", "learn", "update")
    ]


def _loaded(run: Path) -> object:
    return AnomalyNCD.load(run, device="cpu").labels_.tolist()


def _base(run: Path) -> object:
    return UncorrectedClasses(run).digest


def _evaluated(run: Path) -> object:
    found, n_skipped = evaluate_run(run)
    return found.to_json_dict(), n_skipped


def _exported(run: Path) -> object:
    results = Results(FinishedRun(run))
    return [(image.name, image.label, len(list(results.masks(image)))) for image in results.images]


def _state(run: Path) -> object:
    return RunState.of(FinishedRun(run, device="cpu")).labels.tolist()


def _review(run: Path) -> object:
    session = Session(run)
    try:
        return session.classes.labels.tolist(), sorted(session.classes.names.items()), len(session.classes.done)
    finally:
        session.close()
