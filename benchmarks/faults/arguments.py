"""Every command and every function with every wrong kind of argument: a right answer, or one line of a documented kind.

The commands and their options are asked of the command line itself,
so that a new option is tried without a word here. One
argument is wrong at a time,
then two at random. Most wrong values are refused; those that happen to be right do their work.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints
from unittest import mock

import numpy as np
import typer
from typer.models import ArgumentInfo

from anomalyncd import AnomalyNCD, MEBin, Otsu, cli, load_base, load_dataset
from anomalyncd.config import setting_names
from anomalyncd.data import Dataset, read_image, read_map, read_mask
from anomalyncd.errors import AnomalyNCDError

from .scenes import small_line
from .server import limit_memory

LIMIT = 120  # seconds of processor time for one call
MOST_MB = 3000  # more than at the start
PYTHONS_OWN = (ValueError, TypeError, FileNotFoundError)
TINY = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 1}, "model": {"image_size": 64}}
FAST = ("--backbone", "tiny", "--set", "features.views=1", "--set", "model.image_size=64")
INTS = (
    "", "x", "1.5", "-1", "0", "1", "1e3", "0x10", "٣", "nan", " 3", "2147483648", "4294967296", str(2**63), "9" * 30,
    "9" * 5000, "1_0", "-0", "true", "None",
)  # fmt: skip
FLOATS = ("", "x", "nan", "inf", "-inf", "-1", "0", "1e309", "1e-400", "1,5", "9" * 400, "0.5", "1e308", "-0.0")
TEXTS = (
    "", " ", "x", "x" * 5000, "a\nb", "\udc80", "../../..", "-1", "null", "[1, 2]", "auto", "paper", "cpu", "cuda:99",
    "os:system", "anomalib:Nothing", "no.such:Class", "tiny", "vit_tiny_patch16_224.nothing", "=x", "a=b", "\x1b[2J",
    "0,1",
    "a/b=", "meta",
)  # fmt: skip
VALUES = (
    "", "x", "-1", "0", "1", "2", "1.5", "1e30", "9" * 30, ".nan", ".inf", "-.inf", "1.0e308", "[]", "{}", "null",
    "true",
    "[1, x]", "[[1]]", "{a: 1}", "&a [*a]", "!!python/object/apply:os.system [x]", "2024-01-01", "'", "[" * 2000, "*a",
    "!!binary aGFsbG8=", "1.0e-320",
)  # fmt: skip
MALFORMED = (
    "", "=", "=1", "learn", "learn.epochs", "learn.=1", ".epochs=1", "learn..epochs=1", "learn.epochs.deep=1", "zzz=1",
    "learn=5", "learn=[1]", "n_classes.x=1", "x" * 5000 + "=1", "\udc80=1", "learn.epochs==", "a.b.c.d.e.f=1",
    "detect=x",
    "detect.settings=5", "detect.settings.zzz=1", "detect.settings.size=-1", "detect.settings.size=x",
    "detect.settings.tile=1", "detect.settings.weights=gone", "model.weights=gone", "model.weights=.",
)  # fmt: skip


class TookTooLong(Exception):
    """Not an error that anything could take for its own."""


@dataclass
class Tally:
    """What came of the calls: how many ended how, and those that went wrong, a line each."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def n_calls(self) -> int:
        return sum(self.outcomes.values())

    def fail(self, name: str, why: str) -> None:
        """Note a call, and say it at once: who waits for thousands may want to mend it."""
        self.failures.append(f"{name}\n    {why}")
        print(f"  call {self.n_calls}: {self.failures[-1]}", flush=True)


