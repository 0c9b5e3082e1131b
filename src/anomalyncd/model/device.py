"""Where the networks run."""

from __future__ import annotations

import torch

from ..errors import SettingsError


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} cannot be used here ({str(error).splitlines()[0]}). Try cpu.") from error
    return device
