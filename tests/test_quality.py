"""The comparison with the last release, `benchmarks/quality.py`: its gate, not the figures, which take minutes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from anomalyncd.errors import WeightsError

SCRIPT = Path(__file__).parent.parent / "benchmarks/quality.py"


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stored() -> dict[str, dict[str, dict[str, float]]]:
    return json.loads(SCRIPT.with_name("quality.json").read_text("utf-8"))  # type: ignore[no-any-return]


def test_the_stored_figures_are_those_of_the_sets(quality: ModuleType, stored: dict[str, dict[str, float]]) -> None:
    assert list(stored["sets"]) == [*quality.SETS, "mean"]
    assert all(set(figures) == {*quality.SCORES, "time"} for figures in stored["sets"].values())
    each = [stored["sets"][name] for name in quality.SETS]
    assert quality.mean(each) == pytest.approx(stored["sets"]["mean"])


def test_a_fall_of_any_figure_is_told(quality: ModuleType, stored: dict[str, dict[str, dict[str, float]]]) -> None:
    before = stored["sets"]["mean"]
    assert quality.falls(before, before) == []
    for name in quality.SCORES:
        assert quality.falls({**before, name: before[name] - 0.009}, before) == []
        assert [words.split()[0] for words in quality.falls({**before, name: before[name] - 0.011}, before)] == [name]
    assert quality.falls({**before, "time": before["time"] * quality.SLOWER * 0.99}, before) == []
    assert "matrix products" in quality.falls({**before, "time": before["time"] * quality.SLOWER * 1.01}, before)[0]


def test_without_weights_it_says_so_and_passes(
    quality: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise WeightsError("no index, no hub")

    monkeypatch.setattr(quality.weights, "fetch", none)
    monkeypatch.setattr("sys.argv", ["quality.py"])
    quality.main()
    said = capsys.readouterr().out
    assert "not measured" in said and "no index, no hub" in said


@pytest.mark.parametrize("words", [["no-such-set"], ["demo", "--write"]])
def test_figures_are_written_of_all_sets_and_no_others(
    words: list[str], quality: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["quality.py", *words])
    with pytest.raises(SystemExit):
        quality.main()
    assert "expected sets out of demo" in capsys.readouterr().err


@pytest.mark.parametrize("worse", [False, True])
def test_it_ends_with_what_fell(
    worse: bool,
    quality: ModuleType,
    stored: dict[str, dict[str, dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Pool:
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def starmap(self, _: object, asked: list[tuple[str, int]], chunksize: int) -> list[dict[str, float]]:
            return [{**stored["sets"][name], "f1": stored["sets"][name]["f1"] - 0.02 * worse} for name, _ in asked]

    monkeypatch.setattr(quality.weights, "fetch", lambda: None)
    monkeypatch.setattr(quality.multiprocessing, "get_context", lambda _: type("Here", (), {"Pool": lambda *_: Pool()}))
    monkeypatch.setattr("sys.argv", ["quality.py"])
    if worse:
        with pytest.raises(SystemExit, match=r"^f1 fell from"):
            quality.main()
    else:
        quality.main()
    assert capsys.readouterr().out.count(f"– in {stored['version']}") == len(quality.SETS) + 1