@contextmanager
def limited() -> Iterator[None]:
    """A call that works longer than it may is ended, if Python gets a chance to."""

    def end(*_: object) -> None:
        raise TookTooLong(f"more than {LIMIT} s of work")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Things:
    """A line, a run of it, and whatever else a path may wrongly lead to."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.line = small_line(work / "line")
        self.images, self.maps, self.masks = (self.line / name for name in ("images", "maps", "masks"))
        self.run, self.detected = work / "run", work / "detected"
        AnomalyNCD(3, **TINY).fit(self.images, maps=self.maps, run=self.run)
        self.odd = work / "odd"
        self.odd.mkdir()
        noise = np.random.default_rng(0).bytes(500)
        for name in (
            "noise.png",
            "noise.npy",
            "noise.csv",
            "noise.yaml",
            "noise.parquet",
            "noise.safetensors",
            "noise",
        ):
            (self.odd / name).write_bytes(noise)
        (self.odd / "empty").mkdir()
        (self.odd / "empty.csv").touch()
        (self.odd / "text.yaml").write_text("just words")
        (self.odd / "loop.yaml").write_text("learn: &a {b: *a}")
        (self.odd / "list.csv").write_text("image,label\nnowhere.png,x\n")
        (self.odd / "loop").symlink_to("loop")
        (self.odd / "gone").symlink_to("nowhere")
        os.mkfifo(self.odd / "pipe.png")
        os.mkfifo(self.odd / "pipe")
        with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):  # a long folder has no room for its name
            listener.bind(str(self.odd / "socket"))
        self.paths = (
            "", "nowhere", "/", ".", "..", "-", "~nobody", "a\0b", "\udc80", "n" * 300, "n" * 5000, "a\nb", "/dev/null",
            "/dev/zero", "http://localhost/x", "nul:", "C:\\x", "/proc/self/mem", "/nowhere/deep/down.csv",
            *map(str, (self.line, self.images, self.maps, self.masks, self.run, self.run / "images.csv",
            self.run / "x.csv")),
            str(self.images / "out"), str(self.run / "crops" / "out"), *sorted(map(str, self.odd.iterdir())),
            str(self.odd / "noise.png" / "below"),
        )  # fmt: skip
        self.n_made = 0
        self.kept = work / "kept"
        for place in (self.line, self.run):
            shutil.copytree(place, self.kept / place.name)

    def mend(self) -> None:
        """Put back what a call did, as it was told to, to the line or to the run: the next one is to find them whole."""
        for place in (self.line, self.run):
            if _files(place) != _files(self.kept / place.name):
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(self.kept / place.name, place)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Relative paths lead to a folder of their own, and not to wherever this was started."""
        here, there = os.getcwd(), self.fresh()
        there.mkdir(parents=True)
        os.chdir(there)
        try:
            yield
        finally:
            os.chdir(here)

    def fresh(self) -> Path:
        """A name that nothing has."""
        self.n_made += 1
        return self.work / "made" / str(self.n_made)


def _files(folder: Path) -> dict[Path, int]:
    """Names below a folder, with sizes; but for the log, which every call writes to."""
    found = (path for path in folder.rglob("*") if path.name not in ("run.log", ".lock"))
    return {path.relative_to(folder): path.lstat().st_size if path.is_file() else -1 for path in found}


class Parameter(NamedTuple):
    """Of a command: `--name` for an option, and the type that it expects."""

    name: str
    kind: Any


def command_calls(things: Things, rng: np.random.Generator) -> Iterator[list[str]]:
    """Command lines without end: each option of each command wrong once in each way, then two at a time."""
    commands = dict(_commands(cli.app))
    yield from ([], ["--zzz"], ["zzz"], ["--version", "x"], ["weights"], ["bench"], ["weights", "zzz"])
    single: list[tuple[tuple[str, ...], str, str]] = []
    for names, parameters in commands.items():
        single += [(names, one.name, value) for one in parameters for value in _wrong(one, things)]
        single += [(names, "", extra) for extra in ("surplus", "--zzz", "--", "-x", "--out", "--help=x")]
    for place in rng.permutation(len(single)).tolist():
        names, parameter, value = single[place]
        yield _line(things, names, {parameter: value} if parameter else {}, [] if parameter else [value])
    several = [names for names, parameters in commands.items() if len(parameters) > 1]
    while True:
        names = several[int(rng.integers(len(several)))]
        chosen = [commands[names][place] for place in rng.choice(len(commands[names]), 2, replace=False)]
        pools = [(one.name, _wrong(one, things)) for one in chosen]
        yield _line(things, names, {name: pool[int(rng.integers(len(pool)))] for name, pool in pools}, [])


def _commands(app: typer.Typer, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Parameter]]]:
    """Words of each command, and its parameters."""
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        found = get_type_hints(function, include_extras=True)
        found.pop("return")
        yield (*above, command.name or function.__name__), [_parameter(name, hint) for name, hint in found.items()]
    for group in app.registered_groups:
        assert isinstance(group.typer_instance, typer.Typer)
        yield from _commands(group.typer_instance, (*above, str(group.name)))


def _parameter(name: str, hint: Any) -> Parameter:
    kind, info = get_args(hint)[:2]
    if isinstance(info, ArgumentInfo):
        return Parameter(name, kind)
    return Parameter((info.param_decls or (f"--{name.replace('_', '-')}",))[0], kind)


