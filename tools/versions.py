"""Versions of the libraries, as `pip install --constraint` takes them.

`tested` prints those of the environment that runs this script: `make constraints` writes them into constraints.txt once the
tests have passed in it. `oldest` prints the lower bounds of pyproject.toml: `make test-oldest` runs the tests with them.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = "anomalyncd"
# Torch's build for GPUs asks for the versions of these itself; its builds for CPUs and other systems have none of them.
OF_GPU_TORCH = re.compile(r"(nvidia|cuda)-.*|triton")
HEADER = """\
# The versions that the tests ran with, on Linux, x86-64 and Python 3.11. `make constraints` writes this file; `make`, CI and
# `make bundle`, of which the container is made, install what it says. For an install of your own:
#   pip install --constraint constraints.txt .
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["tested", "oldest"])
    if parser.parse_args().which == "tested":
        print(HEADER + "\n".join(tested((found.name, found.version) for found in distributions())))
    else:
        print("\n".join(oldest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])))


def tested(installed: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that hold on other machines too: no package of ours, no local build as +cpu, no library of a GPU.

    >>> tested([("torch", "2.15.0+cpu"), ("Jinja2", "3.1.6"), ("nvidia-cublas", "13.4.1.3"), ("anomalyncd", "0.1.0")])
    ['jinja2==3.1.6', 'torch==2.15.0']
    """
    versions = {normal(name): version.partition("+")[0] for name, version in installed}
    return [
        f"{name}=={version}"
        for name, version in sorted(versions.items())
        if name != OURS and not OF_GPU_TORCH.fullmatch(name)
    ]


def oldest(project: Mapping[str, Any]) -> list[str]:
    """The lower bound of everything that the project names, as the only version allowed.

    >>> oldest({"dependencies": ["a_b>=1.2"], "optional-dependencies": {"x": ["c[d]>=2,!=3"], "all": ["anomalyncd[x]"]}})
    ['a-b==1.2', 'c==2']
    """
    lines = set()
    for requirement in chain(project["dependencies"], *project["optional-dependencies"].values()):
        parts = re.fullmatch(r"([\w.-]+)(?:\[[\w,.-]+\])?(?:>=([\w.]+)(?:,.*)?)?", requirement)
        name, bound = (normal(parts[1]), parts[2]) if parts else ("", None)
        if name == OURS:
            continue
        if bound is None:
            raise SystemExit(
                f"pyproject.toml: expected NAME>=VERSION, found {requirement!r}, whose oldest version is unknown."
            )
        lines.add(f"{name}=={bound}")
    return sorted(lines)


def normal(name: str) -> str:
    """As package indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
