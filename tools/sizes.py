"""How large an install is, by extra: what is on the disk of the environment that runs this script, wherever it is.

.venv/bin/python tools/sizes.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

OF_GPU = re.compile(r"(nvidia|cuda)-.*|triton")


def main() -> None:
    ours = distribution("anomalyncd")
    default = closure(asked(ours, ""))
    gpu = {name for name in default if OF_GPU.fullmatch(name)}
    print("| | MB | packages | the largest |\n|---|---|---|---|")
    print(row("default, without libraries for GPUs", default - gpu))
    if gpu:
        print(row("libraries for GPUs", gpu))
    for extra in ours.metadata.get_all("Provides-Extra") or []:
        wanted = asked(ours, extra)
        missing = sorted(needed.name for needed in wanted if installed(needed.name) is None)
        here = row(f"`{extra}` adds", closure(wanted) - default)
        print(f"| `{extra}` | – | – | not here: {', '.join(missing)} |" if missing else here)


def asked(package: Distribution, *extras: str) -> list[Requirement]:
    """What a package needs in this environment, with these extras; `""` stands for none."""
    needed = [Requirement(text) for text in package.requires or []]
    return [one for one in needed if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras)]


def row(name: str, packages: set[str]) -> str:
    """A line of the table."""
    sizes = {package: size(package) for package in packages}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:4]
    named = ", ".join(f"{package} {sizes[package] / 1e6:.0f}" for package in largest)
    return f"| {name} | {sum(sizes.values()) / 1e6:.0f} | {len(packages)} | {named} |"


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Names of all packages that these bring along on this machine, those that are installed."""
    found: set[str] = set()
    waiting, done = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name == "anomalyncd" or key in done or (package := installed(name)) is None:
            continue
        done.add(key)
        found.add(name)
        waiting += asked(package, "", *requirement.extras)
    return found


def installed(name: str) -> Distribution | None:
    """A package of this environment."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def size(name: str) -> int:
    """Bytes of its files."""
    package = installed(name)
    paths = [Path(str(file.locate())) for file in (package.files if package else None) or []]
    return sum(path.stat().st_size for path in paths if path.is_file())


def normal(name: str) -> str:
    """As package indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