def _wrong(parameter: Parameter, things: Things) -> Sequence[str]:
    """Values that are not what an option expects, and some that are."""
    kinds = {parameter.kind, *get_args(parameter.kind)}
    if bool in kinds:
        return ("=yes", "")
    if parameter.name == "--set":
        settings = [f"{name}={value}" for name in setting_names() for value in VALUES if not _is_endless(name, value)]
        return (*MALFORMED, *settings)
    pools = ((int, INTS), (float, FLOATS), (Path, things.paths))
    return next((pool for kind, pool in pools if kind in kinds), TEXTS)


def _is_endless(name: str, value: str) -> bool:
    """What is right and takes for ever, as it must."""
    return name == "learn.epochs" and value.isdecimal() and len(value) > 1


def _line(things: Things, names: tuple[str, ...], wrong: dict[str, str], extra: Sequence[str]) -> list[str]:
    """A command that is right but for the wrong values."""
    out = str(things.fresh())
    images, maps, run = str(things.images), str(things.maps), str(things.run)
    given: dict[str, list[str]] = {"images": [images], "run": [run], "maps": [maps]}
    options: dict[str, Sequence[str]] = {
        "discover": ("--maps", maps, "--classes", "3", "--out", out, *FAST, "--quiet"),
        "detect": ("--detector", "musc", "--out", out, *FAST, "--quiet"),
        "predict": ("--maps", maps, "--out", f"{out}.csv", "--quiet"),
        "evaluate": (), "update": ("--maps", maps, "--quiet"), "binarize": ("--out", out, "--quiet"),
        "demo": ("--out", out, "--images-per-class", "1", "--size", "64", *FAST, "--quiet"),
        "watch": ("--maps", maps, "--out", f"{out}.csv", "--settle", "0", "--patience", "0", "--once", "--quiet"),
        "day": ("--out", f"{out}.html"),
        "export": ("--format", "coco", "--out", out, "--quiet"), "report": ("--no-attention", "--quiet"),
        "review": ("--port", "0", "--no-browser"), "serve": ("--port", "0"),
        "run": ("--data", f"x={things.line}", "--work", out, "--quiet"), "fetch": ("--from", str(things.odd / "noise")),
    }  # fmt: skip
    positional = {
        "discover": ("images",), "detect": ("images",), "predict": ("run", "images"), "evaluate": ("run",),
        "update": ("run", "images"), "binarize": ("maps",), "export": ("run",), "report": ("run",), "review": ("run",),
        "serve": ("run",), "watch": ("run", "folder"), "day": ("table",), "run": ("names",), "fetch": ("name",),
        "verify": ("name",),
    }  # fmt: skip
    given |= {"names": ["goals"], "name": ["tiny"], "folder": [images], "table": [str(things.run / "images.csv")]}
    words: list[str] = []
    rest = iter(options.get(names[-1], ()))
    for option in rest:  # a wrong value takes the place of the right one
        value = () if option in ("--quiet", "--no-attention", "--no-browser", "--once") else (next(rest),)
        words += [] if option in wrong and option != "--set" else [option, *value]
    for option, value in wrong.items():
        if option.startswith("--"):
            words += [option + value] if value.startswith("=yes") else [option, value]
    places = [wrong.get(name, given[name][0]) for name in positional.get(names[-1], ())]
    return [*names, *places, *words, *extra]


def call_commands(things: Things, count: int, rng: np.random.Generator) -> Tally:
    """So many command lines, in this process; servers end as soon as they would begin."""
    tally = Tally()
    limit_memory(MOST_MB)
    with _without_servers(), things.scratch():
        for line, _ in zip(command_calls(things, rng), range(count), strict=False):
            outcome = _call_command(line)
            tally.outcomes[outcome.partition(":")[0]] += 1
            things.mend()
            if outcome.startswith("WRONG"):
                tally.fail(f"anomalyncd {' '.join(map(_short, line))}", outcome)
    return tally


def _call_command(line: Sequence[str]) -> str:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = 0
    try:
        with (
            limited(),
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "argv", ["anomalyncd", *line]),
        ):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"WRONG: {_place(error)}"
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    if "Traceback" in said + printed:
        return "WRONG: printed a traceback"
    errors = [text for text in said.splitlines() if re.match(r"error: |Error: |.*Error ─", text)]
    if code == 0:
        return "done"
    if code not in (1, 2) or (len(errors) != 1 and not said.startswith("Usage") and "verify" not in line):
        return f"WRONG: exit code {code} and {len(errors)} lines of error: {said[-300:]!r}"
    return "refused" if said.startswith("error: ") or "\nerror: " in said else "not understood"


