"""The version that is built: of the last tag `v1.2.3` of git, or the one written in the package where there is none.

A clean clone without tags and an unpacked archive have no tag; a source package has its PKG-INFO. Commits after a tag make a
development version of the next release.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root: Path = ROOT) -> str:
    """What pyproject.toml asks for."""
    packed = root / "PKG-INFO"
    if packed.is_file() and (found := re.search(r"(?m)^Version: (.+)$", packed.read_text(encoding="utf-8"))):
        return found[1]
    described = _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    return of_tag(described) if described and _git(root, "rev-parse", "--show-prefix") == "" else written(root)


def written(root: Path) -> str:
    """`__version__` as the package has it, for a tree without tags."""
    source = (root / "src" / "anomalyncd" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'(?m)^FALLBACK_VERSION = "([^"]+)"', source)
    assert found
    return found[1]


def of_tag(described: str) -> str:
    """From `git describe --long`.

    >>> of_tag("v1.2.3-0-gabc1234"), of_tag("v1.2.3-4-gabc1234")
    ('1.2.3', '1.2.4.dev4+gabc1234')
    """
    tag, commits, commit = described.removeprefix("v").rsplit("-", 2)
    if commits == "0":
        return tag
    *first, last = tag.split(".")
    return f"{'.'.join([*first, str(int(last) + 1)])}.dev{commits}+{commit}"


def _git(root: Path, *arguments: str) -> str | None:
    """What git says, or None where it cannot tell."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
