"""The version of a build (tools/version.py): from a tag, after one, and without any."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import anomalyncd

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("version", ROOT / "tools" / "version.py")
assert spec and spec.loader
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project without git."""
    home = tmp_path / "project"
    (home / "src/anomalyncd").mkdir(parents=True)
    shutil.copy(ROOT / "src/anomalyncd/__init__.py", home / "src/anomalyncd")
    return home


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_without_tags_it_is_the_one_that_is_written(tree: Path) -> None:
    assert tool.version(tree) == anomalyncd.FALLBACK_VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", anomalyncd.FALLBACK_VERSION)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_tags_outweigh_it(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "one")
    assert tool.version(tree) == anomalyncd.FALLBACK_VERSION
    git(tree, "tag", "v3.4.5")
    git(tree, "tag", "other")
    assert tool.version(tree) == "3.4.5"
    assert tool.version(tree / "src" / "..") == "3.4.5"
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    assert re.fullmatch(r"3\.4\.6\.dev1\+g[0-9a-f]{7,}", tool.version(tree))
    inner = tree / "unpacked"  # inside somebody's repository, whose tags mean something else
    shutil.copytree(tree / "src", inner / "src")
    assert tool.version(inner) == anomalyncd.FALLBACK_VERSION
    (inner / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: anomalyncd\nVersion: 7.8.9\n")
    assert tool.version(inner) == "7.8.9"
