"""Bad days on purpose. Each part ends with exit code 1 if anything went wrong; a failure is repeated with its --seed.

python benchmarks/faults.py kills --runs 100 [--ray 5] [--demo 10 --line DIR]     SIGKILL at random moments, resumed
python benchmarks/faults.py lost                                        names, replaced images, two processes at once
python benchmarks/faults.py disk --runs 20 [--ray]                      a full disk, then room again
python benchmarks/faults.py files --count 60                            lost and damaged files
python benchmarks/faults.py fuzz --count 10000                          malformed inputs to all readers
python benchmarks/faults.py servers --slow 600 --pictures 12 --kills 20 [--only PART …]
    strangers, slow clients, stale pages and crashes against `serve` and `review`, by HTTP on this machine only
python benchmarks/faults.py arguments --count 2000                      wrong arguments to all commands, and to Python
python benchmarks/faults.py strangers --count 1000                      run folders that somebody made to harm
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import machine, print_table
from faults.arguments import Things, call_api, call_commands, words
from faults.bombs import BOMBS
from faults.files import hurt_files, hurt_inputs, lose_while_running
from faults.kills import kill_runs
from faults.lost import kept_names, replaced_images, two_at_once
from faults.scenes import Recipe, beside, discover, discover_with_ray, predict_with_ray, recipes, small_line, update
from faults.server import ForkServer
from faults.servers import (
    bombs,
    enlarge_images,
    half_requests_end,
    killed_applies,
    killed_services,
    late_answers,
    many_pictures,
    other_sites,
    repeated_region,
    slow_connections,
    stale_actions,
    told_secrets,
    too_many_pictures,
)
from faults.strangers import attack
from faults.studio import killed_uploads, open_studio, places_outside, refused_everywhere, sent_bombs, workspace
from faults.web import Command

from anomalyncd.demo import DEFECT_KINDS, make_line

REVIEW_PATHS = (
    "/", "/api/state", "/api/moves", "/api/hints", "/api/copies", "/api/lesson", "/api/normal", "/api/history", "/crops/0",
    "/overlay/0",
)  # fmt: skip
SERVER_PARTS = (
    "bombs", "sites", "pictures", "slow", "stale", "crash", "ended", "late", "secrets", "repeated", "studio",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--work", type=Path, help="keep what was made here; a temporary folder by default")
    part = parts.add_parser("kills", parents=[shared])
    part.add_argument("--runs", type=int, default=100, help="of the tiny network on a small set")
    part.add_argument("--ray", type=int, default=0, help="of `discover` and `predict` with Ray, in turn")
    part.add_argument("--demo", type=int, default=0, help="of the default network on the images of `anomalyncd demo`")
    part.add_argument("--line", type=Path, help="folder of images/ and maps/ of the demo; made where none is given")
    parts.add_parser("lost", parents=[shared])
    part = parts.add_parser("disk", parents=[shared])
    part.add_argument("--runs", type=int, default=20)
    part.add_argument("--ray", action="store_true", help="`discover` with Ray only")
    part = parts.add_parser("files", parents=[shared])
    part.add_argument(
        "--count", type=int, default=60, help="of damages to a finished run; a third as many to a running one"
    )
    part = parts.add_parser("fuzz", parents=[shared])
    part.add_argument("--count", type=int, default=10_000)
    part.add_argument("--first", type=int, default=0, help="number of the first input, to repeat one of them")
    part.add_argument("--keep", type=Path, help="folder for copies of the inputs that failed")
    part.add_argument("--only", default="", help="part of the names of the readers to try")
    part = parts.add_parser("servers", parents=[shared])
    part.add_argument("--slow", type=int, default=600, help="connections that are held")
    part.add_argument("--seconds", type=float, default=15, help="for which they are held, three times for each server")
    part.add_argument("--pictures", type=int, default=12, help="that are asked for at once")
    part.add_argument("--side", type=int, default=9900, help="of these, in pixels")
    part.add_argument("--kills", type=int, default=20, help="in the middle of an apply, and of a service")
    part.add_argument("--late", type=int, default=12, help="requests that are answered too late")
    part.add_argument("--only", nargs="+", choices=SERVER_PARTS, default=SERVER_PARTS)
    part = parts.add_parser("arguments", parents=[shared])
    part.add_argument("--count", type=int, default=2000, help="of commands, and of calls in Python")
    part = parts.add_parser("strangers", parents=[shared])
    part.add_argument("--count", type=int, default=1000)
    part.add_argument("--first", type=int, default=0, help="number of the first folder, to repeat one or to go on")
    part.add_argument("--only", default="", help="part of the name of the changes to try")
    options = parser.parse_args()

    print(machine(), f"\n{options.part}, seed {options.seed}", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        failures = globals()[options.part](options, np.random.default_rng(options.seed), work)
    for failure in failures:
        print("FAILED", failure)
    print(f"{options.part}: {len(failures)} failures, {time.perf_counter() - started:.0f} s")
    sys.exit(bool(failures))


def kills(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Random kills of runs on a small set, then on the demo's."""
    failures = []
    if options.runs or options.ray:
        line, more = small_line(work / "line"), small_line(work / "more", seed=1)
        with ForkServer() as server:
            started = work / "started"
            if (made := server.run(*discover(line).command(started))).code:
                return [made.output]
            several = [*recipes(line), update(started, more), *beside(started, more)]
            failures += kill_runs(server, several, options.runs, rng, work / "small")
            with_ray = [discover_with_ray(line), predict_with_ray(started, more)]
            failures += kill_runs(server, with_ray, options.ray, rng, work / "ray", each=True)
    if options.demo:
        line = options.line or make_line(work / "demo-line")
        given = ("--maps", line / "maps", "--classes", len(DEFECT_KINDS) + 1, "--exclude", "combined", "--quiet")
        command = ("discover", line / "images", *given)
        with ForkServer(shard=16) as server:
            failures += kill_runs(server, [Recipe("demo", command)], options.demo, rng, work / "demo", each=True)
    return failures


