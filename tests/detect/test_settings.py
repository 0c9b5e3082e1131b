"""Settings of detectors: names, types and limits, and how the configuration builds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anomalyncd.config import make_config
from anomalyncd.detect import DETECTORS, build_detector
from anomalyncd.detect.base import setting_defaults
from anomalyncd.errors import SettingsError


def test_settings_of_detectors() -> None:
    def configured(name: str, **settings: Any) -> Any:
        return make_config({"detect": {"name": name, "settings": settings}, "model": {"backbone": "tiny"}})

    for name, kind in DETECTORS.items():
        known = setting_defaults(kind)
        assert {"size", "backbone", "seed", "device"} <= set(known) and "settings" not in known and "self" not in known
        assert build_detector(configured(name, size=64)).size == 64  # type: ignore[attr-defined]
        with pytest.raises(
            SettingsError, match=r"detect\.settings\.sise: .* no such setting\. Did you mean size\?"
        ) as error:
            build_detector(configured(name, sise=64))
        assert all(each in str(error.value) for each in known)
    assert "bank_size" in setting_defaults(DETECTORS["patchcore"]) and "bank_size" not in setting_defaults(
        DETECTORS["musc"]
    )
    wrong: dict[str, Any] = {
        "size": "large", "bank_size": 10.5, "pool_size": 2.5, "rotations": 2.5, "sigma": "abc", "seed": 1.5,
        "batch_size": 2.5, "map_size": True,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(SettingsError, match=rf"detect\.settings\.{name} must be a .*number, but got"):
            build_detector(configured("patchcore", **{name: value}))
    assert build_detector(configured("patchcore", sigma=2)).sigma == 2  # type: ignore[attr-defined]
    for blocks in ("abc", [1.5], 3, [True]):
        with pytest.raises(SettingsError, match="blocks must be a list of whole numbers"):
            build_detector(configured("musc", blocks=blocks))
    for sigma in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="sigma must be a number of at least 0"):
            build_detector(configured("musc", sigma=sigma))


def test_weights_of_the_run_are_not_for_another_backbone(tmp_path: Path) -> None:
    def built(**settings: Any) -> Any:
        model = {"backbone": "tiny", "weights": str(tmp_path / "own.safetensors")}
        return build_detector(make_config({"detect": {"name": "pni", "settings": settings}, "model": model}))

    assert built().weights == str(tmp_path / "own.safetensors")
    assert built(backbone="wide_resnet101_2").weights is None
    assert built(backbone="densenet201", weights="its.safetensors").weights == "its.safetensors"


def test_detectors_of_anomalib_get_device_and_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("anomalyncd.detect.make_detector", lambda name, **settings: given.update(name=name, **settings))
    build_detector(
        make_config({"detect": {"name": "anomalib:Padim", "settings": {"max_epochs": 2}}, "random_state": 3})
    )
    assert given == {"name": "anomalib:Padim", "device": "auto", "seed": 3, "max_epochs": 2}
    with pytest.raises(SettingsError, match="Did you mean max_epochs"):
        build_detector(make_config({"detect": {"name": "anomalib:Padim", "settings": {"max_epoch": 2}}}))
