"""Settings as text: a YAML file, and `--set`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from .config import check_amount
from .errors import MissingSettingsError, SettingsError

LONGEST_FILE = 1_000_000  # characters


def read_config(path: Path) -> dict[str, Any]:
    """Settings of a YAML file as a nested dictionary."""
    settings = read_yaml(path)
    if settings is not None and not isinstance(settings, dict):
        raise SettingsError(f"{path}: expected settings as `name: value`, but got {type(settings).__name__}.")
    return {str(name): value for name, value in (settings or {}).items()}


def read_yaml(path: Path) -> Any:
    """What a YAML file of settings holds."""
    if not os.path.isfile(path):  # a pipe or a device might never end
        raise MissingSettingsError(f"{path}: expected a YAML file of settings, none found.")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_FILE + 1)
        if len(text) > LONGEST_FILE:
            raise ValueError(f"it has more than {LONGEST_FILE:,} characters")
        return _safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: cannot be read as a YAML file of settings ({error}).") from error


def _safe_load(text: str) -> Any:
    try:
        settings = yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_amount(settings)
    return settings


def parse_setting(text: str) -> dict[str, Any]:
    """`learn.epochs=5` as a nested dictionary, the value read as YAML.

    Examples
    --------
    >>> parse_setting("learn.epochs=5")
    {'learn': {'epochs': 5}}
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise SettingsError(f"a setting must look like learn.epochs=5, but got {text!r}.")
    try:
        nested: Any = _safe_load(value)
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{name.strip()}: {value!r} cannot be read as a value ({error}).") from error
    for key in reversed(name.strip().split(".")):
        nested = {key: nested}
    result: dict[str, Any] = nested
    return result
