"""Leader and helpers without any other process: who does what, and what happens where something breaks.

That several processes learn what one does is tested in tests/learn/test_distributed.py.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anomalyncd.config import make_config
from anomalyncd.discovery import torchrun as module
from anomalyncd.discovery.torchrun import Lesson, help_out, labelled_regions, learn, settings_for_helpers, together
from anomalyncd.errors import DataError
from anomalyncd.learn.distributed import LostProcessError
from anomalyncd.run.store import RegionStore
from scenes import GOOD, fit, write_scenes


class Group:
    """Gives tasks, one after the other, and notes what it is asked."""

    def __init__(self, *tasks: dict[str, Any], leads: bool = False) -> None:
        self.tasks, self.leads, self.busy, self.dismissed = list(tasks), leads, False, 0

    def wait(self) -> dict[str, Any] | None:
        self.busy = bool(self.tasks)
        return self.tasks.pop(0) if self.tasks else None

    def dismiss(self) -> None:
        self.dismissed += 1

    def attempt(self, work: Any) -> Any:
        return work()


LESSON = Lesson("run", {"device": "cpu"}, 3, None, [2, 0], [1, 0])


def test_the_leader_works_and_lets_the_helpers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    group, handlers = Group(leads=True), []
    monkeypatch.setattr(module, "join", lambda: group)
    monkeypatch.setattr(module.signal, "signal", lambda *given: handlers.append(given))
    assert together(lambda: 7) == 7 and group.dismissed == 1
    assert handlers == [(signal.SIGTERM, signal.default_int_handler)]

    def broken() -> None:
        raise DataError("no")

    with pytest.raises(DataError):
        together(broken)
    assert group.dismissed == 2


@pytest.mark.parametrize("error", [LostProcessError("gone"), KeyboardInterrupt()])
def test_a_helper_ends_quietly_where_the_leader_is_gone(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    group, lessons = Group(LESSON.to_json_dict()), []
    monkeypatch.setattr(module, "join", lambda: group)
    monkeypatch.setattr(module, "learn", lambda *given: lessons.append(given))
    assert together(lambda: pytest.fail("only the leader works")) is None
    assert lessons == [(LESSON, group)] and group.dismissed == 0

    def lost(*given: Any) -> None:
        raise error

    monkeypatch.setattr(module, "help_out", lost)
    with pytest.raises(SystemExit) as ended:
        together(lambda: None)
    assert ended.value.code == 1


def test_a_helper_goes_on_after_a_lesson_that_failed_in_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Group(*[LESSON.to_json_dict()] * 3)
    errors: list[Exception | None] = [DataError("known"), ValueError("strange"), None]
    seen: list[bool] = []

    def lesson(given: Lesson, of: Any) -> None:
        seen.append(of.busy)
        of.busy = errors[0] is None  # the leader was told, and waits no more
        if error := errors.pop(0):
            raise error

    monkeypatch.setattr(module, "learn", lesson)
    help_out(group)  # type: ignore[arg-type]
    assert seen == [True] * 3 and not group.busy and not errors
    said = capsys.readouterr().err
    assert "ValueError: strange" in said and "known" not in said


def test_a_helper_that_breaks_in_the_middle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(LESSON.to_json_dict())

    def lesson(*given: Any) -> None:
        raise ValueError("in the middle")

    monkeypatch.setattr(module, "learn", lesson)
    with pytest.raises(ValueError, match="in the middle"):
        help_out(group)  # type: ignore[arg-type]


def test_a_lesson_is_of_the_stored_regions_in_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    fit(write_scenes(tmp_path / "line", [GOOD, 0, 0, 1], seed=0), run, "masks", 3)
    config = make_config({"model": {"backbone": "tiny"}, "device": "cpu"})
    seen: list[Any] = []
    monkeypatch.setattr(module, "fit_classifier", lambda *given, **named: seen.append((given, named)))
    group = Group()
    learn(Lesson(str(run), settings_for_helpers(config, "cpu"), 2, 0, [2, 0]), group)  # type: ignore[arg-type]
    (regions, base, n_classes, settings, _), named = seen[0]
    store = RegionStore(module.RunFolder(run)).read()
    assert base is None and n_classes == 2 and settings == config and named["normal"] == 0 and named["group"] is group
    assert named["workspace"] == run / "tokens" and len(store.regions) == 3
    np.testing.assert_array_equal(regions.scores, np.float32([store.regions[2].score, store.regions[0].score]))
    for name, values in regions.parts.items():
        np.testing.assert_array_equal(values, store.parts[name][[2, 0]])
    np.testing.assert_array_equal(regions.crops(0)[0], store.crop(2)[0])
    (run / "base").mkdir()
    for name in ("tokens", "crops", "masks"):
        (run / name).rename(run / "base" / name)
    labelled = labelled_regions(RegionStore(module.RunFolder(run), "base").read(), [1, 0, 1])
    assert labelled.labels is not None and labelled.labels.tolist() == [1, 0, 1]
    assert labelled.scores.tolist() == [1, 1, 1] and len(labelled) == 3
    monkeypatch.setattr(Lesson, "regions", lambda self, store: SimpleNamespace())
    learn(Lesson(str(run), settings_for_helpers(config, "cpu"), 2, None, [], [1, 0, 1]), group)  # type: ignore[arg-type]
    (_, base, *_), named = seen[1]
    assert base.labels.tolist() == [1, 0, 1] and named["normal"] is None


def test_helpers_choose_their_own_gpu() -> None:
    config = make_config({"device": "cuda:3", "learn": {"epochs": 7}})
    told = settings_for_helpers(config, "cuda")
    assert told["device"] == "cuda" and make_config(told).learn.epochs == 7
