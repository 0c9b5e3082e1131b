"""`anomalyncd studio`: what it serves by default, and what it refuses before it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command import call, fail


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Apps and addresses that would have been served, from a home that is not the user's."""
    found: list[Any] = []
    monkeypatch.setattr(
        "anomalyncd.cli.servers.serve_page", lambda web, _, address, no_browser: found.append((web, address))
    )
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


def roots(web: Any) -> list[str]:
    from fastapi.testclient import TestClient

    return list(TestClient(web, base_url="http://127.0.0.1").get("/api/state", headers=ALLOWED).json()["roots"])


ALLOWED = {"Authorization": "Bearer a-token-of-mine"}


def test_on_this_machine_the_home_can_be_chosen_from(served: list[Any], home: Path) -> None:
    done = call("studio", "--port", 0)
    ((web, address),) = served
    assert web.state.workspace.path == home / "anomalyncd-studio" and f"at {address}" in done.output
    assert "Next: anomalyncd studio" in done.output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), ["home", "work"]),
        (("--images", "{home}/a", "--images", "{home}/b"), ["a", "b", "work"]),
        (("--host", "0.0.0.0"), ["work"]),
        (("--host", "0.0.0.0", "--images", "{home}/a"), ["a", "work"]),
    ],
)
def test_what_can_be_chosen_from(
    served: list[Any], home: Path, tmp_path: Path, given: tuple[str, ...], expected: list[str]
) -> None:
    for name in "ab":
        (home / name).mkdir()
    said = [text.replace("{home}", str(home)) for text in given]
    call("studio", tmp_path / "work", "--port", 0, "--token", "a-token-of-mine", *said)
    assert roots(served[0][0]) == expected


def test_what_is_refused_before_it_listens(home: Path, tmp_path: Path) -> None:
    assert "needs a token" in fail("studio", tmp_path / "work", "--host", "0.0.0.0")
    assert "none found" in fail("studio", tmp_path / "work", "--images", home / "nowhere")
    assert "must look like" in fail("studio", tmp_path / "work", "--set", "nonsense")
    assert "epochs" in fail("studio", tmp_path / "work", "--set", "learn.epochs=-1")
    (tmp_path / "file").touch()
    assert "can be written to" in fail("studio", tmp_path / "file", "--port", 0)
