"""The house: imports point one way, files stay small, nothing private crosses a wall, and every module has its test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "anomalyncd"
# From the ground up. A module may import from its own floor and from those below it; `run.finished` stands between what
# is learned (discovery.model, how it classifies) and what changes a run (relearn, update).
FLOORS = (
    ("errors", "labels", "progress", "paths", "sections", "large", "whole"),
    ("places",),
    ("config", "settings_text", "checksums"),
    ("data", "grid"),
    ("model", "metrics", "assign"),
    ("detect", "learn", "binarize", "adapters"),
    ("regions", "known"),
    ("blocks",),
    ("run",),
    ("discovery",),
    ("run.finished",),
    ("run.evaluate", "known.given", "discovery.fit", "discovery.relearn", "discovery.update", "steps", "guide"),
    ("estimator", "runtime", "ray", "demo"),
    ("report", "serve", "export"),
    ("review", "bench", "watch", "day", "plot"),
    ("studio",),
    ("cli",),
)
UPPER = ("report", "review", "serve", "export", "bench", "watch", "day", "plot", "studio", "cli")
# A run is read through FinishedRun and the estimator. These are not ways to read one: names of files, the work folders of
# bench, tables and folders that a user asked for, and functions that do a whole job.
OPEN_TO_UPPER = {
    "run.finished", "run.evaluate", "run.folder", "run.stages", "run.writer", "whole",
    "run.detector.detector_config", "run.tables.REGION_COLUMNS", "run.tables.DIGITS", "discovery.classify",
    "steps.detect", "discovery.maps.make_maps", "steps.masks",
    "discovery.maps.normal_samples", "discovery.relearn.relearn", "discovery.relearn.Move", "discovery.torchrun.together",
    "discovery.model.DiscoveryModel", "run.tables.read_csv",
}  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[tuple[str, str], ...]:
    """(module, name) of everything of the package that a module imports, within functions too; not what only types need."""
    path = MODULES[module]
    here = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.level:
                base = ".".join([*here[: len(here) - child.level + 1], *(child.module or "").split(".")]).strip(".")
                for alias in child.names:
                    inner = f"{base}.{alias.name}".strip(".")
                    found.append((inner, "") if inner in MODULES else (base, alias.name))
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(found)


def floor_of(module: str) -> int:
    """By the longest name that a floor has."""
    names = {name: number for number, names in enumerate(FLOORS) for name in names}
    known = [name for name in names if module == name or module.startswith(f"{name}.")]
    return names[max(known, key=len)] if known else len(FLOORS)


def test_every_room_is_on_a_floor() -> None:
    rooms = {module.split(".")[0] for module in MODULES} - {"", "__main__"}
    assert rooms == {name for names in FLOORS for name in names if "." not in name}


def test_imports_point_one_way() -> None:
    upwards = [
        f"{module} imports {target}.{name}"
        for module in MODULES
        for target, name in imports(module)
        if module and target and floor_of(target) > floor_of(module)
    ]
    assert not upwards


def test_no_import_goes_in_a_circle() -> None:
    done: set[str] = set()

    def follow(module: str, way: tuple[str, ...]) -> Iterator[str]:
        if module in way:
            yield " → ".join([*way[way.index(module) :], module])
        elif module not in done:
            for target in sorted({target for target, _ in imports(module)} - {module}):
                yield from follow(target, (*way, module))
            done.add(module)

    assert not [circle for module in MODULES if module for circle in follow(module, ())]


def test_upper_floors_take_a_run_only_through_finished_run_and_the_estimator() -> None:
    others = [
        f"{module} imports {target}.{name}"
        for module in MODULES
        if module.split(".")[0] in UPPER
        for target, name in imports(module)
        if target.split(".")[0] in ("run", "discovery") and not OPEN_TO_UPPER & {target, f"{target}.{name}"}
    ]
    assert not others


def test_nothing_private_is_imported() -> None:
    private = [(module, name) for module in MODULES for _, name in imports(module) if re.match(r"_(?!_)", name)]
    assert not private


def test_imports_inside_the_package_are_relative() -> None:
    absolute = [
        name for name, path in MODULES.items() if re.search(r"^\s*(from|import) anomalyncd\b", path.read_text(), re.M)
    ]
    assert not absolute


def test_files_and_folders_stay_small() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module: count for module, count in lines.items() if count > 350}
    method = (
        "places",
        "data",
        "detect",
        "binarize",
        "regions",
        "blocks",
        "model",
        "learn",
        "assign",
        "discovery",
        "run",
        "metrics",
        "adapters",
    )
    totals = {room: sum(n for module, n in lines.items() if module.split(".")[0] == room) for room in method}
    assert not {room: total for room, total in totals.items() if total > 2000}


@pytest.mark.parametrize("module", [m for m, path in MODULES.items() if not path.name.startswith("__")])
def test_a_module_has_a_test_of_its_name_or_one_that_says_it_covers_it(module: str) -> None:
    *rooms, name = module.split(".")
    folder = TESTS.joinpath(*rooms)
    texts = [ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in folder.glob("test_*.py")]
    covered = re.findall(r"\w+", " ".join(text.partition("Covers ")[2] for text in texts))
    assert (folder / f"test_{name}.py").is_file() or name in covered
