"""The examples of docs/serve.md are run as they stand, but for address and token."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anomalyncd.cli.servers import listen, load
from anomalyncd.serve.app import make_api
from anomalyncd.serve.server import Server
from serve.api_client import TOKEN

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
WRITTEN = "http://127.0.0.1:8766"


def examples(start: str) -> list[str]:
    """Indented blocks that begin with that word."""
    blocks = [textwrap.dedent(block).strip() for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", PAGE)]
    return [block for block in blocks if block.startswith(start)]


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a live service."""
    predictor, _ = load(run, "cpu")
    with listen("127.0.0.1", 0) as listener:
        server = Server(make_api(predictor, token=TOKEN))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.app.state.stop()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def parts(served: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page speaks of."""
    scenes = served["scenes"]
    for name, source in (
        ("part.png", "images/010.png"), ("a.png", "images/010.png"), ("b.png", "images/020.png"), ("a.npy", "maps/010.npy"),
        ("b.npy", "maps/020.npy"), ("a_mask.png", "masks/010.png"),
    ):  # fmt: skip
        shutil.copy(scenes / source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_examples(served: dict[str, Path], parts: Path, capsys: pytest.CaptureFixture[str]):
    for code, needs in zip(examples("import"), ("image", "map"), strict=True):
        with serving(served[needs]) as address:
            exec(code.replace(WRITTEN, address).replace("Bearer TOKEN", f"Bearer {TOKEN}"), {})
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("class ") and "'width'" in first
    assert [line.split(" ")[:2] for line in others] == [["a", "class"], ["b", "class"]]


@pytest.mark.skipif(shutil.which("curl") is None, reason="without curl")
def test_the_curl_examples(served: dict[str, Path], parts: Path):
    commands = [line for block in examples("curl") for line in block.splitlines()]
    assert len(commands) == 4
    for needs in ("image", "map", "mask"):
        with serving(served[needs]) as address:
            for command in commands:
                if needs == ("map" if "map=" in command else "mask" if "mask=" in command else "image"):
                    allowed = f" -s -H 'Authorization: Bearer {TOKEN}'"
                    done = subprocess.run(command.replace(WRITTEN, address) + allowed, shell=True, capture_output=True)
                    assert all("label" in image for image in json.loads(done.stdout)["images"]), done
