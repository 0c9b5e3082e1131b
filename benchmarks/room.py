"""How much room and time many regions take, stage by stage: learning, count, outliers, unknown, update, report and review.

    OMP_NUM_THREADS=1 python benchmarks/room.py FOLDER [--sizes 25000 50000 100000 200000] [--new 20000] [--plot FILE]
    OMP_NUM_THREADS=1 python benchmarks/room.py FOLDER --alone 1000000

Features are made up, of the default's width (patches and image, 2 blocks of 384 each): kinds of unequal sizes around
directions of their own, each with a few axes along which its regions differ and a long tail, odd regions, and rare kinds of
three. The regions of an image share a picture. All else is real: a run folder below FOLDER, and the functions that
`discover`, `update`, `report` and `review` call, each command in a process of its own. `--alone` learns from and assigns
features that lie in memory, without a folder.

Seconds are of the processor, peaks of the process's resident memory while the stage ran (`VmHWM`, so Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from common import machine, positive, print_table

WIDTH, BLOCKS, VIEWS = 384, 2, 1
KINDS, NEW_KINDS = 12, 2
SPREAD_AXES = 12  # along which the regions of a kind differ
PER_IMAGE = (1, 2, 2, 3)  # regions of the images that have any; a fifth has none
SHARE_ODD, SHARE_RARE = 0.002, 0.001
CROP = 32  # px
SEED = 0
STAGES = (
    "regions", "learning", "count", "unknown", "outliers", "tree", "tables", "update", "report", "review", "apply",
)  # fmt: skip


@dataclass
class Stage:
    seconds: float = 0.0
    peak_mb: float = 0.0


class Watch:
    """Seconds and peak memory of stages, of which one may be part of another; time and peak are the inner one's."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self._open: list[str] = []
        self._since = time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._note()
        self._open.append(name)
        self.stages.setdefault(name, Stage())
        try:
            yield
        finally:
            self._note()
            self._open.pop()

    def also(self, owner: Any, function: str, name: str) -> None:
        """Count what `owner.function` does as a stage."""
        plain = getattr(owner, function)

        @wraps(plain)
        def watched(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return plain(*given, **named)

        setattr(owner, function, watched)

    def _note(self) -> None:
        now, peak = time.process_time(), _peak_mb()
        if self._open:
            stage = self.stages[self._open[-1]]
            stage.seconds += now - self._since
            stage.peak_mb = max(stage.peak_mb, peak)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._since = time.process_time()

    def print(self) -> None:
        print(json.dumps({name: [stage.seconds, stage.peak_mb] for name, stage in self.stages.items()}), flush=True)


def _peak_mb() -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


class MadeUp:
    """An extractor of regions that nobody has seen; new : regions of kinds that the others have not are among them."""

    def __init__(self, *, new: bool = False) -> None:
        rng = np.random.default_rng(SEED)
        shape = (KINDS + NEW_KINDS, 2, BLOCKS, WIDTH)
        self.common = _unit(rng.normal(size=shape[1:]))
        self.kinds = 0.8 * self.common + 0.6 * _unit(rng.normal(size=shape))
        self.axes = _unit(rng.normal(size=(KINDS + NEW_KINDS, SPREAD_AXES, *shape[1:]))).reshape(
            KINDS + NEW_KINDS, SPREAD_AXES, -1
        )
        sizes = 1 / np.arange(1, KINDS + 1)
        self.shares = np.append(sizes * (0.9 if new else 1) / sizes.sum(), [0.05 * new] * NEW_KINDS)
        self.new = new

    def __call__(self, items: Any, first_index: int = 0) -> Any:
        from anomalyncd.learn.features import CropBatch
        from anomalyncd.regions.extract import Extracted
        from anomalyncd.regions.find import Region
        from anomalyncd.regions.records import ImageRecord

        rng = np.random.default_rng([SEED, first_index, self.new])
        images, regions = [], []
        scenes = np.empty((len(items), WIDTH + 2), np.float16)
        for place, item in enumerate(items):
            index = first_index + place
            count = 0 if index % 5 == 4 else PER_IMAGE[int(rng.integers(len(PER_IMAGE)))]
            score = float(rng.normal(0.9, 0.05) if count else rng.normal(0.3, 0.04))
            images.append(ImageRecord(index, item.id, 100, 100, count, score, 0.5))
            scenes[place, :-2] = _unit(self.common[0, 0] + rng.normal(0, 0.02, WIDTH))
            scenes[place, -2:] = rng.normal([6.0, 5.0], 0.05)
            for number in range(count):
                x, y = rng.integers(0, 80, 2).tolist()
                area, digest = float(rng.integers(50, 400)), rng.bytes(32).hex()
                regions.append(
                    Region(
                        index=index,
                        image=item.id,
                        region=number,
                        box=(x, y, 20, 20),
                        square=(x, y, 20),
                        area=area,
                        score=float(np.clip(rng.normal(0.8, 0.1), 0, 1)),
                        digest=digest,
                    )
                )
        found = Extracted(images, regions, scenes=scenes)
        if regions:
            features = self._features(len(regions), rng)
            found.parts = {
                name: np.ascontiguousarray(features[:, None, part]) for part, name in enumerate(("patches", "image"))
            }
            crops = rng.integers(0, 255, (1, CROP, CROP, 3), np.uint8).repeat(len(regions), axis=0)
            inside = np.zeros((len(regions), CROP, CROP), bool)
            inside[:, 8:24, 8:24] = True
            empty = np.zeros((0, 1, 1, 3), np.uint8)
            found.batch = CropBatch(crops, inside, empty, empty[..., 0].astype(np.float32), np.zeros(0, np.int64))
        return found

    def _features(self, count: int, rng: np.random.Generator) -> Any:
        """(count, 2, BLOCKS, WIDTH) float16 unit vectors."""
        kinds = rng.choice(KINDS + NEW_KINDS, count, p=self.shares)
        weights = rng.normal(0, 1, (count, SPREAD_AXES)) * 0.25 * rng.standard_t(3, (count, 1)) / 2
        out = self.kinds[kinds]
        for kind in np.unique(kinds):
            own = kinds == kind
            out[own] += (weights[own] @ self.axes[kind]).reshape(-1, 2, BLOCKS, WIDTH)
        out += rng.normal(0, 0.3 / np.sqrt(WIDTH), out.shape)
        chance = rng.random(count)
        odd = chance < SHARE_ODD
        out[odd] = 0.6 * self.common + 0.8 * _unit(rng.normal(size=(int(odd.sum()), 2, BLOCKS, WIDTH)))
        if (rare := np.flatnonzero(chance > 1 - SHARE_RARE)).size:
            out[rare] = 0.6 * self.common + 0.8 * _unit(rng.normal(size=(1, 2, BLOCKS, WIDTH)))
        return _unit(out).astype(np.float16)


def _unit(values: Any) -> Any:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def images_for(regions: int, picture: Path, name: str) -> Any:
    """As many images as have so many regions, all with the same picture."""
    from anomalyncd.data.dataset import Dataset, Sample

    count = round(regions / np.mean(PER_IMAGE) / 0.8)
    return Dataset(tuple(Sample(f"{name}/{number:07d}.png", picture, picture) for number in range(count)))


def make_picture(path: Path) -> Path:
    import cv2

    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(SEED).integers(0, 255, (100, 100), np.uint8))
    return path


