"""The public API as DESIGN prints it, and what its results mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import anomalyncd
from anomalyncd import AnomalyNCD, AnomalyNCDError, MEBin
from anomalyncd.data.gather import gather
from anomalyncd.demo import iter_line
from anomalyncd.errors import DataError, RunError, SettingsError, WrongTypeError
from anomalyncd.run import store

TINY: dict[str, Any] = {"backbone": "tiny", "features": {"views": 2}, "learn": {"epochs": 3}}
PAPER: dict[str, Any] = {
    "backbone": "tiny", "preset": "paper", "crop": {"size": 224}, "learn": {"epochs": 1, "bank_views": 2},
}  # fmt: skip
KINDS = ("hole", "scratch", "print")


class Line:
    """Images of the demo as arrays and as files."""

    def __init__(self, folder: Path) -> None:
        items = list(iter_line(n_per_class=4, n_normal=4, n_combined=0, size=128, kinds=KINDS))
        self.images = [item.image for item in items]
        self.maps = [item.map for item in items]
        self.masks = [item.mask if item.mask.any() else None for item in items]
        self.n_normal = 4
        self.image_paths, self.map_paths, self.mask_paths = [], [], []
        for index, item in enumerate(items):
            self.image_paths.append(folder / f"{index:02d}.png")
            cv2.imwrite(str(self.image_paths[-1]), item.image[..., ::-1])
            self.map_paths.append(folder / f"{index:02d}.npy")
            np.save(self.map_paths[-1], item.map)
            self.mask_paths.append(folder / f"{index:02d}_mask.png" if item.mask.any() else None)
            if self.mask_paths[-1]:
                cv2.imwrite(str(self.mask_paths[-1]), item.mask.astype(np.uint8) * 255)

    def __len__(self) -> int:
        return len(self.images)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def fitted(line: Line) -> AnomalyNCD:
    return AnomalyNCD(n_classes=4, **TINY).fit(line.images, maps=line.maps)


@pytest.fixture(scope="module")
def fitted_on_masks(line: Line) -> AnomalyNCD:
    return AnomalyNCD(n_classes=4, **TINY).fit(line.images, masks=line.masks)


def check_meaning(model: AnomalyNCD, n_images: int, classes: list[int]) -> None:
    """What holds for every fitted model."""
    assert model.classes_.tolist() == classes
    assert model.labels_.shape == (n_images,) and model.labels_.dtype == np.int64
    assert set(model.labels_.tolist()) <= set(classes), "−1 is for new images only"
    assert model.probabilities_.shape == (n_images, len(classes))
    np.testing.assert_allclose(model.probabilities_.sum(axis=1), 1)
    assert (model.classes_[model.probabilities_.argmax(axis=1)] == model.labels_).all()
    assert isinstance(model.regions_, pd.DataFrame) and isinstance(model.images_, pd.DataFrame)
    assert model.images_["label"].tolist() == model.labels_.tolist()
    assert model.images_["n_regions"].sum() == len(model.regions_)
    assert set(model.regions_["label"]) <= set(classes)
    assert {"image", "region", "x", "y", "width", "height", "area", "score", "label", "probability"} <= set(
        model.regions_
    )


def test_mebin_as_printed(line: Line) -> None:
    binarizer = MEBin(n_thresholds=64, min_interval=4, erosion=6).fit(line.maps)
    result = binarizer.binarize(line.maps[0])
    assert result.mask.shape == line.maps[0].shape and result.mask.dtype == bool
    assert isinstance(result.threshold, float) and isinstance(result.n_regions, int) and result.counts.shape == (64,)


def test_maps(fitted: AnomalyNCD, line: Line) -> None:
    check_meaning(fitted, len(line), [0, 1, 2, 3])
    assert (fitted.labels_[: line.n_normal] == 0).all() and (fitted.labels_[line.n_normal :] > 0).all()
    assert fitted.skipped_ == {} and [row["epoch"] for row in fitted.history_] == [0, 1, 2]
    sizes = fitted.regions_.loc[fitted.regions_["label"] > 0, "label"].value_counts()
    assert sizes.tolist() == [sizes.get(k, 0) for k in (1, 2, 3) if k in sizes], "the largest class comes first"


def test_masks_with_none(fitted_on_masks: AnomalyNCD, line: Line) -> None:
    check_meaning(fitted_on_masks, len(line), [0, 1, 2, 3])
    assert (fitted_on_masks.labels_ == 0).tolist() == [mask is None for mask in line.masks]
    assert (fitted_on_masks.regions_["score"] == 1).all() and 0 not in fitted_on_masks.regions_["label"].tolist()
    assert set(fitted_on_masks.labels_.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("as_text", [False, True])
def test_paths_give_what_arrays_give(fitted: AnomalyNCD, line: Line, as_text: bool) -> None:
    paths, maps = line.image_paths, line.map_paths
    if as_text:
        paths, maps = [str(path) for path in paths], [str(path) for path in maps]  # type: ignore[misc]
    model = AnomalyNCD(n_classes=4, **TINY).fit(paths, maps=maps)
    assert model.labels_.tolist() == fitted.labels_.tolist()
    np.testing.assert_allclose(model.probabilities_, fitted.probabilities_, atol=1e-6)
    assert model.images_["image"].tolist() == [path.as_posix() for path in line.image_paths]


def test_mask_files(fitted_on_masks: AnomalyNCD, line: Line) -> None:
    model = AnomalyNCD(n_classes=4, **TINY).fit(line.image_paths, masks=line.mask_paths)
    assert model.labels_.tolist() == fitted_on_masks.labels_.tolist()


def test_without_normal_every_image_has_a_region(line: Line) -> None:
    model = AnomalyNCD(n_classes=3, has_normal=False, **TINY).fit(line.images, masks=line.masks)
    check_meaning(model, len(line), [1, 2, 3])
    assert (model.images_["n_regions"] >= 1).all()
    whole = model.regions_[model.regions_["image"] == "image_000000"]
    assert whole[["x", "y", "width", "height"]].to_numpy().tolist() == [[0, 0, 128, 128]]
    prediction = model.predict([line.images[0], np.zeros((50, 80, 3), np.uint8)], masks=[None, None])
    assert prediction.labels[0] in (1, 2, 3) and prediction.regions["width"].tolist() == [128, 80]
    assert prediction.images["class_name"][1] == "not this product", "a black frame"


def test_preset_paper_learns_as_many_outputs_as_classes(line: Line) -> None:
    model = AnomalyNCD(n_classes=4, **PAPER).fit(line.images, maps=line.maps)
    check_meaning(model, len(line), [0, 1, 2, 3])
    assert model.model_.classifier is not None and model.model_.classifier.n_classes == 4
    assert model.predict(line.images, maps=line.maps).labels.tolist() == model.labels_.tolist()


def test_preset_paper_with_masks_has_no_normal_regions(line: Line) -> None:
    model = AnomalyNCD(n_classes=4, **PAPER).fit(line.images, masks=line.masks)
    check_meaning(model, len(line), [0, 1, 2, 3])
    assert model.model_.classifier is not None and model.model_.classifier.n_classes == 3
    assert (model.labels_ == 0).tolist() == [mask is None for mask in line.masks]


def test_a_labelled_base_set(line: Line) -> None:
    base = list(
        iter_line(n_per_class=3, n_normal=0, n_combined=0, size=96, kinds=["stain", "crack"], texture="wood_grain")
    )
    given = ([item.image for item in base], [item.mask for item in base], [item.label for item in base])
    model = AnomalyNCD(n_classes=4, **TINY).fit(line.images, masks=line.masks, base=given)
    check_meaning(model, len(line), [0, 1, 2, 3])
    assert model.model_.classifier is not None
    assert (model.model_.classifier.n_base, model.model_.classifier.n_classes) == (2, 3)
    assert model.history_[-1]["supervised"] > 0
    assert model.predict(line.images, masks=line.masks).labels.tolist() == model.labels_.tolist()
    with pytest.raises(DataError, match="base set has no region"):
        AnomalyNCD(n_classes=4, **TINY).fit(line.images, masks=line.masks, base=(given[0], [None] * 6, given[2]))


def test_predicting_the_fitted_images_gives_the_fitted_labels(fitted: AnomalyNCD, line: Line) -> None:
    prediction = fitted.predict(line.images, maps=line.maps)
    assert prediction.labels.tolist() == fitted.labels_.tolist()
    np.testing.assert_allclose(prediction.probabilities, fitted.probabilities_, atol=1e-4)
    assert list(prediction.images.columns) == list(fitted.images_.columns)
    assert list(prediction.regions.columns) == [name for name in fitted.regions_.columns if name != "crop"]
    pd.testing.assert_frame_equal(
        prediction.regions.drop(columns=["probability", "unknown"]),
        fitted.regions_.drop(columns=["probability", "unknown", "crop"]),
    )
    assert prediction.regions["unknown"].max() < 0.1  # each finds itself


def test_order_and_batches_do_not_matter(fitted: AnomalyNCD, line: Line) -> None:
    order = np.random.default_rng(0).permutation(len(line))
    shuffled = fitted.predict([line.images[i] for i in order], maps=[line.maps[i] for i in order])
    assert shuffled.labels.tolist() == fitted.labels_[order].tolist()
    np.testing.assert_allclose(shuffled.probabilities, fitted.probabilities_[order], atol=1e-3)
    alone = [fitted.predict([image], maps=[map_]) for image, map_ in zip(line.images, line.maps, strict=True)]
    assert [prediction.labels[0] for prediction in alone] == fitted.labels_.tolist()
    np.testing.assert_allclose(np.concatenate([p.probabilities for p in alone]), fitted.probabilities_, atol=1e-3)


def test_the_order_of_images_does_not_change_what_is_learned(fitted: AnomalyNCD, line: Line) -> None:
    order = np.random.default_rng(1).permutation(len(line))
    model = AnomalyNCD(n_classes=4, **TINY).fit([line.images[i] for i in order], maps=[line.maps[i] for i in order])
    assert model.labels_.tolist() == fitted.labels_[order].tolist()


def test_new_images_of_another_shape(fitted: AnomalyNCD) -> None:
    new = list(iter_line(n_per_class=1, n_normal=1, n_combined=0, size=(96, 160), kinds=KINDS, seed=7))
    quiet = np.zeros((20, 30), np.float32)
    prediction = fitted.predict([item.image for item in new], maps=[quiet, *(item.map for item in new[1:])])
    assert prediction.labels.shape == (4,) and prediction.labels[0] == 0 and (prediction.labels[1:] != 0).all()
    np.testing.assert_allclose(prediction.probabilities.sum(axis=1), prediction.labels >= 0)
    assert prediction.skipped == {}


def test_save_and_load(fitted: AnomalyNCD, line: Line, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    loaded = AnomalyNCD.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.probabilities_, fitted.probabilities_.round(6))  # as written in images.csv
    for name in ("labels_", "classes_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))
    pd.testing.assert_frame_equal(loaded.images_, fitted.images_, check_dtype=False)
    pd.testing.assert_frame_equal(loaded.regions_, fitted.regions_, check_dtype=False)
    assert (loaded.history_, loaded.skipped_) == (fitted.history_, fitted.skipped_)
    one, two = (model.predict(line.images[::-1], maps=line.maps[::-1]) for model in (fitted, loaded))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.probabilities, two.probabilities)
    loaded.save(tmp_path / "again")
    assert AnomalyNCD.load(str(tmp_path / "again")).labels_.tolist() == fitted.labels_.tolist()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("kind", ["paper", "masks"])
def test_save_and_load_what_was_trained(kind: str, line: Line, tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"maps": line.maps} if kind == "paper" else {"masks": line.masks}
    model = AnomalyNCD(n_classes=4, **(PAPER if kind == "paper" else TINY)).fit(line.images, **inputs)
    model.save(tmp_path / "run")
    one, two = (m.predict(line.images, **inputs) for m in (model, AnomalyNCD.load(tmp_path / "run")))
    np.testing.assert_array_equal(one.probabilities, two.probabilities)


def test_a_loaded_model_fits_again_with_its_own_settings(line: Line, tmp_path: Path) -> None:
    settings = {**TINY, "merge": {"how": "average"}, "random_state": 3}
    model = AnomalyNCD(n_classes=3, has_normal=False, **settings).fit(line.images, masks=line.masks)
    model.save(tmp_path / "run")
    again = AnomalyNCD.load(tmp_path / "run").fit(line.images, masks=line.masks)
    assert again.model_.config == model.model_.config
    np.testing.assert_array_equal(again.probabilities_, model.probabilities_)


def test_saving_over_another_run_replaces_it(fitted: AnomalyNCD, line: Line, tmp_path: Path) -> None:
    base = ([line.images[-1]], [line.masks[-1]], ["a"])
    AnomalyNCD(n_classes=2, **TINY).fit(line.images, masks=line.masks, base=base).save(tmp_path / "run")
    assert (tmp_path / "run/base").exists()
    fitted.save(tmp_path / "run")
    fitted.save(tmp_path / "fresh")
    files = [
        {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for run in (tmp_path / "run", tmp_path / "fresh")
    ]
    assert files[0] == files[1]


def test_saving_spares_what_is_not_a_run(fitted: AnomalyNCD, tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/mine.png").touch()
    with pytest.raises(RunError, match="holds other files"):
        fitted.save(tmp_path)
    assert (tmp_path / "masks/mine.png").exists()


def test_a_run_is_not_saved_into_itself(line: Line, tmp_path: Path) -> None:
    model = AnomalyNCD(n_classes=4, **TINY).fit(line.images, masks=line.masks, run=tmp_path / "run")
    model.save(tmp_path / "run")
    for inside in (tmp_path / "run/copy", tmp_path):
        with pytest.raises(RunError, match="inside itself"):
            model.save(inside)
    assert AnomalyNCD.load(tmp_path / "run").labels_.tolist() == model.labels_.tolist()


def test_a_failed_fit_leaves_the_fitted_model_alone(line: Line, tmp_path: Path) -> None:
    model = AnomalyNCD(n_classes=4, **TINY).fit(line.images, masks=line.masks)
    with pytest.raises(DataError):
        model.fit(line.images[:1], masks=line.masks[:1], base=([], [], []))
    with pytest.raises(DataError, match="none of the 1 images could be read"):
        model.fit(["nowhere.png"], masks=[None])
    model.save(tmp_path / "run")
    assert AnomalyNCD.load(tmp_path / "run").labels_.tolist() == model.labels_.tolist()


def test_random_state_is_the_only_chance(line: Line) -> None:
    def probabilities(seed: int) -> np.ndarray:
        settings = {**TINY, "learn": {"epochs": 2, "start": "random"}}
        model = AnomalyNCD(n_classes=4, random_state=seed, **settings)
        return model.fit(line.images, masks=line.masks).probabilities_

    np.testing.assert_array_equal(probabilities(0), probabilities(0))
    assert not np.array_equal(probabilities(0), probabilities(1))


def test_probabilities_and_features_as_tables(fitted: AnomalyNCD, line: Line) -> None:
    np.testing.assert_array_equal(
        fitted.predict_proba(line.images[:5], maps=line.maps[:5]),
        fitted.predict(line.images[:5], maps=line.maps[:5]).probabilities,
    )
    features = fitted.region_features()
    assert list(features.index) == list(fitted.regions_[["image", "region"]].itertuples(index=False, name=None))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4)
    same = fitted.regions_["label"].to_numpy()[:, None] == fitted.regions_["label"].to_numpy()
    alike = features.to_numpy() @ features.to_numpy().T
    assert alike[same].mean() > alike[~same].mean()


def test_models_on_masks_take_no_maps(fitted_on_masks: AnomalyNCD, line: Line) -> None:
    with pytest.raises(DataError, match="fitted on masks"):
        fitted_on_masks.predict(line.images, maps=line.maps)


def test_models_on_maps_take_masks_too(fitted: AnomalyNCD, line: Line) -> None:
    prediction = fitted.predict(line.images, masks=line.masks)
    assert (prediction.labels == 0).tolist() == [mask is None for mask in line.masks]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_classes": "many"}, "n_classes must be a whole number"),
        ({"n_classes": 3.0}, "n_classes must be a whole number"),
        ({"n_classes": True}, "n_classes must be a whole number"),
        ({"n_classes": 1}, "at least 2"),
        ({"n_classes": 10**9}, "n_classes"),
        ({"n_classes": 3, "preset": "best"}, "preset must be one of fast, paper"),
        ({"n_classes": 3, "learn": {"epoch": 1}}, "did you mean learn.epochs"),
        ({"n_classes": 3, "epochs": 1}, "no setting epochs"),
        ({"n_classes": 3, "device": "cray"}, "device 'cray' cannot be used here"),
        ({"n_classes": 3, "device": "meta"}, "device 'meta' cannot be used here"),
        ({"n_classes": 3, "random_state": -1}, "random_state"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str, line: Line) -> None:
    model = AnomalyNCD(**{"backbone": "tiny", **arguments})
    with pytest.raises(SettingsError, match=words):
        model.fit(line.images, masks=line.masks)


def test_a_numpy_number_of_classes(line: Line) -> None:
    model = AnomalyNCD(n_classes=np.int64(2), **TINY).fit(line.images, masks=line.masks)  # type: ignore[arg-type]
    assert model.classes_.tolist() == [0, 1]


@pytest.mark.parametrize("use", ["predict", "save"])
def test_not_fitted_yet(use: str, tmp_path: Path) -> None:
    model = AnomalyNCD(3)
    with pytest.raises(SettingsError, match="not fitted yet"):
        model.predict([np.zeros((8, 8, 3), np.uint8)], masks=[None]) if use == "predict" else model.save(tmp_path)


def test_loading_what_is_no_run(tmp_path: Path, fitted: AnomalyNCD) -> None:
    with pytest.raises(RunError, match=r"expected a finished run with images\.csv"):
        AnomalyNCD.load(tmp_path)
    with pytest.raises(RunError, match="expected a finished run"):
        AnomalyNCD.load(tmp_path / "nowhere")
    fitted.save(tmp_path / "run")
    with pytest.raises(SettingsError, match="device"):
        AnomalyNCD.load(tmp_path / "run", device="cray")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", b"x" * 100, r"model\.safetensors: damaged, .*`discover`"),
        ("model.safetensors", b"", r"model\.safetensors: damaged"),
        ("model.safetensors", None, r"expected a finished run with model\.safetensors"),
        ("images.csv", None, r"expected a finished run with images\.csv"),
        ("images.csv", b"image,label\na,1\n", r"images\.csv: .* has no column class_name"),
        ("regions.csv", None, r"regions\.csv"),
        ("manifest.csv", b"", r"manifest\.csv"),
        ("loss.csv", b"\xff", r"loss\.csv"),
    ],
)
def test_loading_a_damaged_run(
    file: str, content: bytes | None, words: str, fitted: AnomalyNCD, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "run")
    if content is None:
        (tmp_path / "run" / file).unlink()
    else:
        (tmp_path / "run" / file).write_bytes(content)
    with pytest.raises(RunError, match=words):
        AnomalyNCD.load(tmp_path / "run")


def test_a_model_of_another_format_is_named(
    fitted: AnomalyNCD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path / "run")
    monkeypatch.setattr("anomalyncd.discovery.model.FORMAT", 99)
    with pytest.raises(RunError, match=r"written by anomalyncd .*, which this version cannot read"):
        AnomalyNCD.load(tmp_path / "run")


def test_every_class_of_a_combined_image_is_listed(line: Line) -> None:
    """A bright square and a red line, alone and together: the mechanism, with defects that no network can confuse."""
    rng = np.random.default_rng(0)
    images, masks = [], []
    for kinds in [{1}, {2}] * 5 + [{1, 2}, {2}]:
        image, mask = rng.integers(0, 60, (96, 96, 3)).astype(np.uint8), np.zeros((96, 96), bool)
        shift = int(rng.integers(0, 8))
        if 1 in kinds:
            image[8 + shift : 32 + shift, 40:68], mask[8 + shift : 32 + shift, 40:68] = 250, True
        if 2 in kinds:
            image[70 + shift : 74 + shift, 4:92], mask[70 + shift : 74 + shift, 4:92] = (220, 0, 0), True
        images.append(image)
        masks.append(mask)
    settings = {**TINY, "features": {"views": 2, "image": 0}}
    model = AnomalyNCD(n_classes=3, **settings).fit(images, masks=masks)
    square, red = model.labels_[0], model.labels_[1]
    assert {square, red} == {1, 2}
    assert set(model.images_["classes"][10].split(";")) == {"1", "2"} and model.images_["n_regions"][10] == 2
    assert model.images_["classes"][11] == str(red)
    together = model.regions_[model.regions_["image"] == "image_000010"].sort_values("y")
    assert together["label"].tolist() == [square, red]


def test_importing_the_estimator_loads_no_torch() -> None:
    """It is what takes seconds: all of it under 2 s of processor time is measured in no test, but follows from this."""
    source = (
        "import sys\nfrom anomalyncd import AnomalyNCD\nAnomalyNCD(3)\n"
        "print({'torch', 'timm', 'torchvision', 'matplotlib', 'onnx', 'fastapi', 'numba'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_public_names() -> None:
    for name in anomalyncd.__all__:
        assert getattr(anomalyncd, name) is not None
    with pytest.raises(AttributeError):
        anomalyncd.nothing  # noqa: B018


def test_shards_do_not_show(fitted: AnomalyNCD, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD", 5)
    model = AnomalyNCD(n_classes=4, **TINY).fit(line.images, maps=line.maps)
    assert model.labels_.tolist() == fitted.labels_.tolist()


def test_images_without_a_region_can_be_learned_as_the_papers_code_does() -> None:
    images = np.random.default_rng(0).integers(0, 80, (8, 64, 64, 3), dtype=np.uint8)
    masks = np.zeros((8, 64, 64), bool)
    images[:4, 16:48, 16:48], masks[:4, 16:48, 16:48] = 255, True
    model = AnomalyNCD(2, backbone="tiny", crop={"no_region": "learned"}, features={"views": 2})
    model.fit(list(images), masks=list(masks))
    assert model.images_["n_regions"].tolist() == [1] * 8
    assert model.regions_["score"].tolist() == [1.0] * 4 + [0.0] * 4
    assert model.model_.n_region_classes == 2
    assert model.labels_.tolist() == [1] * 4 + [0] * 4


@pytest.mark.parametrize("no_region", ["gate", "normal"])
def test_a_defect_without_a_stable_region_is_cut_out_where_its_score_tells_it(no_region, tmp_path):
    """The threshold is too high for all defects but one; their scores stand far above those of normal images."""
    rng = np.random.default_rng(0)
    images = [rng.integers(90, 110, (64, 64, 3), dtype=np.uint8) for _ in range(24)]
    maps = [rng.uniform(0, 0.1, (64, 64)).astype(np.float32) for _ in range(24)]
    for index in range(12):
        kind = slice(8, 24) if index % 2 else slice(30, 50)
        images[index][kind, 20:40] = [200, 30, 30] if index % 2 else [20, 220, 220]
        maps[index][kind, 20:40] = 1.0 if index == 0 else rng.uniform(0.6, 0.9)
    model = AnomalyNCD(
        3, backbone="tiny", crop={"no_region": no_region}, features={"views": 2}, learn={"epochs": 5},
        binarize={"method": "fixed", "fixed_threshold": 0.95, "min_map_size": 0},
    )  # fmt: skip
    if no_region == "normal":
        with pytest.raises(DataError, match="found 1 anomalous region, but 2"):
            model.fit(images, maps=maps)
        return
    model.fit(images, maps=maps)
    assert (model.labels_[12:] == 0).all()
    assert len(set(model.labels_[:12:2])) == len(set(model.labels_[1:12:2])) == 1
    assert set(model.labels_[:12]) == {1, 2}
    assert model.regions_.groupby("image").size().tolist() == [1] * 12
    assert model.predict(images, maps=maps).labels.tolist() == model.labels_.tolist()
    model.save(tmp_path / "run")
    restored = AnomalyNCD.load(tmp_path / "run")
    assert restored.predict(images[:3], maps=maps[:3]).labels.tolist() == model.labels_[:3].tolist()


def test_it_follows_scikit_learn(line: Line, fitted: AnomalyNCD) -> None:
    model = AnomalyNCD(4, random_state=3, learn={"epochs": 2}, features={"views": 1})
    assert model.get_params(deep=False) == model.get_params(deep=False)
    assert model.get_params()["learn__epochs"] == 2 and model.get_params()["n_classes"] == 4
    copy = clone(model)
    assert copy is not model and copy.get_params() == model.get_params()
    copy.set_params(n_classes=3, learn__epochs=5, merge={"how": "average"})
    assert (copy.n_classes, copy.settings["learn"], copy.settings["merge"]) == (3, {"epochs": 5}, {"how": "average"})
    assert model.settings["learn"] == {"epochs": 2}
    assert (
        " ".join(repr(model).split())
        == "AnomalyNCD(features={'views': 1}, learn={'epochs': 2}, n_classes=4, random_state=3)"
    )
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.predict(line.images, maps=line.maps)
    with pytest.raises(AnomalyNCDError, match="not fitted yet"):
        model.save("run")
    labels = AnomalyNCD(3, **TINY).fit_predict(line.images, masks=line.masks)
    assert labels.shape == (len(line.images),)


def test_a_misspelt_setting_is_told_at_fit_with_the_nearest_name(line: Line) -> None:
    for wrong, near in (({"lern": {"epochs": 3}}, "learn"), ({"learn": {"epoch": 3}}, "learn.epochs")):
        with pytest.raises(SettingsError, match=f"did you mean {near}"):
            AnomalyNCD(3, **wrong).fit(line.images, masks=line.masks)


def test_a_loaded_model_says_in_what_it_differs_from_its_preset(fitted: AnomalyNCD, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    loaded = AnomalyNCD.load(tmp_path / "run")
    assert loaded._config() == fitted.model_.config.model_copy(update={"device": "auto"})
    assert "epochs" in repr(loaded) and "learning_rate" not in repr(loaded)


def test_the_detector_is_chosen_by_what_is_given(line: Line) -> None:
    small = {**TINY, "detect": {"settings": {"size": 64, "map_size": 64}}}
    assert AnomalyNCD(3, **small).fit(line.images).model_.config.detect.name == "musc"
    normal = line.images[:2]
    bank = {**TINY, "detect": {"settings": {"size": 64, "map_size": 64, "bank_size": 50}}}
    assert AnomalyNCD(3, **bank).fit(line.images, normal=normal).model_.config.detect.name == "patchcore"
    given = AnomalyNCD(3, **small).set_params(detect={"name": "musc"}).fit(line.images, maps=line.maps)
    assert given.model_.config.detect.name is None
    with_maps = gather(line.images, line.maps)
    for more in ({"detector": "musc"}, {"normal": normal}):
        with pytest.raises(DataError, match="maps, masks or a detector, only one of them"):
            AnomalyNCD(3, **small).fit(with_maps, **more)


def test_only_public_names_are_shown() -> None:
    assert sorted(dir(anomalyncd)) == sorted([*anomalyncd.__all__, "__version__"])


@pytest.mark.parametrize("name", ["preset", "n_classes", "backbone"])
def test_arrays_in_the_place_of_words_are_told(name: str) -> None:
    with pytest.raises(SettingsError):
        AnomalyNCD(**{"n_classes": 3, name: np.zeros((4, 4))})._config()


def test_a_detector_of_a_wrong_kind_is_told() -> None:
    with pytest.raises(WrongTypeError, match="detector: expected a name or a detector, but got ndarray"):
        AnomalyNCD(3).fit("images", detector=np.zeros(3))
