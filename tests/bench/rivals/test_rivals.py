"""All rivals on generated images (base.py): what they find, keep and say.

Covers anomaly_clustering, frozen, gcd, simgcd, uniformaly.
"""

import csv
import shutil

import cv2
import numpy as np
import pytest

from anomalyncd.bench.rivals import RIVALS
from anomalyncd.data.gather import gather, gather_base, gather_normal
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.metrics import evaluate
from anomalyncd.model.backbone import MaskGuidedViT

SIDE = 32
# Tiny, and slow enough in its learning not to undo what the frozen trunk sees.
QUICK = {
    "anomaly-clustering": {},
    "anomaly-clustering-semi": {},
    "uniformaly": {},
    "gcd": {"epochs": 1, "bank_views": 3, "learning_rate": 1e-3, "batch_size": 16},
    "simgcd": {"epochs": 1, "bank_views": 3, "learning_rate": 0.1, "batch_size": 16},
    "amend": {"epochs": 2, "bank_views": 3, "batch_size": 16},
    "uno": {"epochs": 2, "bank_views": 3},
    "iic": {"epochs": 2, "bank_views": 3},
    "gatcluster": {"epochs": 1, "bank_views": 3},
    "scan": {"epochs": 5, "bank_views": 3},
    "frozen-kmeans": {"bank_views": 3},
}
NAMES = list(RIVALS)
LEARN_LONGER = ("iic", "gatcluster", "scan", "uno", "amend")  # what they solve stands in test_easy.py


def picture(kind, rng):
    image = rng.integers(100, 116, (SIDE, SIDE, 3), dtype=np.uint8)
    if kind == 1:
        image[..., 0] += 130
    if kind == 2:
        image[::4] = 0
    return image


def dataset(n_each=5, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(3), n_each))
    images = [picture(kind, rng) for kind in truth]
    values = np.zeros((SIDE, SIDE), np.float32)
    values[:16, :16] = 1  # one patch of the tiny backbone
    return images, [values * (kind > 0) for kind in truth], truth


def make(name, n_classes=3, **settings):
    return RIVALS[name](n_classes, backbone="tiny", size=SIDE, **{**QUICK[name], **settings})


def fit(model, images, maps=None, masks=None, base=None, normal=None, run=None):
    """Fit to what `AnomalyNCD.fit` takes."""
    found = gather(images, maps, masks)
    return model.fit(found, base=gather_base(base), normal=gather_normal(normal), run=run)


@pytest.fixture(scope="module")
def normal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("normal")
    rng = np.random.default_rng(7)
    for index in range(4):
        cv2.imwrite(str(folder / f"{index}.png"), picture(0, rng))
    return folder


@pytest.fixture
def trunk_calls(monkeypatch):
    calls = []
    for name in ("trunk", "block_tokens"):
        original = getattr(MaskGuidedViT, name)

        def counted(self, *args, original=original, **kwargs):
            calls.append(1)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(MaskGuidedViT, name, counted)
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_separates_easy_groups_and_is_deterministic(name, normal):
    images, maps, truth = dataset()
    longer = {"epochs": 40, "learning_rate": 0.05, "batch_size": 8} if name == "simgcd" else {}
    model = fit(make(name, **longer), images, maps=maps, normal=normal)
    if name not in LEARN_LONGER:
        assert evaluate(truth, model.labels_).f1 == 1.0 and set(model.labels_) == {0, 1, 2}
    assert model.labels_.dtype == np.int64 and set(model.labels_) <= {0, 1, 2}
    assert model.features_.shape[0] == 15 and model.features_.dtype == np.float32
    assert model.images_["label"].tolist() == model.labels_.tolist()
    assert model.seconds_ and all(value >= 0 for value in model.seconds_.values())
    again = fit(make(name, **longer), images, maps=maps, normal=normal)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    np.testing.assert_array_equal(again.features_, model.features_)


