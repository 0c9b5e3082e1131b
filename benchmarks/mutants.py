"""Single faults put into the core, one at a time: does a test notice?

    python benchmarks/mutants.py --count 220 --seed 0 --work DIR        go on where an earlier call stopped
    python benchmarks/mutants.py --list                                 show the faults that are drawn
    python benchmarks/mutants.py --only assign/count.py:132 --work DIR  all faults of a line
    python benchmarks/mutants.py --again --work DIR                     try those that survived once more
    python benchmarks/mutants.py --seconds 200 --work DIR               stop after so long; the next call goes on

A fault is drawn by chance among all places of the source where one fits. Only the tests that run the place are called,
those of the same room first, the quickest first, in a process forked from one that has all libraries imported. The
repository itself is never touched. Needs `coverage`, and a system that can fork.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: a fork may not find threads

from mutation.faults import Mutant, draw, places
from mutation.suite import LIBRARIES, Suite, Test, preload

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("binarize", "regions", "model", "learn", "assign", "metrics", "detect", "discovery", "run")
# What takes long comes last: a fault that these rooms' own tests notice needs no others.
NUMBERS = "tests/test_numbers.py"
TESTS = (
    *(f"tests/{room}" for room in ROOMS), NUMBERS, "tests/known", "tests/data", "tests/steps",
    "tests/test_estimator.py", "tests/report",
)  # fmt: skip
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")


@dataclass(frozen=True)
class Result:
    """What became of one fault; killed_by is empty where no test noticed."""

    key: str
    line: int
    killed_by: str
    tests: int
    cut: bool
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=220, help="of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keep the copy, the lines of the tests and the results here")
    parser.add_argument("--list", action="store_true", help="only show what is drawn")
    parser.add_argument("--only", nargs="+", metavar="FILE:LINE", help="all faults of these lines, instead of a draw")
    parser.add_argument("--again", action="store_true", help="try faults that survived once more")
    parser.add_argument("--cpu-seconds", type=float, default=60, help="of processor time for one fault")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further fault is begun")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument(
        "--rooms", nargs="+", default=[f"src/anomalyncd/{room}" for room in ROOMS], help="of the source"
    )
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files and folders of tests")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="list of faults that change nothing")
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), help="imported before all else")
    options = parser.parse_args()

    found = [place for room in options.rooms for place in read_room(options.root, room)]
    if options.only:
        wanted = [mutant for place in found for mutant in place if is_at(mutant, options.only)]
    else:
        wanted = draw(found, options.count, options.seed)
    print(f"{len(wanted)} of {sum(map(len, found))} faults at {len(found)} places, seed {options.seed}", flush=True)
    if options.list:
        for mutant in wanted:
            print(f"{mutant.key}  (line {mutant.line})")
        return
    with ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        preload(options.libraries)
        suite = Suite(options.root, work, options.rooms, options.tests)
        tests = suite.collect(say)
        results = try_all(suite, tests, wanted, work / "results.jsonl", options)
    if left := [mutant for mutant in wanted if mutant.key not in results]:
        print(f"{len(left)} faults are left: call again")
        sys.exit(2)
    alive = report(wanted, results, read_equivalent(options.equivalent))
    sys.exit(1 if alive else 0)


def say(words: str) -> None:
    print(words, flush=True)


def read_room(root: Path, room: str) -> list[list[Mutant]]:
    """All places of a folder of the source."""
    files = sorted((root / room).rglob("*.py"))
    return [p for file in files for p in places(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))]


def is_at(mutant: Mutant, wanted: Sequence[str]) -> bool:
    """Whether a fault is at one of the places FILE:LINE, the file by the end of its path."""
    named = [place.rpartition(":") for place in wanted]
    return any(mutant.file.endswith(file) and mutant.line == int(line) for file, _, line in named)


def try_all(
    suite: Suite, tests: Sequence[Test], mutants: Sequence[Mutant], kept: Path, options: argparse.Namespace
) -> dict[str, Result]:
    """The outcome for each fault, from the file of results where it is known."""
    known: dict[str, Result] = {}
    if kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            result = Result(**json.loads(line))
            known[result.key] = result
    started = time.perf_counter()
    for number, mutant in enumerate(mutants, 1):
        earlier = known.get(mutant.key)
        if earlier is not None and (earlier.killed_by or not options.again):
            continue
        if time.perf_counter() - started > options.seconds:
            break
        result = try_one(suite, tests, mutant, options.cpu_seconds)
        known[mutant.key] = result
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        verdict = result.killed_by or "SURVIVED" + " (time ran out for the other tests)" * result.cut
        say(
            f"{number}/{len(mutants)} {mutant.file}:{mutant.line}: {verdict} ({result.tests} tests, {result.seconds:.0f} s)"
        )
    return known


def try_one(suite: Suite, tests: Sequence[Test], mutant: Mutant, cpu_seconds: float) -> Result:
    """First the tests of the same room that run the place, then all others that do."""
    near, far = chosen(tests, mutant)
    started, ran, cut, killed_by = time.perf_counter(), 0, False, ""
    for some in (near, far):
        if some and not killed_by:
            outcome = suite.run(some, mutant.file, mutant.text, cpu_seconds / (1 + bool(near and far)))
            killed_by, ran, cut = outcome.killed_by, ran + outcome.tests, cut or outcome.cut
    return Result(mutant.key, mutant.line, killed_by, ran, cut, time.perf_counter() - started)


def chosen(tests: Sequence[Test], mutant: Mutant) -> tuple[list[Test], list[Test]]:
    """Tests that run the statement; where nothing is known to run it (compiled, or in a process of its own), first those of
    its own file of tests, then all that run something of its file.

    A number that stands outside of functions is read without running a line, so the tests of numbers count as well.
    """
    statement, source = set(mutant.statement), Path(mutant.file)
    room, own = source.parent.name, f"tests/{source.parent.name}/test_{source.stem}.py"
    there = [test for test in tests if mutant.file in test.lines]
    hits = [test for test in there if statement & test.lines[mutant.file]] if mutant.in_function else []
    if not hits:
        first = [test for test in tests if test.file == own or (test.file == NUMBERS and not mutant.in_function)]
        hits = there or [test for test in tests if Path(test.file).parent.name == room]
        return first, [test for test in hits if test not in first]
    near = [test for test in hits if room in Path(test.file).parts]
    return near, [test for test in hits if test not in near]


def read_equivalent(path: Path) -> dict[str, str]:
    """Key → reason, of a file with blocks of a file's name, its changed lines, and a line of reason after `#`."""
    found = {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for block in text.split("\n\n"):
        key, mark, reason = block.strip("\n").rpartition("\n# ")
        if mark and not block.startswith("#"):
            found[key] = reason
    return found


def report(wanted: Sequence[Mutant], results: dict[str, Result], equivalent: dict[str, str]) -> int:
    """Print what became of the faults by room, and those that survived; returns how many did."""
    rooms = sorted({Path(mutant.file).parent.name for mutant in wanted})
    alive = [m for m in wanted if not results[m.key].killed_by and m.key not in equivalent]
    print("\n| room | faults | killed | equivalent | survived |\n|---|---|---|---|---|")
    for room in (*rooms, "all"):
        here = [m for m in wanted if room in ("all", Path(m.file).parent.name)]
        killed = sum(bool(results[m.key].killed_by) for m in here)
        survived = sum(m in alive for m in here)
        print(f"| {room} | {len(here)} | {killed} | {len(here) - killed - survived} | {survived} |")
    judged = killed + survived
    print(f"\nscore: {killed} of {judged} ({killed / max(judged, 1):.1%}), {len(wanted) - judged} equivalent left out")
    for mutant in alive:
        print(f"\nsurvived, line {mutant.line} ({results[mutant.key].tests} tests):\n{mutant.key}")
    return len(alive)


if __name__ == "__main__":
    main()