def discover(folder: Path, regions: int, watch: Watch, new: int) -> None:
    """As `anomalyncd discover`, called again when all regions were found."""
    from anomalyncd.config import Config
    from anomalyncd.discovery import fit, learning, results
    from anomalyncd.discovery.model import DiscoveryModel
    from anomalyncd.progress import Silent
    from anomalyncd.run.folder import RANGE, RunFolder
    from anomalyncd.run.stages import Stages
    from anomalyncd.run.store import RegionStore

    dataset = images_for(regions, make_picture(folder / "base.png"), "line")
    run = RunFolder(folder / "run")
    with run.writing():
        stages = Stages(run, Config(), Silent())
        with watch.stage("regions"):
            rng = np.random.default_rng(SEED)
            normal = rng.normal(0.3, 0.04, 300)
            defect = np.arange(len(dataset)) % 5 != 4
            scores = np.where(defect, rng.normal(0.9, 0.05, len(defect)), rng.normal(0.3, 0.04, len(defect)))
            figures = {"scores": scores.tolist(), "peaks": scores.tolist(), "normal_scores": normal.tolist()}
            run.write_json(RANGE, {"low": 0.0, "high": 1.0, **figures, "normal_peaks": normal.tolist()})
            run.finish("range", stages.range_key(dataset))
            RegionStore(run).fill(dataset.samples, MadeUp, stages.regions_key(dataset), lambda _: None, scenes=True)
        watch.also(fit.RegionStore, "fill", "regions")
        watch.also(learning, "estimate_count", "count")
        watch.also(DiscoveryModel, "fit_unknown", "unknown")
        watch.also(results, "_neighbourhood", "tree")
        watch.also(fit, "classify_stored", "tables")
        from anomalyncd.assign import outliers

        watch.also(outliers, "outlier_groups", "outliers")
        with watch.stage("learning"):
            found = fit.discover(stages, dataset)
    print(
        f"{len(found.result.regions)} regions, {len(dataset)} images, {len(found.model.classes)} classes",
        file=sys.stderr,
    )


