"""A wheel in a clean environment without extras: demo, discover, predict, review. Needs the package index.

    make wheel                                                      builds one, looks at it, and does this
    python tools/try_wheel.py dist/*.whl [--python python3.12]      does it with another Python

Prints versions, what the commands said at their end, and the size of the install. The environment is deleted in the end.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FIRST_TESTED = (3, 11)  # of the versions in constraints.txt; older ones take what pip finds
IMAGES = 4  # of each kind, for discover and predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--installed", type=Path, help="an environment that has the wheel already; it is kept")
    parser.add_argument("--images", type=int, default=16, help="of each kind, in the demo")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        here = Path(folder)
        home = (
            given.installed.resolve() if given.installed else install(here / "env", given.wheel.resolve(), given.python)
        )
        python = home / "bin/python"
        run(here, python, "-c", "import sys, anomalyncd; print(sys.version.split()[0], anomalyncd.__file__)")
        walk(here, home / "bin/anomalyncd", given.images)
        run(here, python, ROOT / "tools/sizes.py", lines=20)


def install(home: Path, wheel: Path, python: str) -> Path:
    """A new environment with the wheel and what it asks for."""
    run(home.parent, python, "-m", "venv", home)
    tell = "import sys; print(*sys.version_info[:2])"
    found = subprocess.run([home / "bin/python", "-c", tell], check=True, capture_output=True, text=True).stdout
    tested = ["--constraint", ROOT / "constraints.txt"] if tuple(map(int, found.split())) >= FIRST_TESTED else []
    run(home.parent, home / "bin/python", "-m", "pip", "install", "--quiet", *tested, wheel)
    return home


def walk(here: Path, command: Path, images: int) -> None:
    """What somebody does on the first day, each command in a process of its own."""
    run(here, command, "demo", "--out", "demo", "--images-per-class", images, "--quiet", lines=30)
    for kind in ("images", "maps"):
        for file in sorted((here / "demo/line" / kind).rglob("00[0-9].*")):
            if int(file.stem) < IMAGES and file.parent.name != "combined":
                (here / kind / file.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, here / kind / file.parent.name)
    run(here, command, "discover", "images", "--maps", "maps", "--classes", "7", "--out", "run", "--quiet", lines=12)
    run(here, command, "predict", "demo/run", "images", "--maps", "maps", "--out", "new.csv", "--quiet")
    rows = (here / "new.csv").read_text(encoding="utf-8").splitlines()
    given = len(list((here / "images").rglob("*.png")))
    assert len(rows) == 1 + given, f"expected a line for each of {given} images, found {len(rows) - 1}"
    print(*rows[:2], sep="\n")
    ask_review(here, command)


def ask_review(here: Path, command: Path) -> None:
    """Start the page, ask for it and for its state, and end it as Ctrl+C does."""
    said = [command, "review", "run", "--port", "0", "--no-browser"]
    with subprocess.Popen(said, cwd=here, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        try:
            assert found, "the review printed no address"
            for path in ("", "api/state"):
                with urllib.request.urlopen(f"{found[0].rstrip('/')}/{path}") as answer:
                    print(f"review /{path}: {answer.status}, {len(answer.read())} bytes")
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)  # before its output is closed, which it writes to
    print(f"review ended with {server.returncode}")


def run(here: Path, *command: object, lines: int = 3) -> None:
    """A command that must succeed; prints the last lines of what it said."""
    words = [str(word) for word in command]
    print("$", *[Path(words[0]).name, *words[1:]], flush=True)
    done = subprocess.run(words, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(*done.stdout.splitlines()[-lines:], sep="\n", flush=True)
    if done.returncode:
        sys.exit(f"{words[0]}: expected to end with 0, ended with {done.returncode}")


if __name__ == "__main__":
    main()
