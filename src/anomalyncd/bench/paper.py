"""The figures that the paper prints, by the number of their table, to stand beside our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import yaml

from ..errors import SettingsError

Cell = str | float


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    id : its number, `"1"` … `"17"`; `"T"` and `"fixed"` are figures, `"page"` is the page of the reference repository
    title : a few words
    rows : what identifies a row (text: `dataset`, `method`, `detector`, `variant`, `base`, `product`) and its figures
        (floats: `nmi`, `ari`, `f1`, `aupro`, …; scores are shares of 1). A row lacks what the paper does not say.
        None at all where the paper has only a picture.
    label : of the table in the paper's LaTeX source; empty for the page
    note : what to know before comparing, such as where the paper disagrees with itself; may be empty
    columns : what a column means where its name does not say it
    """

    id: str
    title: str
    rows: tuple[Mapping[str, Cell], ...]
    label: str = ""
    note: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


def table(name: str) -> PaperTable:
    """A table of the paper by its number.

    Examples
    --------
    >>> table("4").title, len(table("4").rows)
    ('Mask mechanism', 4)
    """
    tables = _read()
    if name not in tables:
        raise SettingsError(f"table of the paper must be one of {', '.join(tables)}, but got {name!r}.")
    return tables[name]


def figures(name: str, **match: str) -> list[dict[str, Cell]]:
    """The rows of a table in which every column of `match` has that text; empty where none has.

    Examples
    --------
    >>> figures("1", dataset="mtd", method="anomalyncd")
    [{'dataset': 'mtd', 'method': 'anomalyncd', 'detector': 'musc', 'nmi': 0.268, 'ari': 0.228, 'f1': 0.509}]
    >>> [row["f1"] for row in figures("15", dataset="mtd", detector="patchcore", variant="0.5")]
    [0.715]
    """
    return [dict(row) for row in table(name).rows if all(row.get(key) == value for key, value in match.items())]


@cache
def _read() -> Mapping[str, PaperTable]:
    content = yaml.safe_load(files(__package__).joinpath("paper.yaml").read_text(encoding="utf-8"))
    tables = {}
    for name, entry in content.items():
        shared = entry.pop("shared", {})
        rows = tuple(MappingProxyType(shared | row) for row in entry.pop("rows"))
        tables[name] = PaperTable(id=name, rows=rows, **entry)
    return tables