def lost(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Second calls, and two at once."""
    line, more = small_line(work / "line"), small_line(work / "more", seed=1)
    started = work / "started"
    with ForkServer() as server, ForkServer() as other:
        if (made := server.run(*discover(line).command(started))).code:
            return [made.output]
        failures = kept_names(server, discover(line), work) + replaced_images(server, discover(line), line, work)
        return failures + two_at_once((server, other), discover(line), update(started, more), more, work)


def disk(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Commands that run out of room."""
    from faults.disk import (
        full_disks,
    )  # here, as an earlier version, which is tried to see that it fails, has no such names

    with ForkServer() as server:
        return full_disks(server, options.runs, rng, work, **({"ray": True} if options.ray else {}))


def files(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Files of a finished run, of a running one, and of the inputs."""
    third = -(-options.count // 3)
    with ForkServer() as server:
        failures = hurt_files(server, options.count, rng, work)
        failures += lose_while_running(server, third, rng, work)
        return failures + hurt_inputs(server, third, rng, work)


def fuzz(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Malformed inputs, and a table of what came of them."""
    from faults.fuzz import fuzz as feed  # here, as in `disk`

    tally = feed(options.count, options.seed, work, first=options.first, keep=options.keep, only=options.only)
    outcomes = sorted({outcome for _, outcome in tally.outcomes})
    rows = [
        [reader, *(str(tally.outcomes[reader, outcome] or "") for outcome in outcomes)]
        for reader in dict.fromkeys(reader for reader, _ in tally.outcomes)
    ]
    print_table(["reader", *outcomes], rows)
    print("kinds: " + ", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common()))
    print(f"{sum(tally.kinds.values())} malformed inputs; {tally.n_good} valid files after them read right")
    seconds, megabytes = tally.slowest, tally.largest
    print(f"slowest {seconds[0]:.1f} s of work ({seconds[1]}); most memory {megabytes[0]:.0f} MB ({megabytes[1]})")
    return tally.failures


def servers(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Each part against processes of its own, which are started by the command line."""
    line, run = small_line(work / "line"), work / "run"
    with ForkServer() as server:
        if (made := server.run(*recipes(line)[2].command(run))).code:
            return [made.output]
    content = next((line / "images").rglob("*.png")).read_bytes()
    failures: list[str] = []

    def serve_and_review(name: str, part: Callable[[Command, bool], list[str]]) -> None:
        if name in options.only:
            for command in ("serve", "review"):
                print(f"{name}, {command}", flush=True)
                with Command(command, Path(shutil.copytree(run, work / f"{name}-{command}"))) as web:
                    failures.extend(f"{name}, {command}: {wrong}" for wrong in part(web, command == "serve"))

    def alone(name: str, part: Callable[[], list[str]]) -> None:
        if name in options.only:
            print(name, flush=True)
            failures.extend(f"{name}: {wrong}" for wrong in part())

    def sites(web: Command, is_service: bool) -> list[str]:
        own = ["/v1/model", "/metrics", "/openapi.json"]
        return other_sites(web, own if is_service else REVIEW_PATHS)

    def slow(web: Command, is_service: bool) -> list[str]:
        if is_service:
            post = lambda: web.ask("/v1/predict", content, kind="image/png")  # noqa: E731
            good, path = [lambda: web.ask("/health"), lambda: web.ask("/v1/model"), post], "/v1/predict"
        else:
            good, path = [lambda: web.ask("/api/state"), lambda: web.ask("/crops/0")], "/api/actions"
        return half_requests_end(web, path, 30) + slow_connections(web, options.slow, good, path, options.seconds)

    def pictures() -> list[str]:
        with Command("review", enlarge_images(run, work, options.side)) as web:
            return many_pictures(web, options.pictures) + too_many_pictures(web, 100, options.pictures)

    if "bombs" in options.only:
        with Command("serve", Path(shutil.copytree(run, work / "bombs"))) as web:
            alone("bombs", lambda: bombs(web, BOMBS, content, 2048))
    serve_and_review("sites", sites)
    alone("pictures", pictures)
    serve_and_review("slow", slow)
    if "stale" in options.only:
        with Command("review", Path(shutil.copytree(run, work / "stale"))) as web:
            alone("stale", lambda: stale_actions(web))
    alone("crash", lambda: killed_applies(run, options.kills, rng, work))
    alone("ended", lambda: killed_services(run, content, options.kills, rng, work))
    alone("late", lambda: late_answers(run, content, options.late))
    alone("secrets", lambda: told_secrets(("serve", "review"), run, work))
    alone("repeated", lambda: repeated_region(run, work))
    alone("studio", lambda: in_studio(options, rng, run, line, work))
    return failures


def in_studio(options: argparse.Namespace, rng: np.random.Generator, run: Path, line: Path, work: Path) -> list[str]:
    """Everything that strangers can send to the studio."""
    place = workspace(run, line, work)
    failures = refused_everywhere(place) + places_outside(place, rng)
    failures += sent_bombs(place, BOMBS, 2048)
    failures += killed_uploads(place, next((line / "images").rglob("*.png")).read_bytes(), options.kills, rng)
    with open_studio(place) as web:
        good = [lambda: web.ask("/api/state"), lambda: web.ask("/runs/plate/review/api/state")]
        for path in ("/api/runs", "/runs/plate/review/api/actions"):
            failures += half_requests_end(web, path, 30)
        failures += slow_connections(web, options.slow, good, "/api/runs", options.seconds)
    return failures


def arguments(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Wrong arguments, and how many were refused."""
    things, failures = Things(work), []
    for name, call in (("commands", call_commands), ("calls in Python", call_api)):
        tally = call(things, options.count, rng)
        print(f"{tally.n_calls} {name}: {words(tally)}", flush=True)
        failures += tally.failures
    return failures


def strangers(options: argparse.Namespace, rng: np.random.Generator, work: Path) -> list[str]:
    """Hostile run folders, and what the commands said."""
    with ForkServer() as server:
        tally = attack(server, options.count, rng, work, only=options.only, first=options.first)
    names = list(dict.fromkeys(command for command, _ in tally.outcomes))
    rows = [[name, *(str(tally.outcomes[name, outcome]) for outcome in ("done", "refused"))] for name in names]
    print_table(["command", "done", "refused"], rows)
    print("kinds: " + ", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common(40)))
    print(
        f"{tally.n_folders} folders; slowest {tally.slowest[0]:.1f} s ({tally.slowest[1]}); most memory "
        f"{tally.largest[0]:.0f} MB ({tally.largest[1]})"
    )
    return tally.failures


if __name__ == "__main__":
    main()
