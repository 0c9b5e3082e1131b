"""Discovery on made-up features with clear clusters, and on pictures through a tiny network.

Covers fit.
"""

import json

import numpy as np
import pytest
import torch

from anomalyncd.assign.images import novel_probabilities
from anomalyncd.config import make_config
from anomalyncd.errors import DataError
from anomalyncd.learn import fit as module
from anomalyncd.learn.classifier import Classifier
from anomalyncd.learn.features import RegionEncoder
from anomalyncd.learn.fit import BANK, RegionSet, fit_classifier, install
from anomalyncd.learn.losses import Temperatures
from anomalyncd.metrics import evaluate
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

SIDE = 64


def no_crops(index):
    raise AssertionError("crops are not needed when only heads learn")


def region_set(kinds, seed, *, labels=None, scores=None, noise=0.04):
    """Regions whose patches and image lie around axis `kind` of the 48-dimensional feature space, in two blocks."""
    rng = np.random.default_rng(seed)
    kinds = np.asarray(kinds)
    parts = {}
    for name in ("patches", "image"):
        noisy = np.eye(48)[kinds][:, None, None] + rng.normal(0, noise, (len(kinds), 4, 2, 48))
        parts[name] = (noisy / np.linalg.norm(noisy, axis=-1, keepdims=True)).astype(np.float16)
    scores = np.ones(len(kinds), np.float32) if scores is None else scores
    return RegionSet(parts, scores, no_crops, labels)


def heads_only(**learn):
    return make_config({"learn": {"epochs": 8, **learn}})


@pytest.fixture
def vit():
    return MaskGuidedViT(tiny_vit()).requires_grad_(False)


@pytest.fixture
def truth():
    return np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [12, 20, 7]))


def classes(classifier, parts):
    return novel_probabilities(classifier.cosines(parts), classifier.n_base, classifier.temperature).argmax(axis=1)


@pytest.mark.parametrize("start", ["clusters", "random"])
def test_clear_clusters_are_found(tmp_path, vit, truth, start):
    novel = region_set(truth, seed=1)
    config = heads_only(start=start, epochs=30, entropy_weight=1.0)
    found = fit_classifier(novel, None, 3, config, vit, workspace=tmp_path)
    assert found.n_classes == 3 and found.n_base == 0 and found.weight.shape == (3, 192)
    np.testing.assert_allclose(np.linalg.norm(found.weight, axis=1), 1, rtol=1e-5)
    assert evaluate(truth, classes(found, novel.parts)).f1 == 1
    new = region_set([0, 1, 2, 2], seed=9)
    assert evaluate([*truth, 0, 1, 2, 2], [*classes(found, novel.parts), *classes(found, new.parts)]).f1 == 1
    assert len(found.history) == 30 and found.last_block == {}


@pytest.mark.parametrize("start", ["clusters", "random"])
def test_base_classes_are_learned_and_take_no_novel_region(tmp_path, vit, truth, start):
    """Kinds 3 and 4 are the base, 0 … 2 are to be found; look-alikes of the base get a novel class too."""
    labels = np.repeat([0, 1], 10)
    novel, base = region_set(truth, seed=1), region_set(labels + 3, seed=2, labels=labels)
    config = heads_only(start=start, epochs=30, entropy_weight=1.0)
    found = fit_classifier(novel, base, 3, config, vit, workspace=tmp_path)
    assert found.n_base == 2 and found.n_classes == 3 and found.weight.shape == (5, 192)
    assert np.array_equal(found.cosines(base.parts).argmax(axis=1), labels)
    assert evaluate(truth, classes(found, novel.parts)).f1 == 1
    alike = region_set([3, 4], seed=5)
    assert found.cosines(alike.parts).argmax(axis=1).tolist() == [0, 1]
    assert set(classes(found, alike.parts)) <= {0, 1, 2}
    assert found.history[-1]["supervised"] < 0.1


def test_without_training_a_cluster_start_gives_the_clusters(tmp_path, vit, truth):
    novel = region_set(truth, seed=1)
    found = fit_classifier(novel, None, 3, heads_only(epochs=0), vit, workspace=tmp_path)
    assert np.array_equal(classes(found, novel.parts), np.array([1, 0, 2])[truth])  # the largest first
    assert found.history == []


@pytest.mark.parametrize("weak", [0, 1, 2])
def test_the_cluster_with_the_lowest_scores_becomes_the_normal_class(tmp_path, vit, truth, weak):
    scores = np.where(truth == weak, 0.2, 0.8).astype(np.float32)
    novel = region_set(truth, seed=1, scores=scores)
    labels = np.repeat([0, 1], 6)
    for base in (None, region_set(labels + 3, seed=2, labels=labels)):
        found = fit_classifier(novel, base, 3, heads_only(), vit, workspace=tmp_path, normal=0)
        assert np.array_equal(classes(found, novel.parts) == 0, truth == weak)


