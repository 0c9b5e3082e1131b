"""Settings of a detector, which are its keyword arguments: their names, types and limits."""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Mapping, Sequence

from ..errors import SettingsError

# What a setting may be, by the type of its default; a default of another type says nothing.
_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    str: ((str,), "text"),
    tuple: ((tuple, list), "a list"),
}


def setting_defaults(kind: type) -> dict[str, object]:
    """Keyword arguments of a class, and of the classes that it hands the rest on to, by name, with their defaults.

    Examples
    --------
    >>> from anomalyncd.detect import PatchCore
    >>> found = setting_defaults(PatchCore)
    >>> found["bank_size"], found["size"]
    (10000, 336)
    """
    defaults: dict[str, object] = {}
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY} | defaults
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return dict(sorted(defaults.items()))


def misfit(kind: type, settings: Mapping[str, object]) -> str | None:
    """The first setting whose value is of another type than its default, in words; None where all fit.

    Examples
    --------
    >>> from anomalyncd.detect import PatchCore
    >>> misfit(PatchCore, {"bank_size": 10.5})
    'bank_size must be a whole number, but got 10.5'
    """
    defaults = setting_defaults(kind)
    for name, value in settings.items():
        allowed, words = _TYPES.get(type(defaults.get(name)), ((), ""))
        if allowed and type(value) not in allowed:
            return f"{name} must be {words}, but got {reprlib.repr(value)}"
    return None


def check_settings(settings: Mapping[str, object], name: str, kind: type) -> None:
    """Refuse settings that the detector called `name`, of the class `kind`, does not have or that are of a wrong type."""
    names = list(setting_defaults(kind))
    for wrong in settings:
        if wrong not in names:
            near = difflib.get_close_matches(wrong, names, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"detect.settings.{wrong}: the detector {name!r} has no such setting. {hint}It has {', '.join(names)}."
            )
    if words := misfit(kind, settings):
        raise SettingsError(f"detect.settings.{words}.")


def check_least(least: int, **settings: int) -> None:
    """Refuse a setting that is too small."""
    for name, value in settings.items():
        if type(value) is not int:
            raise SettingsError(f"{name} must be a whole number, but got {value!r}.")
        if value < least:
            raise SettingsError(f"{name} must be at least {least}, but got {value}.")


def check_windows(name: str, sides: Sequence[int]) -> None:
    """Refuse windows without a centre."""
    if not sides or any(side < 1 or side % 2 == 0 for side in sides):
        raise SettingsError(f"{name} must be odd and at least 1, but got {tuple(sides)}.")
