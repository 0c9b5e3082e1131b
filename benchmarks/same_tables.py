"""Whether two checkouts make the same tables, byte for byte: what a change of structure alone must leave as they are.

    python benchmarks/same_tables.py OLD_CHECKOUT NEW_CHECKOUT [--backbone tiny] [--only fast-maps update-maps …]
        [--work DIR] [--keep] [--old-only]

Calls the commands of each checkout on the same images of the demo line, in folders of the same name, with one thread, and
compares images.csv, regions.csv, classes.json and the tables of `predict`. Ends with exit code 1 if any of them differs;
other tables are only spoken of. What the old checkout made stays below --work and is used again while its code, the
commands and the libraries are the same; the new one always computes. This file uses nothing of the project but its
commands, so that it works whatever the checkouts have inside.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from filelock import FileLock

TABLES = ("run/images.csv", "run/regions.csv", "run/classes.json")
PREDICTED = ("new.csv", "new_regions.csv")
NOTED = ("run/manifest.csv", "run/corrections.csv", "run/groups.csv")
LIBRARIES = ("torch", "timm", "numpy", "scipy", "scikit-learn")
MADE = "made.json"  # in the folder of a case that was finished
MAKE_LINES = """
import sys
from anomalyncd.demo import make_line
def make(name, n_per_class, n_normal, n_combined=0, **settings):
    make_line(f"{sys.argv[1]}/{name}", n_per_class=n_per_class, n_normal=n_normal, n_combined=n_combined, **settings)