@pytest.mark.parametrize(("noise", "sure"), [(0.04, True), (1.0, False)])
def test_without_training_probabilities_say_how_stable_the_clusters_are(tmp_path, vit, truth, noise, sure):
    novel = region_set(truth, seed=1, noise=noise)
    found = fit_classifier(novel, None, 3, heads_only(epochs=0), vit, workspace=tmp_path)
    chance = novel_probabilities(found.cosines(novel.parts), 0, found.temperature).max(axis=1)
    assert np.median(chance) > 0.98 if sure else np.median(chance) < 0.9
    trained = fit_classifier(novel, None, 3, heads_only(epochs=1), vit, workspace=tmp_path)
    assert trained.temperature == Temperatures.student


def test_one_region_is_one_class(tmp_path, vit):
    found = fit_classifier(region_set([0], seed=1), None, 1, heads_only(epochs=0), vit, workspace=tmp_path)
    assert found.n_classes == 1 and np.isfinite(found.weight).all()


def test_pseudo_label_correction_works_on_the_normal_column_behind_the_base(tmp_path, vit, truth, monkeypatch):
    given = []

    def recorded(*args, **options):
        given.append(options)
        return plain(*args, **options)

    plain = module.train
    monkeypatch.setattr(module, "train", recorded)
    labels = np.repeat([0, 1], 6)
    base = region_set(labels + 3, seed=2, labels=labels)
    fit_classifier(region_set(truth, 1), base, 3, heads_only(epochs=1), vit, workspace=tmp_path, normal=0)
    assert (given[0]["normal"], given[0]["n_base"]) == (2, 2)
    fit_classifier(region_set(truth, 1), base, 3, heads_only(epochs=1), vit, workspace=tmp_path)
    assert given[1]["normal"] is None


def test_the_same_seed_gives_the_same_classifier_and_leaves_torchs_own_generator_alone(tmp_path, vit, truth):
    def weight(seed):
        config = make_config({"learn": {"epochs": 2, "start": "random"}, "random_state": seed})
        return fit_classifier(region_set(truth, 1), None, 3, config, vit, workspace=tmp_path).weight

    state = torch.random.get_rng_state()
    assert np.array_equal(weight(3), weight(3))
    assert not np.array_equal(weight(3), weight(4))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_any_seed_can_be_taken(tmp_path, vit, truth):
    config = make_config({"learn": {"epochs": 1}, "random_state": 20_240_101})
    found = fit_classifier(region_set(truth, 1), None, 3, config, vit, workspace=tmp_path)
    assert evaluate(truth, classes(found, region_set(truth, 1).parts)).f1 == 1


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_fewer_different_regions_than_classes_leave_no_class_without_direction(tmp_path, vit):
    one = region_set([0, 1], seed=1)
    copies = RegionSet({k: v[[0, 1, 0, 1, 0]] for k, v in one.parts.items()}, np.ones(5, np.float32), no_crops)
    for epochs in (0, 5):
        found = fit_classifier(copies, None, 3, heads_only(epochs=epochs), vit, workspace=tmp_path)
        np.testing.assert_allclose(np.linalg.norm(found.weight, axis=1), 1, rtol=1e-5)
        a, b, *rest = classes(found, copies.parts).tolist()
        assert a != b and rest == [a, b, a]


def test_too_few_regions_are_refused(tmp_path, vit):
    with pytest.raises(DataError, match="found 2 anomalous regions, but 3"):
        fit_classifier(region_set([0, 1], 1), None, 3, heads_only(), vit, workspace=tmp_path)


@pytest.fixture(scope="module")
def pictures():
    """Twelve crops of three kinds: a bright square, dark stripes, a red corner; and their features."""
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], 4)
    crops = rng.integers(90, 120, (12, 72, 72, 3), dtype=np.uint8)
    masks = np.zeros((12, 72, 72), bool)
    masks[:, 16:56, 16:56] = True
    crops[:4, 20:52, 20:52] = 250
    crops[4:8, 16:56:4, 16:56] = 0
    crops[8:, 16:40, 16:40] = [230, 0, 0]
    return kinds, crops, masks


def picture_set(pictures, vit, config, labels=None, rows=slice(None)):
    _, crops, masks = pictures
    encoder = RegionEncoder(vit, config.features, input_size=SIDE, train_last_block=config.learn.train_last_block)
    return RegionSet(
        encoder.encode_crops(crops[rows], masks[rows]), np.ones(len(crops[rows]), np.float32),
        lambda index: (crops[rows][index], masks[rows][index]), labels,
    )  # fmt: skip


