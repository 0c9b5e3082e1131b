"""Detectors by name, built in or of one's own (__init__.py, base.py).

Covers base.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.config import make_config
from anomalyncd.detect import (
    CPR,
    DETECTORS,
    PNI,
    Detector,
    EfficientAD,
    MuSc,
    PatchCore,
    RDPlusPlus,
    build_detector,
    load_detector,
    make_detector,
)
from anomalyncd.errors import RunError, SettingsError

OWN = """
from anomalyncd.detect import Detector

class Brightness(Detector):
    name = "brightness"
    needs_normal = False
    def __init__(self, gain=1.0): self.gain = gain
    def fit(self, normal_images): return self
    def maps(self, images):
        for image in images:
            yield self.gain * image.mean(axis=2).astype("float32")
    def save(self, folder): (folder / "gain.txt").write_text(str(self.gain))
    @classmethod
    def load(cls, folder, *, device="auto"): return cls(float((folder / "gain.txt").read_text()))

class Half(Detector):
    name = "half"
    needs_normal = True
    def fit(self, normal_images): return self

class Stranger: pass
number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_detector_for_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_detector_for_tests"
    sys.modules.pop("own_detector_for_tests", None)


def test_built_in():
    trained = {"efficientad": EfficientAD, "rd++": RDPlusPlus, "pni": PNI, "cpr": CPR}
    assert {"patchcore": PatchCore, "musc": MuSc, **trained} == DETECTORS
    made = make_detector("patchcore", backbone="tiny", size=64, bank_size=7)
    assert isinstance(made, PatchCore) and made.bank_size == 7 and made.size == 64 and made.needs_normal
    assert isinstance(make_detector("musc", backbone="tiny"), MuSc)


def test_one_of_your_own(own_module, tmp_path):
    name = f"{own_module}:Brightness"
    detector = make_detector(name, gain=2.0)
    assert isinstance(detector, Detector)
    image = np.full((2, 3, 3), 10, np.uint8)
    np.testing.assert_array_equal(next(detector.fit([]).maps([image])), np.full((2, 3), 20, np.float32))
    detector.save(tmp_path)
    np.testing.assert_array_equal(next(load_detector(name, Path(tmp_path)).maps([image])), 20)


@pytest.mark.parametrize(
    "name",
    ["", "PatchCore", "nonsense", "json", ":", ":X", "json:", "json:Nothing", "no_such_module_x:Y", ".relative:X"],
)
def test_unknown(name):
    with pytest.raises(
        SettingsError, match=r"must be one of patchcore, musc, .*anomalib:Model, or module:Class of your own"
    ):
        make_detector(name)


def test_a_misspelt_name_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "patchcor.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="'patchcor'"):
        make_detector("patchcor")


@pytest.mark.parametrize("attribute", ["Stranger", "number", "Half", "Detector"])
def test_not_a_detector(own_module, attribute):
    with pytest.raises(SettingsError, match=f"{attribute}.*expected a subclass of anomalyncd.detect.Detector"):
        make_detector(f"{own_module}:{attribute}")


def test_settings_that_a_detector_of_your_own_refuses_are_said(own_module):
    config = make_config({"detect": {"name": f"{own_module}:Brightness", "settings": {"colour": 1}}})
    with pytest.raises(SettingsError, match=r"detect\.settings do not fit the detector .*Brightness"):
        build_detector(config)
    assert isinstance(build_detector(make_config({"detect": {"name": f"{own_module}:Brightness"}})), Detector)


def test_a_built_in_detector_shares_device_seed_and_backbone_with_the_run():
    config = make_config(
        {"model": {"backbone": "tiny"}, "device": "cpu", "random_state": 7, "detect": {"name": "patchcore"}}
    )
    made = build_detector(config)
    assert (made.seed, made.backbone, str(made.device), made.precision) == (7, "tiny", "cpu", config.precision)


def test_ready_without_normal_images_only_where_none_are_needed(own_module):
    made = make_detector(f"{own_module}:Brightness")
    assert made.is_ready is not made.needs_normal
    type(made).needs_normal = not made.needs_normal
    assert made.is_ready is not made.needs_normal


def test_a_detector_of_your_own_is_scored_by_the_highest_hundredth_of_its_map(own_module):
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    (found,) = make_detector(f"{own_module}:Brightness").detect([image])
    assert found.score == pytest.approx(np.sort(image.mean(axis=2).ravel())[-4:].mean(), rel=1e-6)


def test_a_file_that_does_not_fit_the_network_is_said(tmp_path):
    normal = [np.zeros((32, 32, 3), np.uint8)] * 2
    detector = EfficientAD(backbone="tiny", size=32, device="cpu", steps=1).fit(normal)
    tensors = detector.tensors()
    detector.tensors = lambda: {name: value[..., :1] if value.ndim else value for name, value in tensors.items()}
    detector.save(tmp_path)
    with pytest.raises(RunError, match="does not fit efficientad of the installed packages"):
        load_detector("efficientad", tmp_path, device="cpu")