@pytest.mark.parametrize("name", NAMES)
def test_clusters_are_numbered_by_size_and_not_by_the_order_of_the_images(name, normal):
    images, maps, truth = dataset()
    more = np.flatnonzero(truth == 1)[:4].tolist()
    chosen = [*np.flatnonzero(truth == 0)[:2], *np.flatnonzero(truth == 2)[:3], *more]
    model = fit(make(name), [images[i] for i in chosen], maps=[maps[i] for i in chosen], normal=normal)
    assert (np.diff(np.bincount(model.labels_, minlength=3)) <= 0).all()
    turned = fit(make(name), [images[i] for i in chosen[::-1]], maps=[maps[i] for i in chosen[::-1]], normal=normal)
    np.testing.assert_array_equal(turned.labels_[::-1], model.labels_)
    np.testing.assert_allclose(turned.features_[::-1], model.features_)


@pytest.mark.parametrize("name", NAMES)
def test_folder_names_change_no_prediction(name, normal, tmp_path):
    """Labels reach only metrics: the same files under other class names are clustered alike."""
    images, maps, truth = dataset(4)
    rng = np.random.default_rng(3)
    found = {}
    for round_, labels in enumerate([truth, rng.permutation(truth)]):
        root = tmp_path / str(round_)
        for index, (image, values, label) in enumerate(zip(images, maps, labels, strict=True)):
            place = f"{'good' if label == 0 else f'defect{label}'}/{(index * 7 + round_ * 5) % 12:03d}"
            for kind, data in (("test", image), ("maps", values)):
                path = root / kind / f"{place}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                if kind == "test":
                    cv2.imwrite(str(path), data)
                else:
                    np.save(path.with_suffix(".npy"), data)
        model = fit(make(name), root / "test", maps=root / "maps", normal=normal, run=tmp_path / "cache")
        contents = [(root / "test" / place).read_bytes() for place in model.images_["image"]]
        found[round_] = dict(zip(contents, model.labels_.tolist(), strict=True))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_does_not_run_the_trunk_again(name, normal, tmp_path, trunk_calls):
    images, maps, _ = dataset()
    fit(make(name, random_state=0), images, maps=maps, normal=normal, run=tmp_path)
    assert trunk_calls
    trunk_calls.clear()
    fit(make(name, random_state=1), images, maps=maps, normal=normal, run=tmp_path)
    assert not trunk_calls
    assert not list(tmp_path.rglob("*.partial")) and not list(tmp_path.rglob("*.pkl"))
    fit(make(name), [255 - image for image in images], maps=maps, normal=normal, run=tmp_path)
    assert trunk_calls  # other images are not taken for these


def test_rivals_that_learn_share_their_views(tmp_path, trunk_calls):
    images, _, _ = dataset()
    base = (images[:4], [None] * 4, ["a", "a", "b", "b"])
    fit(make("gcd"), images, base=base, run=tmp_path)
    trunk_calls.clear()
    for name in ("simgcd", "amend", "uno", "iic", "gatcluster", "scan", "frozen-kmeans"):
        found = fit(make(name), images, base=base, run=tmp_path)
        assert not trunk_calls, name
        assert set(found.labels_) <= {0, 1, 2} and found.seconds_["views"] < 60