@contextmanager
def _without_servers() -> Iterator[None]:
    """No server answers, no browser opens, nothing is fetched."""
    import uvicorn

    from anomalyncd.serve.server import Server

    offline = {"HF_HUB_OFFLINE": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "NO_COLOR": "1"}
    with (
        mock.patch.object(uvicorn.Server, "run"), mock.patch.object(Server, "run"), mock.patch("webbrowser.open"),
        mock.patch("typer.launch"), mock.patch.dict(os.environ, offline),
    ):  # fmt: skip
        yield


def _short(text: str) -> str:
    shown = text if len(text) < 80 else f"{text[:40]}…{len(text)} characters"
    return repr(shown) if re.search(r"[^\w./=:-]", shown) or not shown else shown


def _place(error: BaseException) -> str:
    """Kind, words, and the last line of ours that it went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "anomalyncd" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__}: {str(error)[:200]} ({where})"


def _objects(things: Things) -> list[Any]:
    """Whatever Python code may hand over by mistake."""
    tiny, nan = np.zeros((8, 8, 3), np.uint8), np.full((8, 8), np.nan)
    return [
        None, 5, -1, 0, 1, 2, 1.5, float("nan"), float("inf"), 10**30, True, False, "", "nowhere", "a\0b", "\udc80",
        "x" * 5000,
        "auto", b"bytes", object(), object, [], {}, (), set(), {1: 2}, {"a": {"b": "c"}}, [None], [5], [[1, 2], [3]],
        ["nowhere.png"], ["a\0b"], [b"x"], [""], [[]], lambda: 0, Path("nowhere"), Path("a\0b"), Path(),
        np.float32(1), np.int64(3),
        np.array(5), np.zeros(0), np.zeros((4, 4)), np.zeros((0, 0)), np.zeros((4, 4, 5)), np.zeros((2, 2, 2, 2, 2)),
        nan,
        np.full((8, 8, 3), "x"), np.array([None]), np.zeros((8, 8), complex), np.zeros(3, "M8[s]"), [tiny], [tiny,
        None],
        [np.zeros((0, 0, 3), np.uint8)], [np.zeros((8, 8, 3), object)], [nan], [np.full((8, 8), np.inf)], Dataset(()),
        range(3),
        iter([]), (tiny for _ in range(1)), Ellipsis, NotImplemented, "*", memoryview(b"x"), {"images"},
        [things.images],
        things.images, things.maps, things.run, str(things.odd / "pipe.png"), things.odd / "noise.csv", "/dev/zero",
        "tiny", "paper", "cpu", "cuda:99", np.ma.masked, 3 + 4j,
        -(2**63), 2**32, 1e308, 1e-320, np.bool_(True), "os:system", type("Odd", (), {})(), [tiny, "nowhere.png"],
        ([tiny], [None], ["x"]), ([tiny], [tiny[..., 0] > 0], [None]), Exception("x"), Warning,
    ]  # fmt: skip


def api_calls(things: Things, rng: np.random.Generator) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls without end, each with a name: one wrong argument each, then two."""
    images, maps = things.images, things.maps
    sections = sorted({name.partition(".")[0] for name in setting_names() if "." in name})
    loaded = AnomalyNCD.load(things.run)

    def model(**settings: Any) -> AnomalyNCD:
        return AnomalyNCD(**{"n_classes": 3, **TINY, **settings})

    def setting(name: str, value: Any) -> AnomalyNCD:
        section, _, key = name.rpartition(".")
        return model(**{section: {**TINY.get(section, {}), key: value}} if section else {name: value})  # type: ignore[dict-item]

    def fitted(value: Any, name: str, **right: Any) -> object:
        return model().fit(**{"images": images, "run": None, **right, name: value})

    def new_run() -> AnomalyNCD:
        loaded.save(place := things.fresh())
        return AnomalyNCD.load(place)

    values = {"images": images, "maps": maps}
    heat = np.zeros((32, 32), np.float32)
    heat[8:16, 8:20] = 1
    makers: list[tuple[str, Callable[[Any], object]]] = [
        *((f"AnomalyNCD({name}=…).fit", lambda value, name=name: setting(name, value).fit(images, maps=maps))
          for name in [*setting_names(), *sections, "zzz", "preset", "backbone", "progress"]),
        *((f"fit({name}=…)", lambda value, name=name: fitted(value, name,
        **({"maps": maps} if name != "masks" else {})))
          for name in ("images", "maps", "masks", "base", "normal_maps", "run", "force", "y")),
        *((f"fit({name}=…) without maps", lambda value, name=name: fitted(value, name))
          for name in ("images", "detector", "normal")),
        *((f"predict({name}=…)", lambda value, name=name: loaded.predict(**{**values, name: value}))
          for name in ("images", "maps", "masks")),
        *((f"update({name}=…)", lambda value, name=name: new_run().update(**{**values, name: value}))
          for name in ("images", "maps", "masks")),
        ("predict of no model", lambda value: AnomalyNCD().predict(value)),
        ("save", lambda value: loaded.save(_away(value, things))),
        ("load", AnomalyNCD.load),
        ("load(device=…)", lambda value: AnomalyNCD.load(things.run, device=value)),
        ("load(progress=…)", lambda value: AnomalyNCD.load(things.run, progress=value).predict(images, maps=maps)),
        ("set_params(learn)", lambda value: model().set_params(learn=value).set_params(learn__epochs=value)),
        *((f"MEBin({name}=…)", lambda value, name=name: MEBin(**{name: value}).fit([heat]).binarize(heat))
          for name in ("n_thresholds", "min_interval", "erosion", "rule", "has_normal")),
        ("MEBin.fit", lambda value: MEBin().fit(value)),
        ("MEBin.fit of one", lambda value: MEBin().fit([heat, value])),
        ("MEBin.binarize", lambda value: MEBin().fit([heat]).binarize(value)),
        ("MEBin.normalize", lambda value: MEBin().fit([heat]).normalize(value)),
        ("MEBin.binarize of no fit", lambda value: MEBin().binarize(value)),
        ("Otsu.fit", lambda value: Otsu().fit(value).binarize(heat)),
        ("load_dataset", load_dataset), ("load_base", load_base),
        ("load_dataset(maps=…)", lambda value: load_dataset(images, maps=value)),
        ("load_dataset(masks=…)", lambda value: load_dataset(images, masks=value)),
        ("load_dataset(exclude=…)", lambda value: load_dataset(images, exclude=value)),
        ("read_image", read_image), ("read_map", read_map), ("read_mask", read_mask),
    ]  # fmt: skip
    odd = _objects(things)
    single = [(name, make, value) for name, make in makers for value in odd]
    for place in rng.permutation(len(single)).tolist():
        name, make, value = single[place]
        if not _is_long(name, value):
            yield f"{name} with {_kind(value)}", lambda make=make, value=value: make(value)
    names = setting_names()
    while True:
        one, other = (str(name) for name in rng.choice(names, 2))
        first, second = (odd[int(rng.integers(len(odd)))] for _ in range(2))
        if not _is_long(one, first) and not _is_long(other, second):
            yield (
                f"settings {one}, {other} with {_kind(first)}, {_kind(second)}",
                lambda one=one, other=other, first=first, second=second: (
                    setting(one, first).set_params(**{other.replace(".", "__"): second}).fit(images, maps=maps)
                ),
            )


