"""Where the networks run."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from ..errors import SettingsError


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if not isinstance(name, str):
        raise SettingsError(f"device must be a name as auto, cpu or cuda, but got {type(name).__name__}.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SettingsError(f"device {name!r} cannot be used here ({reason}). Try cpu.") from error
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Where matrix products run in bfloat16, if they are to; `auto` is a GPU that has it.

    Examples
    --------
    >>> with autocast(torch.device("cpu"), "bfloat16"):
    ...     (torch.eye(2) @ torch.eye(2)).dtype
    torch.bfloat16
    """
    enabled = precision == "bfloat16"
    if precision == "auto":
        enabled = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
