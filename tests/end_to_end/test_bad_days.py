"""What users meet sooner or later: each ends in a result or in one clear sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.demo import make_line
from anomalyncd.errors import AnomalyNCDError, DataError
from command import call

TINY: dict[str, Any] = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 2}}
FAST = ["--backbone", "tiny", "--set", "features.views=1", "--set", "learn.epochs=2"]


@pytest.fixture(scope="module")
def shared_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    return make_line(folder, n_per_class=3, n_normal=3, n_combined=0, size=128, kinds=["hole", "scratch"])


@pytest.fixture
def line(shared_line: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(shared_line, tmp_path / "line")
    return tmp_path / "line"


def picture(seed: int = 0, size: tuple[int, int] = (64, 64), defect: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """A grey image with a bright square, and its mask."""
    image = np.random.default_rng(seed).integers(0, 60, (*size, 3)).astype(np.uint8)
    mask = np.zeros(size, bool)
    if defect:
        mask[size[0] // 4 : size[0] // 2, size[1] // 4 : size[1] // 2] = True
        image[mask] = 240
    return image, mask


def test_fewer_regions_than_classes(line: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"found 6 anomalous regions, but 8 defect classes were asked for"):
        call("discover", line / "images", "--masks", line / "masks", "--classes", 9, "--out", tmp_path / "run", *FAST)
    call("discover", line / "images", "--masks", line / "masks", "--classes", 7, "--out", tmp_path / "run", *FAST)


def test_one_image() -> None:
    image, mask = picture()
    model = AnomalyNCD(2, **TINY).fit([image], masks=[mask])
    assert model.labels_.tolist() == [1] and model.probabilities_.tolist() == [[0, 1]]
    model = AnomalyNCD(2, **TINY).fit([image], maps=[mask.astype(np.float32)])
    assert model.labels_.tolist() == [1]
    assert AnomalyNCD(1, has_normal=False, **TINY).fit([image], masks=[None]).labels_.tolist() == [1]
    with pytest.raises(DataError, match="found 1 anomalous region, but 2 defect classes"):
        AnomalyNCD(3, **TINY).fit([image], masks=[mask])


@pytest.mark.parametrize("kind", ["maps", "masks", "none"])
def test_no_defect_at_all(kind: str, tmp_path: Path) -> None:
    images = [picture(seed, defect=False)[0] for seed in range(5)]
    nothing = {"maps": {"maps": [np.full((16, 16), 0.3)] * 5}, "masks": {"masks": [np.zeros((64, 64), bool)] * 5}}
    model = AnomalyNCD(3, **TINY).fit(images, **nothing.get(kind, {"masks": [None] * 5}))
    assert model.labels_.tolist() == [0] * 5 and len(model.regions_) == 0 and model.history_ == []
    assert model.probabilities_.tolist() == [[1, 0, 0]] * 5
    model.save(tmp_path / "run")
    loaded = AnomalyNCD.load(tmp_path / "run")
    assert loaded.labels_.tolist() == [0] * 5 and len(loaded.regions_) == 0
    if kind != "maps":
        image, mask = picture()
        prediction = loaded.predict([image, images[0]], masks=[mask, None])
        assert prediction.labels.tolist() == [-1, 0], "nothing is known about this defect"
        assert prediction.probabilities.tolist() == [[0, 0, 0], [1, 0, 0]]
        assert prediction.images["class_name"].tolist() == ["unknown", "normal"]
    else:
        assert loaded.predict(images[:1], maps=[np.full((16, 16), 0.3)]).labels.tolist() == [0]


def test_no_defect_on_the_command_line(line: Path, tmp_path: Path) -> None:
    for mask in (line / "masks").rglob("*.png"):
        cv2.imwrite(str(mask), np.zeros((128, 128), np.uint8))
    command = ("discover", line / "images", "--masks", line / "masks", "--classes", 3, "--out", tmp_path / "run", *FAST)
    assert "no image has an anomalous region" in call(*command).stderr
    for _ in range(2):
        result = call(*command)
        assert "9  normal" in result.stdout and not (tmp_path / "run/classes.png").exists()
    assert json.loads(call("evaluate", tmp_path / "run", "--json").stdout)["n_classes"] == 1
    call("predict", tmp_path / "run", line / "images", "--masks", line / "masks", "--out", tmp_path / "new.csv")
    assert pd.read_csv(tmp_path / "new.csv")["label"].tolist() == [0] * 9


def test_bad_files_among_good_ones(line: Path, tmp_path: Path) -> None:
    (line / "images/hole/note.png").write_text("call the night shift")
    np.save(line / "maps/hole/note.npy", np.zeros((64, 64)))
    (line / "images/hole/001.png").write_bytes((line / "images/hole/001.png").read_bytes()[:500])
    (line / "maps/scratch/000.npy").write_bytes(b"")
    run = tmp_path / "run"
    result = call("discover", line / "images", "--maps", line / "maps", "--classes", 3, "--out", run, *FAST)
    warnings = [text for text in result.stderr.splitlines() if text.startswith("warning")]
    about_scores = [text for text in warnings if "no two groups" in text]  # seven images are too few to tell
    assert len(about_scores) == 1
    assert len(warnings) == 4 and sum("note.png" in text for text in warnings) == 1
    assert "3 files skipped" in result.stdout
    manifest = pd.read_csv(run / "manifest.csv").set_index("image")
    assert manifest["status"].value_counts().to_dict() == {"ok": 7, "skipped": 3}
    assert "note.png" in manifest.loc["hole/note.png", "message"]
    assert "000.npy" in manifest.loc["scratch/000.png", "message"]
    images = pd.read_csv(run / "images.csv")["image"].tolist()
    assert len(images) == 7 and "hole/note.png" not in images
    figures = json.loads(call("evaluate", run, "--json").stdout)
    assert figures["n_skipped"] == 3 and figures["n_images"] == 7
    assert set(AnomalyNCD.load(run).skipped_) == {"hole/note.png", "hole/001.png", "scratch/000.png"}
    assert "warning: skipped" in (run / "run.log").read_text()
    result = call("predict", run, line / "images", "--maps", line / "maps", "--out", tmp_path / "new.csv", "--quiet")
    assert "3 files skipped" in result.stdout and result.stderr.count("warning: skipped") == 3
    assert len(pd.read_csv(tmp_path / "new.csv")) == 7


def test_many_bad_files_are_not_a_wall_of_text(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for index in range(50):
        (tmp_path / f"images/{index:02d}.png").write_text("no image")
    cv2.imwrite(str(tmp_path / "images/ok.png"), picture()[0])
    (tmp_path / "masks").mkdir()
    cv2.imwrite(str(tmp_path / "masks/ok.png"), picture()[1].astype(np.uint8) * 255)
    command = ("discover", tmp_path / "images", "--masks", tmp_path / "masks", "--classes", 2, *FAST)
    result = call(*command, "--out", tmp_path / "run")
    assert result.stderr.count("warning") == 21 and "skipped 30 more files" in result.stderr
    assert "1 image, 1 region, 50 files skipped" in result.stdout


@pytest.mark.parametrize("what", ["images", "maps"])
def test_all_files_bad(what: str, line: Path, tmp_path: Path) -> None:
    for file in (line / what).rglob("*.*"):
        file.write_text("broken")
    words = "none of the 9 images could be read" if what == "images" else "none of the 9 anomaly maps could be read"
    with pytest.raises(DataError, match=words):
        call("discover", line / "images", "--maps", line / "maps", "--classes", 3, "--out", tmp_path / "run", *FAST)
    assert not (tmp_path / "run/images.csv").exists()


def test_all_new_files_bad(tmp_path: Path) -> None:
    image, mask = picture()
    model = AnomalyNCD(2, **TINY).fit([image], masks=[mask])
    with pytest.raises(DataError, match=r"none of the 1 images could be read.*nowhere\.png"):
        model.predict(["nowhere.png"], masks=[None])


@pytest.mark.parametrize("kind", ["maps", "masks"])
@pytest.mark.parametrize("has_normal", [True, False])
def test_tiny_and_narrow_images(kind: str, has_normal: bool) -> None:
    sizes = [(1, 1), (1, 300), (300, 1), (2, 3), (64, 64)]
    images = [picture(index, size)[0] for index, size in enumerate(sizes)]
    values = [np.ones(size, np.float32) * (0.5 + index / 10) for index, size in enumerate(sizes)]
    model = AnomalyNCD(2, has_normal=has_normal, **TINY).fit(images, **{kind: values})
    assert len(model.labels_) == 5 and -1 not in model.labels_
    assert model.predict(images, **{kind: values}).labels.tolist() == model.labels_.tolist()


def test_maps_of_another_size_and_aspect() -> None:
    images, masks = zip(*(picture(seed, (60, 120)) for seed in range(4)), strict=True)
    exact = AnomalyNCD(2, **TINY).fit(list(images), maps=[mask.astype(np.float32) for mask in masks])
    boxes = exact.regions_[["x", "y", "width", "height"]].to_numpy()
    for size in [(300, 300), (30, 120), (600, 1200)]:  # width, height
        maps = [cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA) for mask in masks]
        model = AnomalyNCD(2, **TINY).fit(list(images), maps=maps)
        assert model.labels_.tolist() == [1] * 4
        assert np.abs(model.regions_[["x", "y", "width", "height"]].to_numpy() - boxes).max() <= 8


def test_maps_with_holes(line: Path, tmp_path: Path) -> None:
    for name in ("hole/000", "good/000"):
        values = np.load(line / f"maps/{name}.npy")
        values[:4] = np.nan
        np.save(line / f"maps/{name}.npy", values)
    np.save(line / "maps/scratch/002.npy", np.full((64, 64), np.nan))
    run = tmp_path / "run"
    result = call("discover", line / "images", "--maps", line / "maps", "--classes", 3, "--out", run, *FAST)
    warnings = [text for text in result.stderr.splitlines() if text.startswith("warning")]
    assert len(warnings) == 3 and "no two groups of images" in warnings[0], "three normal images are too few"
    assert "every pixel is NaN" in warnings[1] and "(and so for 1 more image" in warnings[2]
    manifest = pd.read_csv(run / "manifest.csv", keep_default_na=False).set_index("image")
    assert manifest.loc["scratch/002.png", "status"] == "skipped"
    assert manifest.loc["hole/000.png", "status"] == "ok" and "NaN" in manifest.loc["hole/000.png", "message"]


def test_one_constant_map_among_others(line: Path, tmp_path: Path) -> None:
    np.save(line / "maps/hole/000.npy", np.zeros((64, 64), np.float32))
    run = tmp_path / "run"
    call("discover", line / "images", "--maps", line / "maps", "--classes", 3, "--out", run, *FAST)
    images = pd.read_csv(run / "images.csv").set_index("image")
    assert images.loc["hole/000.png", "label"] == 0


def test_a_missing_map_is_named(line: Path, tmp_path: Path) -> None:
    (line / "maps/hole/001.npy").unlink()
    with pytest.raises(DataError, match=r"one map for each of 9 images, none found for hole/001\.png"):
        call("discover", line / "images", "--maps", line / "maps", "--classes", 3, "--out", tmp_path / "run", *FAST)


def test_names_of_all_sorts(tmp_path: Path) -> None:
    names = ["größe/ein Bild.png", "缺陷/图像 (1).png", "a'b/\"x\".png", "NA/null.png", "-x/--out.png", "e\u0301/é.png",
             "long/" + "n" * 200 + ".png", "emoji/😀.png"]  # fmt: skip
    for index, name in enumerate(names):
        image, mask = picture(index)
        for folder, pixels in (("images", image), ("masks", mask.astype(np.uint8) * 255)):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    run = tmp_path / "ein Lauf, größer"
    command = ("discover", tmp_path / "images", "--masks", tmp_path / "masks", "--classes", 3, "--out", run, *FAST)
    call(*command)
    before = (run / "images.csv").read_bytes()
    call(*command)
    assert (run / "images.csv").read_bytes() == before
    loaded = AnomalyNCD.load(run)
    assert sorted(loaded.images_["image"]) == sorted(names)
    assert loaded.images_["true_label"].tolist() == [name.split("/")[0] for name in loaded.images_["image"]]
    assert json.loads(call("evaluate", run, "--json").stdout)["n_true_classes"] == len(names)
    for crop in loaded.regions_["crop"]:
        assert (run / crop).is_file()
    call("predict", run, tmp_path / "images", "--masks", tmp_path / "masks", "--out", run / "neu ü.csv")
    assert sorted(pd.read_csv(run / "neu ü.csv", keep_default_na=False)["image"]) == sorted(names)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_all_images_alike() -> None:
    image, mask = picture()
    model = AnomalyNCD(3, **TINY).fit([image] * 6, masks=[mask] * 6)
    assert len(set(model.labels_.tolist())) == 1
    np.testing.assert_allclose(model.probabilities_.sum(axis=1), 1)


def test_no_epoch_at_all(tmp_path: Path) -> None:
    images, masks = zip(*(picture(seed) for seed in range(4)), strict=True)
    model = AnomalyNCD(2, **{**TINY, "learn": {"epochs": 0}}).fit(list(images), masks=list(masks))
    model.save(tmp_path / "run")
    assert model.history_ == AnomalyNCD.load(tmp_path / "run").history_ == []


def test_weak_regions_count_where_too_few_are_strong(tmp_path: Path) -> None:
    """Two bright defects and four faint ones: of ten scores no more than two groups can be told, and so two regions would be
    left for three classes. Maps of normal products tell the faint ones too."""
    images, maps = [], []
    for index in range(10):
        image, mask = picture(index, defect=index < 6)
        images.append(image)
        maps.append(
            cv2.GaussianBlur(mask * np.float32(1.0 if index < 2 else 0.15), (9, 9), 0) + np.float32(index / 1000)
        )
    model = AnomalyNCD(4, **TINY).fit(images, maps=maps, run=tmp_path / "run")
    assert "only 2 images score clearly higher than normal ones, fewer than the 3 kinds" in (
        tmp_path / "run/run.log"
    ).read_text(encoding="utf-8")
    assert (model.labels_[:2] > 0).all() and (model.labels_[6:] == 0).all()
    normal_maps = [np.full((64, 64), level / 1000, np.float32) for level in range(4, 12)]
    model = AnomalyNCD(4, **TINY).fit(images, maps=maps, normal_maps=normal_maps)
    assert (model.labels_[:6] > 0).all() and (model.labels_[6:] == 0).all()


def test_a_picture_that_cannot_be_drawn_fails_no_run(
    line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anomalyncd.report.classes.class_sheet", full)
    command = ("discover", line / "images", "--masks", line / "masks", "--classes", 3, "--out", tmp_path / "run", *FAST)
    result = call(*command)
    assert "cannot draw the classes (No space left on device)" in result.stderr
    assert (tmp_path / "run/images.csv").exists()


def test_every_error_is_ours(line: Path, tmp_path: Path) -> None:
    """Images without any pixel of sense, maps of the wrong kind, in one list."""
    strange: list[Any] = [np.zeros((0, 5, 3), np.uint8), np.full((8, 8, 3), np.nan), np.zeros((8, 8, 3), complex)]
    with pytest.raises(AnomalyNCDError, match="none of the 3 images could be read"):
        AnomalyNCD(2, **TINY).fit(strange, masks=[None] * 3)
    image, _ = picture()
    with pytest.raises(AnomalyNCDError, match="none of the 2 anomaly maps could be read"):
        AnomalyNCD(2, **TINY).fit([image] * 2, maps=[np.arange(48.0).reshape(4, 4, 3), np.array("text")])