def _is_long(name: str, value: Any) -> bool:
    return "learn.epochs" in name and isinstance(value, int | np.integer) and value > 5


def _away(value: Any, things: Things) -> Any:
    """A relative path would be written beside whatever is here."""
    is_name = isinstance(value, str | Path) and str(value).isprintable() and not Path(value).is_absolute()
    return things.fresh() / value if is_name and str(value) else value


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return _short(repr(value))


def call_api(things: Things, count: int, rng: np.random.Generator) -> Tally:
    """So many calls of the Python API."""
    tally = Tally()
    limit_memory(MOST_MB)
    with things.scratch():
        for (name, call), _ in zip(api_calls(things, rng), range(count), strict=False):
            try:
                with limited(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call()
                outcome = "done"
            except AnomalyNCDError as error:
                outcome = type(error).__name__
                if not isinstance(error, PYTHONS_OWN) or "\n" in str(error) or not str(error):
                    tally.fail(name, repr(error))
            except Exception as error:
                outcome = "WRONG"
                tally.fail(name, _place(error))
            tally.outcomes[outcome] += 1
            things.mend()
    return tally


def words(tally: Tally) -> str:
    """How many ended how."""
    return ", ".join(f"{outcome} {count}" for outcome, count in tally.outcomes.most_common())
