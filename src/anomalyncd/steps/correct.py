"""Names and corrections that a script gives, without the review."""

from __future__ import annotations

from collections.abc import Mapping

from ..discovery.relearn import Move, relearn
from ..errors import DataError
from ..progress import Silent
from ..run.finished import FinishedRun, Key


def correct_run(
    run: FinishedRun, regions: Mapping[Key, int], names: Mapping[int, str], progress: Silent | None = None
) -> list[Move]:
    """As `relearn`, with all regions placed one by one; names are checked first: one line of text, no two alike."""
    known = {*run.model.classes.tolist(), *regions.values()}
    after = [str(name).casefold() for label, name in {**run.names, **names}.items() if label in known]
    for label, name in names.items():
        if label not in known:
            raise DataError(f"{run.path}: there is no class {label}; there are {', '.join(map(str, sorted(known)))}.")
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise DataError(f"{run.path}: the name of class {label} must be a line of text, but got {name!r}.")
        if after.count(name.casefold()) > 1:
            raise DataError(f"{run.path}: two classes would be called {name!r}. Place the regions of one in the other.")
    return relearn(run.path, regions, list(regions), names, progress)
