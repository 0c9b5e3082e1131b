"""What a user sees while work goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from anomalyncd.progress import Silent, Terminal


def terminal(*, bars: bool = True, tty: bool = False) -> tuple[Terminal, io.StringIO]:
    shown = io.StringIO()
    out = Terminal(bars=bars)
    out.console = Console(file=shown, force_terminal=tty, width=100)
    return out, shown


@pytest.mark.parametrize("tty", [False, True])
def test_one_bar_after_the_other(tty: bool) -> None:
    out, shown = terminal(tty=tty)
    with out.task("Views", 2) as on_view, out.task("Learning", 3) as on_epoch:
        for _ in range(2):
            on_view()
        for epoch in range(3):
            on_epoch(1, f"loss {epoch}")
    with out.task("Class tokens", 4) as advance:
        advance(4)
    lines = shown.getvalue()
    assert lines.rindex("Views") < lines.index("Learning") and lines.rindex("Learning") < lines.index("Class tokens")
    for final in ("2/2", "3/3", "4/4", "loss 2"):
        assert final in lines
    if not tty:
        assert len(lines.splitlines()) == 3


def test_an_empty_task_shows_nothing() -> None:
    out, shown = terminal()
    with out.task("Views", 0) as on_view, out.task("Learning", 1) as on_epoch:
        on_view()
        on_epoch()
    assert "Views" not in shown.getvalue() and shown.getvalue().count("Learning") == 1


def test_a_failure_inside_a_task_ends_its_bar() -> None:
    out, shown = terminal()
    with pytest.raises(ValueError), out.task("One", 2):
        raise ValueError
    with out.task("Two", 1) as advance:
        advance()
    assert "Two" in shown.getvalue()


def test_lines_are_not_broken_and_brackets_are_no_markup() -> None:
    out, shown = terminal()
    out.say("x" * 300 + " [red]")
    out.warn("[bold] " + "y" * 300)
    assert shown.getvalue() == "x" * 300 + " [red]\nwarning: [bold] " + "y" * 300 + "\n"


def test_quiet_shows_warnings_only() -> None:
    out, shown = terminal(bars=False)
    with out.task("Regions", 5) as advance:
        advance(5)
    out.say("hello")
    out.warn("careful")
    assert shown.getvalue() == "warning: careful\n"


def test_silent_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent().task("Regions", 5) as advance:
        advance(5, "note")
    Silent().say("hello")
    Silent().warn("careful")
    assert capsys.readouterr() == ("", "")
