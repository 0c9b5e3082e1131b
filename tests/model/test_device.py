"""Where networks run, and in which precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anomalyncd.errors import SettingsError
from anomalyncd.model.device import autocast, choose_device


def test_a_device_that_cannot_be_used_is_said() -> None:
    with pytest.raises(SettingsError, match="device must be a name as auto, cpu or cuda, but got int"):
        choose_device(3)  # type: ignore[arg-type]
    for name in ("no such thing", "meta:0:0", ""):
        with pytest.raises(SettingsError, match=r"cannot be used here \(.+\)\. Try cpu\."):
            choose_device(name)


@pytest.mark.parametrize(("there", "expected"), [(False, "cpu"), (True, "cuda")])
def test_auto_takes_a_gpu_where_there_is_one(there: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def device(name: str) -> torch.device:
        asked.append(name)
        return real("cpu")

    real = torch.device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch, "device", device)
    choose_device("auto")
    assert asked == [expected]


@pytest.mark.parametrize(
    ("kind", "precision", "supported", "enabled"),
    [
        ("cpu", "float32", True, False),
        ("cpu", "bfloat16", False, True),
        ("cpu", "auto", True, False),
        ("cuda", "auto", True, True),
        ("cuda", "auto", False, False),
        ("cuda", "float32", True, False),
    ],
)
def test_bfloat16_where_it_is_wanted_or_a_gpu_has_it(
    kind: str, precision: str, supported: bool, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    monkeypatch.setattr(torch, "autocast", lambda *given, **named: seen.append((given, named)))
    autocast(torch.device(kind), precision)
    assert seen == [((kind, torch.bfloat16), {"enabled": enabled})]
