"""Images without maps: the detector in the run, and again for new images."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from anomalyncd import AnomalyNCD
from anomalyncd.cli import app
from anomalyncd.data.dataset import Sample
from anomalyncd.demo import make_line
from anomalyncd.detect import Detector, PatchCore
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import DataError, RunError
from anomalyncd.grid import top_mean
from anomalyncd.run.store import map_names

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


def test_other_settings_of_a_detector_object_make_other_maps(line: Path, tmp_path: Path) -> None:
    def fit(detector: Detector, normal: Path | None = line / "images/good") -> np.ndarray:
        settings = {**SETTINGS, "detect": {}, "learn": {"epochs": 1}}
        AnomalyNCD(3, **settings).fit(line / "images", detector=detector, normal=normal, run=tmp_path / "run")
        return np.load(tmp_path / "run/maps/hole/000.npy")

    tiny: dict[str, Any] = {"backbone": "tiny", "size": 64}
    first = fit(PatchCore(map_size=64, **tiny))
    written = (tmp_path / "run/maps/hole/000.npy").stat().st_mtime_ns
    assert np.array_equal(fit(PatchCore(map_size=64, **tiny)), first)
    assert (tmp_path / "run/maps/hole/000.npy").stat().st_mtime_ns == written  # the same: not made again
    assert fit(PatchCore(map_size=32, **tiny)).shape == (32, 32)
    normal = [cv2.imread(str(path)) for path in sorted((line / "images/good").glob("*.png"))]
    ready = PatchCore(map_size=16, **tiny).fit(normal)
    assert fit(ready, normal=None).shape == (16, 16)  # one that is fitted needs no normal images
    with pytest.raises(DataError, match="needs images of normal products"):
        fit(PatchCore(map_size=64, **tiny), normal=None)


class Slow(Brightness):
    """Takes its time to learn what is normal."""

    needs_normal = True

    def fit(self, normal_images: Iterable[np.ndarray]) -> Slow:
        time.sleep(1.0)
        return self


def test_fitting_has_a_time_of_its_own(line: Path, tmp_path: Path) -> None:
    model = AnomalyNCD(3, **{**SETTINGS, "detect": {}})
    started = time.perf_counter()
    model.fit(line / "images", detector=Slow(), normal=line / "images/good", run=tmp_path / "run")
    elapsed = time.perf_counter() - started
    assert model.seconds_["fitting"] >= 1
    assert min(model.seconds_.values()) >= 0 and sum(model.seconds_.values()) < elapsed  # nothing counted twice
    model.fit(line / "images", detector=Brightness(), run=tmp_path / "other")
    assert "fitting" not in model.seconds_


def test_a_file_that_is_no_image_gets_one_row_in_the_manifest(line: Path, tmp_path: Path) -> None:
    images = [*sorted((line / "images").rglob("*.png")), tmp_path / "bad.png"]
    (tmp_path / "bad.png").write_text("not a picture")
    model = AnomalyNCD(3, **{**SETTINGS, "detect": {}}).fit(images, detector=Brightness())
    assert list(model.skipped_) == [(tmp_path / "bad.png").as_posix()]
    assert len(model.labels_) == 14


def test_scores_of_the_images_are_kept_beside_the_maps(line: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_text("not a picture")
    images = [*sorted((line / "images" / "hole").glob("*.png")), bad]
    model = AnomalyNCD(2, **{**SETTINGS, "detect": {}}).fit(images, detector=Brightness(), run=tmp_path / "run")
    table = pd.read_csv(tmp_path / "run" / "maps" / "scores.csv", keep_default_na=False, na_values={"score": [""]})
    assert table["image"].tolist() == [path.as_posix() for path in images]
    assert table["height"].tolist() == table["width"].tolist() == [128] * 4 + [0]
    for score, anomaly_map in zip(
        table["score"], Brightness().maps(map(cv2.imread, map(str, images[:4]))), strict=False
    ):
        assert score == pytest.approx(top_mean(anomaly_map), rel=1e-6)
    assert np.isnan(table["score"].iloc[4]) and "bad.png" in table["message"].iloc[4]
    assert list(model.skipped_) == [bad.as_posix()]


@pytest.mark.parametrize("damage", ["map", "scores", "mended"])
def test_what_is_gone_or_mended_is_made_again(damage: str, line: Path, tmp_path: Path) -> None:
    bad = tmp_path / "images" / "bad.png"
    bad.parent.mkdir()
    bad.write_text("not a picture")
    time = bad.stat().st_mtime_ns
    for path in (line / "images" / "hole").glob("*.png"):
        (bad.parent / path.name).symlink_to(path)

    def fit() -> AnomalyNCD:
        settings = {**SETTINGS, "detect": {}, "learn": {"epochs": 1}}
        return AnomalyNCD(2, **settings).fit(bad.parent, detector=Brightness(), run=tmp_path / "run")

    assert list(fit().skipped_) == ["bad.png"]
    maps = tmp_path / "run" / "maps"
    if damage == "mended":  # of the same size and time, as after a hiccup of a network drive
        good = cv2.imencode(".png", np.full((40, 40, 3), 9, np.uint8))[1].tobytes()
        bad.write_bytes(good)
        os.truncate(bad, len(good))
        os.utime(bad, ns=(time, time))
    else:
        (maps / ("000.npy" if damage == "map" else "scores.csv")).unlink()
    again = fit()
    assert len(again.labels_) == (5 if damage == "mended" else 4)
    assert (maps / "000.npy").exists() and (maps / "scores.csv").exists()


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_detector_is_noticed_and_made_again(damage: str, line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def discover() -> np.ndarray:
        model = AnomalyNCD(3, **SETTINGS)
        model.fit(line / "images", detector="patchcore", normal=line / "images" / "good", run=run)
        return model.labels_

    labels, file = discover(), run / "detector" / "detector.safetensors"
    whole = file.read_bytes()
    file.unlink()
    if damage == "flipped":
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(RunError, match="the stored detector is damaged"):
        AnomalyNCD.load(run).predict(line / "images")
    assert discover().tolist() == labels.tolist() and file.read_bytes() == whole
    assert AnomalyNCD.load(run).predict(line / "images").labels.tolist() == labels.tolist()


def test_a_flipped_bit_in_a_model_is_noticed(line: Path, tmp_path: Path) -> None:
    AnomalyNCD(3, backbone="tiny").fit(line / "images", masks=line / "masks", run=tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(RunError, match="damaged"):
        AnomalyNCD.load(tmp_path)


def test_maps_lie_as_the_images_do_where_names_allow_it() -> None:
    def names(*ids: str) -> list[str]:
        return map_names([Sample(name, Path(name)) for name in ids])

    assert names("crack/000.png", "good/000.png", "a.b.png") == [
        "maps/crack/000.npy", "maps/good/000.npy", "maps/a.b.npy",
    ]  # fmt: skip
    for odd in (["a.png", "a.jpg"], ["/etc/a.png"], ["../a.png"], ["x/../../a.png"], ["C:/a.png"], ["x.partial/a.png"]):
        found = names("b/c.png", *odd)
        assert found[0] == "maps/000/000000_b_c.npy" and len(set(found)) == len(found)
        assert not any(".." in Path(name).parts or Path(name).is_absolute() for name in found)
    assert all(len(part) < 240 for part in Path(names("ä" * 120 + ".png")[0]).parts)


def test_a_detector_that_loses_images_is_found_out(line: Path) -> None:
    class Forgetful(Brightness):
        def maps(self, images: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
            yield from list(super().maps(images))[1:]

    with pytest.raises(DataError, match="one map for each of 14 images, not 13"):
        AnomalyNCD(3, **{**SETTINGS, "detect": {}}).fit(line / "images", detector=Forgetful())


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


def test_names_do_not_choose_the_references(line: Path, tmp_path: Path) -> None:
    paths = sorted((line / "images").rglob("*.png"))
    settings = {**SETTINGS, "detect": {"settings": {"size": 64, "max_references": 4}}}
    maps = []
    for turn, order in enumerate((paths, paths[::-1])):
        folder = tmp_path / f"images{turn}"
        folder.mkdir()
        for number, path in enumerate(order):
            (folder / f"{number:03d}.png").write_bytes(path.read_bytes())
        run = tmp_path / f"run{turn}"
        AnomalyNCD(3, **settings).fit(folder, detector="musc", run=run)
        found = [np.load(run / "maps" / f"{number:03d}.npy") for number in range(len(order))]
        maps.append(found if turn == 0 else found[::-1])
    for one, other in zip(*maps, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("detector", [None, "musc"])
def test_maps_that_are_given_are_taken_also_where_the_run_has_a_detector(
    detector: str | None, line: Path, tmp_path: Path
) -> None:
    model = SimpleNamespace(config=SimpleNamespace(detect=SimpleNamespace(name=detector)))
    given = DiscoveryModel.gather(model, line / "images", line / "maps")  # type: ignore[arg-type]
    assert given.has_maps and all(sample.map is not None for sample in given)
    files = sorted((line / "images").rglob("*.png"))[:2]
    table = tmp_path / "list.csv"
    maps = [(line / "maps" / file.relative_to(line / "images")).with_suffix(".tiff") for file in files]
    maps = [next(place.parent.glob(place.stem + ".*")) for place in maps]
    table.write_text("image,map\n" + "".join(f"{file},{own}\n" for file, own in zip(files, maps, strict=True)))
    listed = DiscoveryModel.gather(model, table)  # type: ignore[arg-type]
    assert listed.has_maps is (detector is None)  # its own detector's maps, where there is one
    with pytest.raises(DataError, match="either maps") if detector is None else nullcontext():
        assert DiscoveryModel.gather(model, line / "images").is_bare  # type: ignore[arg-type]


def test_defects_among_the_normal_images_are_listed_and_not_learned(line: Path, tmp_path: Path) -> None:
    normal = tmp_path / "normal"
    normal.mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        picture = rng.integers(90, 130, (96, 96, 3), dtype=np.uint8)
        if number in (3, 12):
            picture[30:70, 30:70] = 255
        cv2.imwrite(str(normal / f"{number:02}.png"), picture)
    AnomalyNCD(3, **SETTINGS).fit(line / "images", normal=normal, run=tmp_path / "run")
    table = pd.read_csv(tmp_path / "run" / "suspects.csv")
    assert sorted(table["image"]) == ["03.png", "12.png"] and table["deviations"].is_monotonic_decreasing
    assert "2 of 20 normal images seem to show a defect" in (tmp_path / "run" / "run.log").read_text()
    owner = PatchCore.load(tmp_path / "run" / "detector", device="cpu").memory.owner
    assert set(owner.tolist()) == set(range(20)) - {3, 12}