def block_config(**learn):
    return make_config(
        {
            "crop": {"size": 72},
            "model": {"input_size": SIDE},
            "features": {"class_token": 1.0, "patches": 0.5, "image": 0, "views": 2},
            "learn": {
                "train_last_block": True, "epochs": 3, "batch_size": 6, "bank_views": 3, "learning_rate": 0.02,
                "contrastive_weight": 1.0, "n_heads": 2, **learn,
            },
        }
    )  # fmt: skip


@pytest.mark.parametrize("views", ["bank", "fresh", "auto"])
@pytest.mark.parametrize("with_base", [False, True])
def test_the_last_block_is_trained_from_pictures(tmp_path, vit, pictures, views, with_base):
    config = block_config(views=views)
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    novel = picture_set(pictures, vit, config, rows=slice(4, 12) if with_base else slice(None))
    base = picture_set(pictures, vit, config, np.zeros(4, np.int64), slice(4)) if with_base else None
    banked = []
    found = fit_classifier(novel, base, 3 - with_base, config, vit, workspace=tmp_path, on_view=banked.append)
    changed = {name for name, value in vit.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all(name.startswith(("vit.blocks.4.", "vit.norm.")) for name in changed)
    assert not any(p.requires_grad for p in vit.parameters()) and not vit.vit.blocks[-1].training
    assert banked == ([] if views == "fresh" else list(range(12)))
    assert not (tmp_path / BANK).exists()
    kinds = pictures[0][4:] if with_base else pictures[0]
    trained = picture_set(pictures, vit, config, rows=slice(4, 12) if with_base else slice(None))
    assert not np.allclose(trained.parts["class_token"], novel.parts["class_token"], atol=1e-3)
    assert np.array_equal(trained.parts["patches"], novel.parts["patches"])
    assert evaluate(kinds, classes(found, trained.parts)).f1 == 1
    assert all(np.isfinite(row["loss"]) for row in found.history) and len(found.history) == 3


def test_base_pictures_are_read_from_the_base_set(tmp_path, vit, pictures):
    config = block_config(views="fresh", epochs=1)
    read = {"novel": set(), "base": set()}

    def noted(name, regions):
        def crops(index):
            read[name].add(index)
            return regions.crops(index)

        return RegionSet(regions.parts, regions.scores, crops, regions.labels)

    novel = noted("novel", picture_set(pictures, vit, config, rows=slice(3, 12)))
    base = noted("base", picture_set(pictures, vit, config, np.zeros(3, np.int64), slice(3)))
    fit_classifier(novel, base, 2, config, vit, workspace=tmp_path)
    assert read["base"] and read["base"] <= {0, 1, 2} and max(read["novel"]) > 2


def test_a_trained_block_is_a_copy_that_a_second_training_does_not_touch(tmp_path, vit, pictures):
    config = block_config(views="bank", epochs=1)
    novel = picture_set(pictures, vit, config)
    first = fit_classifier(novel, None, 3, config, vit, workspace=tmp_path)
    kept = {name: value.copy() for name, value in first.last_block.items()}
    fit_classifier(novel, None, 3, config, vit, workspace=tmp_path)
    assert kept and all(np.array_equal(value, first.last_block[name]) for name, value in kept.items())


def test_a_classifier_survives_being_written_and_read(tmp_path, vit, pictures):
    config = block_config(views="bank")
    labels = np.zeros(4, np.int64)
    novel, base = picture_set(pictures, vit, config), picture_set(pictures, vit, config, labels, slice(4))
    found = fit_classifier(novel, base, 3, config, vit, workspace=tmp_path)
    settings = json.loads(json.dumps(found.settings()))
    back = Classifier.restore({name: value.copy() for name, value in found.tensors().items()}, settings)
    parts = picture_set(pictures, vit, config).parts
    assert np.array_equal(back.cosines(parts), found.cosines(parts))
    assert (back.n_base, back.n_classes, back.temperature) == (1, 3, 0.1)

    another = MaskGuidedViT(tiny_vit())
    install(back, another)
    again = picture_set(pictures, another, config).parts
    assert all(np.array_equal(again[name], parts[name]) for name in parts)


def test_renumber_moves_the_novel_classes_only(tmp_path, vit, truth):
    labels = np.repeat([0, 1], 6)
    base = region_set(labels + 3, seed=2, labels=labels)
    novel = region_set(truth, seed=1)
    found = fit_classifier(novel, base, 3, heads_only(epochs=1), vit, workspace=tmp_path)
    before = found.cosines(novel.parts)
    order = np.array([2, 0, 1])
    found.renumber(order)
    after = found.cosines(novel.parts)
    assert np.array_equal(after[:, :2], before[:, :2])
    for new, old in enumerate(order):
        np.testing.assert_allclose(after[:, 2 + new], before[:, 2 + old], rtol=1e-6)