def test_a_half_written_cache_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    images, _, truth = dataset()
    original = MaskGuidedViT.block_tokens
    monkeypatch.setattr(MaskGuidedViT, "block_tokens", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(make("anomaly-clustering"), images, run=tmp_path)
    monkeypatch.setattr(MaskGuidedViT, "block_tokens", original)
    assert evaluate(truth, fit(make("anomaly-clustering"), images, run=tmp_path).labels_).f1 == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_too_few_images_are_named(name):
    images, maps, _ = dataset()
    with pytest.raises(DataError, match=r"found 1 image, but 3 classes were asked for"):
        fit(make(name), images[:1], maps=maps[:1])
    with pytest.raises(DataError, match="found 2 images"):
        fit(make(name), images[:2], maps=maps[:2])


def test_wrong_settings_and_missing_inputs_are_named():
    images, maps, _ = dataset(2)
    with pytest.raises(SettingsError, match="n_classes must be"):
        fit(make("gcd", n_classes=1), images)
    with pytest.raises(SettingsError, match="temperature"):
        fit(make("anomaly-clustering", temperature=0), images)
    with pytest.raises(DataError, match="needs maps or masks"):
        fit(make("anomaly-clustering", weights="given"), images)
    with pytest.raises(DataError, match="distance to normal images"):
        fit(make("anomaly-clustering-semi"), images, maps=maps)
    with pytest.raises(DataError, match="maps, masks, or normal images"):
        fit(make("uniformaly"), images)
    with pytest.raises(SettingsError, match="epochs must be at least 1"):
        fit(make("gcd", epochs=-1), images)
    with pytest.raises(SettingsError, match="diverged"):
        fit(make("gcd", learning_rate=1e30, epochs=3), images)
    with pytest.raises(SettingsError, match="learning_rate must be above 0"):
        fit(make("iic", learning_rate=0.0), images)
    with pytest.raises(SettingsError, match="batch_size must be at least 2"):
        fit(make("uno", batch_size=1), images)
    with pytest.raises(SettingsError, match="supervised_weight must be from 0 to 1"):
        fit(make("amend", supervised_weight=1.5), images)
    with pytest.raises(SettingsError, match="neighbours must be at least 1"):
        fit(make("scan", neighbours=0), images)
    with pytest.raises(SettingsError, match="confidence must be from 0 to 1"):
        fit(make("scan", confidence=2.0), images)


def test_an_unreadable_image_is_left_out(tmp_path):
    images, _, truth = dataset(3)
    for index, image in enumerate(images):
        cv2.imwrite(str(tmp_path / f"{index}.png"), image)
    (tmp_path / "4.png").write_bytes(b"not a picture")
    paths = [tmp_path / f"{index}.png" for index in range(9)]
    model = fit(make("anomaly-clustering"), paths)
    assert model.images_["image"].tolist() == [path.as_posix() for path in paths if path.name != "4.png"]
    assert evaluate(np.delete(truth, 4), model.labels_).f1 == 1.0


def test_a_table_may_bring_masks_or_nothing(tmp_path):
    images, _, truth = dataset(3)
    for index, image in enumerate(images):
        cv2.imwrite(str(tmp_path / f"{index}.png"), image)
    cv2.imwrite(str(tmp_path / "mask.png"), np.pad(np.full((16, 16), 255, np.uint8), (0, 16)))
    features = []
    for columns in ([], ["mask.png"]):
        with (tmp_path / "images.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["image", "label", "mask"][: 2 + len(columns)])
            rows.writerows([f"{index}.png", f"kind{kind}", *columns] for index, kind in enumerate(truth))
        model = fit(make("anomaly-clustering"), tmp_path / "images.csv")
        assert evaluate(truth, model.labels_).f1 == 1.0
        features.append(model.features_)
    assert np.abs(features[0] - features[1]).max() > 1e-3


def test_the_cache_may_not_lie_among_the_images(tmp_path):
    images, _, _ = dataset(2)
    for index, image in enumerate(images):
        (tmp_path / "good").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "good" / f"{index}.png"), image)
    with pytest.raises(SettingsError, match="inside"):
        fit(make("anomaly-clustering"), tmp_path, run=tmp_path / "run")
    shutil.rmtree(tmp_path)


def test_base_labels_train_but_their_names_do_not_matter(tmp_path):
    images, _, _ = dataset()
    base = [picture(kind, np.random.default_rng(kind)) for kind in (1, 2, 1, 2)]
    runs = [
        fit(make(name), images, base=(base, [None] * 4, names), run=tmp_path)
        for name in ("gcd", "simgcd", "amend", "uno")
        for names in (["x", "y", "x", "y"], ["p", "q", "p", "q"], ["x", "x", "y", "y"])
    ]
    for same, other, different in (runs[start : start + 3] for start in range(0, len(runs), 3)):
        np.testing.assert_array_equal(same.features_, other.features_)
        assert np.abs(same.features_ - different.features_).max() > 1e-6
