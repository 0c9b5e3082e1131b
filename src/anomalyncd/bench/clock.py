"""How long the rest will take: costs that are known beforehand, replaced by what was measured here as work gets done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..run.folder import RunFolder


@dataclass(frozen=True)
class Part:
    """A piece of work. Parts of one key are done once, whoever needs them first.

    kind : what it is, such as `maps: musc`; parts of one kind take time in proportion to their passes
    passes : its cost, in images of 224 pixels that go through the trunk
    """

    kind: str
    key: str
    passes: float


class Clock:
    """Tells the time that stages will take, that is left, and that they took; it knows what earlier calls measured.

    Parameters
    ----------
    work : folder of the bench, which keeps what was measured
    unit : seconds of one pass on this machine; network : what was timed, for times of another one say nothing
    name : of the file in that folder

    Examples
    --------
    >>> import tempfile
    >>> clock = Clock(Path(tempfile.mkdtemp()), unit=0.5)
    >>> clock.plan("first", {"a": [Part("maps", "m", 100)], "b": [Part("maps", "m", 100), Part("learning", "l", 20)]})
    >>> clock.left(), clock.measured("a", 100.0), clock.left()
    ('about 60 s left', None, 'about 20 s left')
    >>> clock.expected("first"), clock.took("first")
    (20.0, 100.0)
    """

    def __init__(self, work: Path, unit: float, network: str = "", name: str = "costs.json") -> None:
        self.folder, self.unit, self.network, self.name = RunFolder(work), unit, network, name
        kept = self.folder.read_json(name)
        known: dict[str, Any] = kept if isinstance(kept, dict) and kept.get("network") == network else {}
        self.spent: dict[str, list[float]] = dict(known.get("spent", {}))  # kind → passes and seconds
        self.done: set[str] = set(known.get("done", []))
        self.stages: dict[str, float] = dict(known.get("stages", {}))  # → seconds
        self._jobs: dict[str, tuple[str, list[Part]]] = {}  # name → its stage and its parts

    def plan(self, stage: str, jobs: Mapping[str, Iterable[Part]]) -> None:
        """What a stage has to do; what an earlier one does already is its own."""
        for name, parts in jobs.items():
            self._jobs.setdefault(name, (stage, list(parts)))

    def measured(self, name: str, seconds: float) -> None:
        """A job was done; its time is shared out over its parts as they were expected."""
        stage, parts = self._jobs.pop(name, ("", []))
        new = {part.key: part for part in parts if part.key not in self.done}.values()
        expected = sum(self._seconds(part) for part in new)
        shares = {part: self._seconds(part) / expected for part in new} if expected > 0 else {}
        for part, share in shares.items():
            passes, before = self.spent.get(part.kind, [0.0, 0.0])
            self.spent[part.kind] = [passes + part.passes, before + share * seconds]
            self.done.add(part.key)
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        content = {"network": self.network, "spent": self.spent, "done": sorted(self.done), "stages": self.stages}
        self.folder.write_json(self.name, content)

    def failed(self, name: str) -> None:
        """A job came to nothing: its time tells nothing about others."""
        self._jobs.pop(name, None)

    def expected(self, stage: str | None = None) -> float:
        """Seconds that a stage has before it, or all of them."""
        total, seen = 0.0, set(self.done)
        for of_stage, parts in self._jobs.values():
            new = {part.key: part for part in parts if part.key not in seen}
            seen.update(new)
            if stage in (None, of_stage):
                total += sum(map(self._seconds, new.values()))
        return total

    def took(self, stage: str) -> float:
        """Seconds that a stage has taken, in all calls so far."""
        return self.stages.get(stage, 0.0)

    def left(self) -> str:
        """In words."""
        return f"about {duration(self.expected())} left"

    def _seconds(self, part: Part) -> float:
        """By others of its kind that were done here; else by how well all others were foretold."""
        passes, seconds = self.spent.get(part.kind, [0.0, 0.0])
        if passes:
            return part.passes * seconds / passes
        all_passes, all_seconds = (
            (sum(values) for values in zip(*self.spent.values(), strict=True)) if self.spent else (0, 0)
        )
        return part.passes * (all_seconds / all_passes if all_passes else self.unit)


def duration(seconds: float) -> str:
    """Rounded, in words.

    Examples
    --------
    >>> duration(20), duration(840), duration(9000)
    ('20 s', '14 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
