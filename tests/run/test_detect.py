"""Images without maps: the detector in the run, and again for new images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from anomalyncd import AnomalyNCD
from anomalyncd.cli import app
from anomalyncd.demo import make_line
from anomalyncd.detect import Detector
from anomalyncd.errors import DataError

SETTINGS: dict[str, Any] = {"backbone": "tiny", "features": {"views": 2}, "detect": {"settings": {"size": 128}}}


class Brightness(Detector):
    """A detector of one's own, in ten lines."""

    name = "brightness"
    needs_normal = False

    def fit(self, normal_images: Iterable[np.ndarray]) -> Brightness:
        return self

    def maps(self, images: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for image in images:
            yield cv2.GaussianBlur(image, (0, 0), 3).max(axis=2).astype(np.float32) / 255

    def save(self, folder: Path) -> None:
        folder.mkdir()

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Brightness:
        return cls()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_line(
        tmp_path_factory.mktemp("line") / "line",
        n_per_class=4,
        n_normal=6,
        n_combined=0,
        size=128,
        kinds=["hole", "print"],
    )


@pytest.mark.parametrize("detector", ["patchcore", "musc"])
def test_from_images_alone_to_classes_and_again_for_new_images(detector: str, line: Path, tmp_path: Path) -> None:
    normal = line / "images" / "good"
    model = AnomalyNCD(3, **SETTINGS)
    model.fit(
        line / "images", detector=detector, normal=normal if detector == "patchcore" else None, run=tmp_path / "run"
    )
    assert len(model.labels_) == 14
    assert sorted(path.suffix for path in (tmp_path / "run" / "maps").rglob("*.npy")) == [".npy"] * 14
    loaded = AnomalyNCD.load(tmp_path / "run")
    once, again = (loaded.predict(line / "images") for _ in range(2))
    np.testing.assert_array_equal(once.labels, again.labels)
    if detector == "patchcore":  # its scores do not depend on which images are asked about
        np.testing.assert_array_equal(once.labels, model.labels_)
    one = loaded.predict([line / "images" / "hole" / "000.png"])
    assert one.labels[0] == once.labels[once.images["image"].tolist().index("hole/000.png")]


def test_a_detector_of_ones_own(line: Path, tmp_path: Path) -> None:
    model = AnomalyNCD(3, **{**SETTINGS, "detect": {}}).fit(
        line / "images", detector=Brightness(), run=tmp_path / "run"
    )
    model.save(tmp_path / "copy")
    loaded = AnomalyNCD.load(tmp_path / "copy")
    np.testing.assert_array_equal(loaded.predict(line / "images").labels, model.labels_)


def test_a_file_that_is_no_image_gets_no_map_and_one_row_in_the_manifest(line: Path, tmp_path: Path) -> None:
    images = [*sorted((line / "images").rglob("*.png")), tmp_path / "bad.png"]
    (tmp_path / "bad.png").write_text("not a picture")
    model = AnomalyNCD(3, **{**SETTINGS, "detect": {}}).fit(images, detector=Brightness())
    assert list(model.skipped_) == [(tmp_path / "bad.png").as_posix()]
    assert len(model.labels_) == 14


def test_maps_are_not_made_twice(line: Path, tmp_path: Path) -> None:
    for epochs in (1, 2):
        AnomalyNCD(3, **{**SETTINGS, "learn": {"epochs": epochs}}).fit(
            line / "images", detector="musc", run=tmp_path / "run"
        )
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "maps").rglob("*.npy")}
        if epochs == 1:
            first = times
    assert times == first


def test_too_few_images_for_musc(line: Path) -> None:
    images = sorted((line / "images" / "hole").glob("*.png"))
    with pytest.raises(DataError, match="needs at least 5, but got 4"):
        AnomalyNCD(2, **SETTINGS).fit(images, detector="musc")


def test_detector_and_maps_do_not_go_together(line: Path) -> None:
    with pytest.raises(DataError, match="only one of them"):
        AnomalyNCD(3, **SETTINGS).fit(line / "images", maps=line / "maps", detector="musc")


def test_command_line(line: Path, tmp_path: Path) -> None:
    options = ["--classes", "3", "--backbone", "tiny", "--set", "features.views=2", "--set", "detect.settings.size=128"]
    run = str(tmp_path / "run")
    found = CliRunner().invoke(app, ["discover", str(line / "images"), "--out", run, *options, "--quiet"])
    assert found.exit_code == 0, found.output
    assert "name: musc" in (tmp_path / "run" / "config.yaml").read_text()
    table = tmp_path / "new.csv"
    found = CliRunner().invoke(app, ["predict", run, str(line / "images" / "hole"), "--out", str(table), "--quiet"])
    assert found.exit_code == 0, found.output
    assert len(table.read_text().splitlines()) == 5


def test_a_detector_of_the_settings_is_used_and_given_maps_outweigh_it(line: Path, tmp_path: Path) -> None:
    options = ["--classes", "3", "--backbone", "tiny", "--set", "features.views=2", "--quiet"]
    chosen = ["--set", "detect.name=patchcore", "--set", "detect.settings.size=128"]
    images, normal = str(line / "images"), str(line / "images" / "good")

    def discover(name: str, *more: str) -> str:
        found = CliRunner().invoke(app, ["discover", images, "--out", str(tmp_path / name), *options, *more])
        assert found.exit_code == 0, found.output
        assert "NEW_IMAGES --out" in found.output or "--maps" in more
        return (tmp_path / name / "config.yaml").read_text()

    assert "name: patchcore" in discover("one", *chosen, "--normal", normal)
    config = str(tmp_path / "one" / "config.yaml")
    assert "name: patchcore" in discover("two", "--config", config, "--normal", normal)
    assert "name: null" in discover("three", "--config", config, "--maps", str(line / "maps"))
    assert not (tmp_path / "three" / "detector").exists()