def update(folder: Path, regions: int, watch: Watch, new: int) -> None:
    from anomalyncd.discovery.model import DiscoveryModel
    from anomalyncd.discovery.update import update_run

    DiscoveryModel.look = lambda self, *_: lambda: MadeUp(new=True)  # type: ignore[method-assign,assignment,return-value]
    dataset = images_for(new, make_picture(folder / "new.png"), "new")
    with watch.stage("update"):
        found = update_run(folder / "run", dataset)
    print(
        f"{found.n_regions} more regions, {len(found.opened)} classes opened, {found.unknown} unknown", file=sys.stderr
    )


def report(folder: Path, regions: int, watch: Watch, new: int) -> None:
    from anomalyncd.report.classes import draw_class_sheets, draw_classes, draw_count
    from anomalyncd.report.html import write_report
    from anomalyncd.report.normal import draw_normal
    from anomalyncd.run.finished import FinishedRun

    with watch.stage("report"):
        run = FinishedRun(folder / "run")
        for draw in (draw_classes, draw_class_sheets, draw_count, draw_normal):
            draw(run)
        path = write_report(run, attention=False)
    print(f"report.html {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


def review(folder: Path, regions: int, watch: Watch, new: int) -> None:
    """What a person does: opens the page, looks, asks for help, names, moves, merges and splits; and applies it."""
    from fastapi.testclient import TestClient

    from anomalyncd.review.app import make_app

    slow: dict[str, float] = {}
    sizes: dict[str, int] = {}
    keys = iter(range(1, 10**6))

    def ask(path: str, body: Any = None) -> Any:
        started = time.process_time()
        answer = client.get(path) if body is None else client.post(path, json={"key": f"key-{next(keys):08d}", **body})
        assert answer.status_code < 300, (path, answer.text[:300])
        kind = re.sub(r"\d+", "N", path.split("?")[0])
        slow[kind] = max(slow.get(kind, 0), time.process_time() - started)
        sizes[kind] = max(sizes.get(kind, 0), len(answer.content))
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.content

    def act(**action: Any) -> None:
        state = ask("/api/state")
        ask("/api/actions", {"version": state["version"], "table": state["table"], "action": action})

    with watch.stage("review"):
        started = time.process_time()
        app = make_app(folder / "run", guarded=False)
        slow["opening"] = time.process_time() - started
    client = TestClient(app, base_url="http://localhost")
    with watch.stage("review"):
        state = ask("/api/state")
        kinds = [card["label"] for card in state["classes"] if card["label"] > 0 and card["n_regions"] > 50]
        for label in kinds:
            page = ask(f"/api/classes/{label}/regions")
        for more in ("order=unsure", "contains=123", "place=left", "size=small", "offset=1000&limit=240"):
            ask(f"/api/classes/{kinds[0]}/regions?{more}")
        for region in page["regions"][:3]:
            ask(f"/crops/{region['id']}")
            ask(f"/overlay/{region['image']}?region={region['id']}")
            ask(f"/api/regions/{region['id']}/similar")
        for path in ("/api/hints", "/api/normal", "/api/copies", "/api/next?n=12", "/api/history", "/api/moves"):
            ask(path)
        act(kind="name", label=kinds[0], name="dent")
        act(kind="move", regions=[region["id"] for region in page["regions"]], to=kinds[1])
        act(kind="merge", source=kinds[-1], into=kinds[-2])
        act(kind="split", label=kinds[0], parts=2)
    with watch.stage("apply"):
        ask("/api/apply", {"version": ask("/api/state")["version"]})
        app.state.applier.wait()
        job = ask("/api/version")["job"]
        assert job["state"] == "done", job
        ask("/api/state")
    app.state.close()
    worst = sorted(slow, key=slow.__getitem__, reverse=True)[:6]
    print("; ".join(f"{path} {slow[path]:.2f} s, {sizes.get(path, 0) / 1e3:.0f} kB" for path in worst), file=sys.stderr)


def alone(folder: Path, regions: int, watch: Watch, new: int) -> None:
    """Learning and assignment of features that lie in memory, one region an image."""
    from anomalyncd.config import Config
    from anomalyncd.discovery.learning import learn_classes
    from anomalyncd.discovery.model import DiscoveryModel
    from anomalyncd.progress import Silent
    from anomalyncd.regions.find import Region
    from anomalyncd.regions.records import ImageRecord
    from anomalyncd.run.folder import RunFolder
    from anomalyncd.run.store import RegionStore

    store, made = RegionStore(RunFolder(folder)), MadeUp()
    with watch.stage("making features"):
        rng = np.random.default_rng(SEED)
        features = np.empty((2, regions, 1, BLOCKS, WIDTH), np.float16)
        for start in range(0, regions, 1000):
            some = made._features(min(1000, regions - start), rng)
            features[:, start : start + len(some), 0] = some.swapaxes(0, 1)
        store.parts = {"patches": features[0], "image": features[1]}
        store.regions = [
            Region(
                index=n,
                image=str(n),
                box=(0, 0, 9, 9),
                square=(0, 0, 9),
                area=81.0,
                score=1.0,
                digest=rng.bytes(8).hex(),
            )
            for n in range(regions)
        ]
        store.images = [ImageRecord(n, str(n), 100, 100, 1) for n in range(regions)]
    model = DiscoveryModel(Config())
    with watch.stage("learning"):
        learn_classes(model, store, None, None, Silent())
    with watch.stage("unknown"):
        model.fit_unknown(store.parts, store.regions)
    with watch.stage("assignment"):
        labels = model.region_probabilities(store.parts, store.regions, store.images).argmax(axis=1)
    print(f"{regions} regions, {len(np.unique(labels))} kinds", file=sys.stderr)


COMMANDS: dict[str, Callable[[Path, int, Watch, int], None]] = {
    "discover": discover, "update": update, "report": report, "review": review, "alone": alone,
}  # fmt: skip


def measure(folder: Path, command: str, regions: int, new: int) -> dict[str, list[float]]:
    """Stages of a command in a process of its own."""
    words = [sys.executable, __file__, str(folder), "--command", command, "--sizes", str(regions), "--new", str(new)]
    started = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    spent = sum(seconds for seconds, _ in found.values())
    print(
        f"{regions:,} {command}: {spent:.0f} s of the processor, {time.perf_counter() - started:.0f} s", file=sys.stderr
    )
    return found


def plot(path: Path, table: dict[int, dict[str, list[float]]]) -> None:
    """Seconds and memory of each stage against the number of regions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    for axes, place, words in zip(figure.subplots(1, 2), (0, 1), ("seconds of one core", "peak, MB"), strict=True):
        for name in dict.fromkeys(name for stages in table.values() for name in stages):
            axes.plot(list(table), [stages[name][place] for stages in table.values()], "o-", label=name, ms=4)
        axes.set_xlabel("regions")
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the runs, and room.json with what was measured")
    parser.add_argument("--sizes", type=positive, nargs="+", default=[25_000, 50_000, 100_000, 200_000])
    parser.add_argument("--new", type=positive, default=20_000, help="regions of the update")
    parser.add_argument("--alone", type=positive, metavar="N", help="only learning and assignment, features in memory")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=["discover", "update", "report", "review"])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--command", choices=COMMANDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.command:
        watch = Watch()
        COMMANDS[options.command](options.folder, options.sizes[0], watch, options.new)
        watch.print()
        return
    print(machine(), flush=True)
    sizes, commands = ([options.alone], ["alone"]) if options.alone else (options.sizes, options.commands)
    kept = options.folder / "room.json"  # of calls before, which may have measured other commands or sizes
    known = json.loads(kept.read_text()) if kept.exists() else {}
    for regions in sizes:
        folder = options.folder / str(regions)
        if "discover" in commands:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for command in commands:
            known[str(regions)] = known.get(str(regions), {}) | measure(folder, command, regions, options.new)
            kept.write_text(json.dumps(known))
        if "review" in commands:
            shutil.rmtree(folder)
    table: dict[int, dict[str, list[float]]] = {size: known[str(size)] for size in sizes}
    names = dict.fromkeys([*STAGES, *(name for stages in table.values() for name in stages)])
    rows = [
        [name, *("{:.1f} s, {:,.0f} MB".format(*table[size][name]) for size in sizes)]
        for name in names
        if all(name in table[size] for size in sizes)
    ]
    total = [sum(seconds for seconds, _ in table[size].values()) for size in sizes]
    peaks = [max(peak for _, peak in table[size].values()) for size in sizes]
    rows.append(["all", *(f"{spent:.0f} s, {peak:,.0f} MB" for spent, peak in zip(total, peaks, strict=True))])
    print_table(["stage", *(f"{size:,} regions" for size in sizes)], rows)
    if options.plot:
        plot(options.plot, table)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