make("line", 6, 6, 2, kinds=["scratch", "stain", "crack", "print"])
make("base", 4, 0, texture="woven_fabric", seed=2)
# New images: two kinds of defect and a texture that the run has not seen, so that a class opens.
make("more", 6, 2, kinds=["hole", "crack", "fibre"], texture=["brushed_metal", "terrazzo"], seed=1)
"""
REVIEW = (
    {"kind": "merge", "from": 2, "into": 1},
    {"kind": "move", "regions": [0, 5], "to": 3},
    {"kind": "move", "regions": [3, 9, 14], "to": None},
    {"kind": "name", "label": 3, "name": "scratch"},
)
MORE_REVIEW = ({"kind": "split", "label": 1, "parts": 2}, {"kind": "false_alarm", "regions": [7, 12]})


class FailedError(Exception):
    """A command that did not do what it was asked for."""


@dataclass(frozen=True)
class Case:
    """Arguments of the commands to call one after the other; `after` is the case with whose run they begin."""

    steps: tuple[tuple[str, ...], ...]
    after: str = ""


def make_cases(here: Path, lines: Path, backbone: str | None) -> dict[str, Case]:
    """Name → case; all of them work in the folder `here`."""
    run, exported, more = str(here / "run"), str(here / "onnx"), str(lines / "more/images")
    maps, masks = ("--maps", str(lines / "line/maps")), ("--masks", str(lines / "line/masks"))
    new_maps, new_masks = ("--maps", str(lines / "more/maps")), ("--masks", str(lines / "more/masks"))
    base, paper = ("--base", str(lines / "base")), ("--preset", "paper")
    network = ("--backbone", backbone) if backbone else ()

    def discover(*options: str, classes: str = "5") -> Case:
        shared = (*network, "--classes", classes, "--exclude", "combined", "--out", run, "--quiet")
        return Case((("discover", str(lines / "line/images"), *options, *shared),))

    def update(after: str, *options: str) -> Case:
        return Case((("update", run, more, *options, "--quiet"),), after)

    def predict(after: str, *options: str, model: str = run) -> Case:
        export = (("export", run, "--format", "onnx", "--out", exported, "--quiet"),) if model == exported else ()
        return Case((*export, ("predict", model, more, *options, "--out", str(here / "new.csv"), "--quiet")), after)

    def review(after: str, *actions: dict[str, Any]) -> Case:
        return Case((("review", run, *map(json.dumps, actions)),), after)

    return {
        "fast-maps": discover(*maps),
        "fast-masks": discover(*masks),
        "paper-maps": discover(*maps, *paper),
        "paper-masks": discover(*masks, *paper),
        "patchcore": discover("--detector", "patchcore", "--normal", str(lines / "line/images/good")),
        "musc": discover("--detector", "musc"),
        "base-masks": discover(*masks, *base),
        "base-paper": discover(*maps, *base, *paper),
        "auto": discover(*maps, classes="auto"),
        "no-normal-maps": discover(*maps, "--no-normal"),
        "no-normal-masks": discover(*masks, "--no-normal"),
        "predict-maps": predict("fast-maps", *new_maps),
        "predict-paper": predict("paper-masks", *new_masks),
        "predict-patchcore": predict("patchcore"),
        "predict-musc": predict("musc"),
        "update-masks": update("fast-masks", *new_masks),
        "update-maps": update("fast-maps", *new_maps),
        "update-patchcore": update("patchcore"),
        "update-musc": update("musc"),
        "review-masks": review("fast-masks", *REVIEW),
        "review-maps": review("fast-maps", *REVIEW, *MORE_REVIEW),
        "update-reviewed": update("review-masks", *new_masks),
        "onnx-maps": predict("fast-maps", *new_maps, model=exported),
        "onnx-patchcore": predict("patchcore", model=exported),
    }


class Side:
    """One checkout: makes the folders of cases below `results`, and takes those that lie there already."""

    def __init__(self, checkout: Path, results: Path, here: Path, cases: dict[str, Case]) -> None:
        self.results, self.here, self.cases = results, here, cases
        own = {"PYTHONPATH": str(checkout / "src"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.process: dict[str, Any] = {"env": {**os.environ, **own}, "cwd": results, "text": True}
        results.mkdir(parents=True, exist_ok=True)
        package = Path(self.python("-c", "import anomalyncd; print(anomalyncd.__file__)").strip()).parent
        if not package.is_relative_to(checkout):
            raise SystemExit(f"{checkout}: expected its code to be used, but Python imports {package}.")
        files = (path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        code = [[str(path.relative_to(checkout)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]
        self.made_of = [code, MAKE_LINES, [version(name) for name in LIBRARIES]]

    def python(self, *arguments: str) -> str:
        """What Python printed."""
        done = subprocess.run([sys.executable, *arguments], capture_output=True, **self.process)
        if done.returncode:
            raise FailedError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
        return done.stdout

    def key(self, name: str) -> str:
        """Of all that the tables depend on."""
        case = self.cases[name]
        content = [self.made_of, case.steps, self.key(case.after) if case.after else ""]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def make(self, name: str) -> float:
        """Make the folder of a case where it is not there; returns the seconds that its own commands took."""
        case, folder, key = self.cases[name], self.results / name, self.key(name)
        if (folder / MADE).exists() and (made := json.loads((folder / MADE).read_text()))["key"] == key:
            return float(made["seconds"])
        if case.after:
            self.make(case.after)
        for left in (self.here, folder):
            shutil.rmtree(left, ignore_errors=True)
        self.here.mkdir()
        if case.after:
            shutil.copytree(self.results / case.after / "run", self.here / "run")
        started = time.perf_counter()
        for command, *arguments in case.steps:
            if command == "review":
                self._review(*arguments)
            else:
                self.python("-m", "anomalyncd", command, *arguments)
        seconds = time.perf_counter() - started
        (self.here / MADE).write_text(json.dumps({"key": key, "seconds": seconds}))
        self.here.rename(folder)
        return seconds

    def _review(self, run: str, *actions: str) -> None:
        """Do actions in `anomalyncd review`, as its page does, and apply them."""
        command = [sys.executable, "-m", "anomalyncd", "review", run, "--port", "0", "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, **self.process) as process:
            try:
                address = process.stdout.readline().rpartition(":")[2].strip("/\n")
                port = int(address) if address.isdecimal() else 0
                for number, action in enumerate(actions):
                    seen = ask(port, "state")
                    content = {"version": seen["version"], "table": seen["table"], "action": json.loads(action)}
                    ask(port, "actions", {"key": f"same-tables-{number}", **content})
                ask(port, "apply", {"key": "same-tables-apply", "version": ask(port, "state")["version"]})
                while (job := ask(port, "version")["job"])["state"] == "running":
                    time.sleep(0.1)
                if job["state"] != "done":
                    raise FailedError(job["message"])
            finally:
                process.send_signal(signal.SIGINT)


def ask(port: int, path: str, content: object = None) -> Any:
    """An answer of the review."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        method, headers = "GET" if content is None else "POST", {"Content-Type": "application/json"}
        connection.request(method, f"/api/{path}", json.dumps(content), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    except OSError as error:
        raise FailedError(f"review: {error}") from error
    finally:
        connection.close()
    if answer.status >= 300:
        raise FailedError(f"review, {path}: {answer.status} {text[:200]}")
    return json.loads(text)


def differences(old: Path, new: Path, names: Sequence[str]) -> list[str]:
    """The first difference of each file that is not the same, byte for byte, in both folders."""
    found = []
    for name in names:
        missing = [side for side, folder in (("old", old), ("new", new)) if not (folder / name).is_file()]
        if missing:
            found.append(f"{name}: missing in {' and '.join(missing)}")
            continue
        was, now = ((folder / name).read_bytes() for folder in (old, new))
        if was != now:
            place = next(place for place, (a, b) in enumerate(zip_longest(was, now)) if a != b)
            shown = [content[max(0, place - 30) : place + 30] for content in (was, now)]
            found.append(f"{name}, line {was[:place].count(10) + 1}: {shown[0]!r} → {shown[1]!r}")
    return found


def size(folder: Path) -> str:
    """How much there was to compare."""
    names = PREDICTED if (folder / PREDICTED[0]).exists() else TABLES[:2]
    images, regions = ((folder / name).read_bytes().count(b"\n") - 1 for name in names)
    return f"{images} images, {regions} regions, {len(json.loads((folder / TABLES[2]).read_bytes()))} classes"


def compared(name: str, old: Side, new: Side | None) -> bool:
    """Make the folders of a case and print a line about them; returns whether nothing is wrong."""
    seconds, wrong, notes = [0.0, 0.0], list[str](), list[str]()
    sides = [side for side in (old, new) if side]
    folders = [side.results / name for side in sides]
    try:
        for place, side in enumerate(sides):
            seconds[place] = side.make(name)
        if new:
            predicts = old.cases[name].steps[-1][0] == "predict"
            found = differences(*folders, TABLES + PREDICTED if predicts else TABLES)
            wrong = [f"differs: {difference}" for difference in found]
            notes = differences(*folders, [table for table in NOTED if any((f / table).exists() for f in folders)])
    except FailedError as error:
        wrong = [f"{'new' if seconds[0] else 'old'} fails: {error}"]
    words = wrong or [f"{'same' if new else 'made'}: {size(folders[0])}"]
    words += [f"(aside: {note})" for note in notes]
    print(f"| {name:<17} | {seconds[0]:5.1f} | {seconds[1]:5.1f} | {'; '.join(words)}", flush=True)
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--backbone", help="as for discover; tiny takes minutes")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="names of cases; all by default")
    parser.add_argument("--work", type=Path, help="keep what the old checkout made here; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="keep all runs of the new checkout, not only wrong ones")
    parser.add_argument("--old-only", action="store_true", help="make what the old checkout has to make, and no more")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        place = work / (options.backbone or "default")
        here, results = place / "here", place / "new"
        cases = make_cases(here, work / "lines", options.backbone)
        if unknown := set(options.only or ()) - set(cases):
            parser.error(f"--only takes {', '.join(cases)}, but got {', '.join(sorted(unknown))}")
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / "lock"):
            shutil.rmtree(results, ignore_errors=True)
            commit = subprocess.check_output(["git", "-C", options.old, "rev-parse", "--short=12", "HEAD"], text=True)
            old = Side(options.old.resolve(), place / "old" / commit.strip(), here, cases)
            old.python("-c", MAKE_LINES, str(work / "lines"))
            new = None if options.old_only else Side(options.new.resolve(), results, here, cases)
            print(f"{options.old} ({commit.strip()}) and {options.new}, backbone {place.name}")
            print(f"| {'case':<17} | old s | new s | tables\n| {'-' * 17} | ----- | ----- | ------", flush=True)
            wrong = [name for name in options.only or cases if not compared(name, old, new)]
            for folder in () if options.keep or not new else results.iterdir():
                if folder.name not in wrong:
                    shutil.rmtree(folder)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
