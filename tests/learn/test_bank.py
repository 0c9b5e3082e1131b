"""Both sources of views: what they hand out, and that training cannot tell them apart."""

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch

from anomalyncd.config import make_config
from anomalyncd.errors import DataError
from anomalyncd.learn import bank
from anomalyncd.learn.bank import Crops, Views, draw_two, fill_bank
from anomalyncd.learn.network import RegionNet
from anomalyncd.learn.trainer import train
from anomalyncd.learn.views import random_view
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

SIDE, N_REGIONS, EPOCHS, BATCH = 32, 6, 3, 3
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vit():
    return MaskGuidedViT(tiny_vit()).requires_grad_(False)


@pytest.fixture(scope="module")
def crops():
    rng = np.random.default_rng(0)
    masks = np.zeros((N_REGIONS, 40, 40), bool)
    for index, mask in enumerate(masks):
        mask[10 : 30 - index, 8 + index : 30] = True
    return list(zip(rng.integers(0, 256, (N_REGIONS, 40, 40, 3), dtype=np.uint8), masks, strict=True))


def fill(path, vit, crops, **change):
    options = {"n_views": 5, "batch_size": 2, "seed": 7, **change}
    return fill_bank(path, vit, Crops(crops.__getitem__, len(crops), SIDE), **options)


def test_a_bank_holds_the_tokens_of_its_views(tmp_path, vit, crops):
    tokens, keep = fill(tmp_path, vit, crops)
    assert (tokens.shape, tokens.dtype) == ((N_REGIONS, 5, 5, 48), np.float16)
    assert (keep.shape, keep.dtype) == ((N_REGIONS, 5, 4), np.bool_)
    rng = np.random.default_rng([7, 4])
    for view in range(5):
        image, mask = random_view(*crops[4], SIDE, rng)
        with torch.no_grad():
            wanted, kept, _ = vit.trunk(torch.from_numpy(image).permute(2, 0, 1)[None], torch.from_numpy(mask)[None])
        np.testing.assert_allclose(tokens[4, view], wanted[0], atol=5e-3)
        assert np.array_equal(keep[4, view], kept[0])


def test_a_bank_depends_on_its_seed_and_not_on_the_batch_size(tmp_path, vit, crops):
    tokens, keep = fill(tmp_path / "one", vit, crops)
    again, _ = fill(tmp_path / "again", vit, crops)
    whole, whole_keep = fill(tmp_path / "whole", vit, crops, batch_size=16)
    other, _ = fill(tmp_path / "other", vit, crops, seed=8)
    assert np.array_equal(tokens, again)
    np.testing.assert_allclose(tokens, whole, atol=5e-3)
    assert np.array_equal(keep, whole_keep)
    assert np.abs(tokens.astype(float) - other).max() > 0.1


def test_the_first_regions_of_a_bank_do_not_depend_on_how_many_follow(tmp_path, vit, crops):
    few, _ = fill(tmp_path / "few", vit, crops[:2])
    all_of_them, _ = fill(tmp_path / "all", vit, crops)
    assert np.array_equal(few, all_of_them[:2])


def test_every_region_is_reported(tmp_path, vit, crops):
    seen = []
    fill(tmp_path, vit, crops, on_region=seen.append)
    assert seen == list(range(N_REGIONS))


def test_a_bank_that_does_not_fit_on_the_disk_is_refused(tmp_path, vit, crops, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(bank.shutil, "disk_usage", lambda _: usage(10, 10, N_REGIONS * 5 * 5 * 48 * 2 - 1))
    with pytest.raises(DataError, match=r"view bank needs .* MB.*bank_views"):
        fill(tmp_path, vit, crops)
    assert not (tmp_path / "tokens.npy").exists()


@pytest.mark.parametrize("n_views", [2, 3, 8])
def test_draw_two_gives_two_different_views_and_every_pair(n_views):
    first, second = draw_two(3000, n_views, np.random.default_rng(0))
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    assert pairs == {(a, b) for a in range(n_views) for b in range(n_views) if a != b}


def test_draw_two_of_one_view_gives_it_twice():
    first, second = draw_two(4, 1, np.random.default_rng(0))
    assert first.tolist() == second.tolist() == [0] * 4


def test_vector_views_are_two_of_the_regions_own_views():
    vectors = np.arange(4 * 3, dtype=np.float32).reshape(4, 3, 1)  # region r, view v: 3r + v
    views = Views(CPU, vectors)
    indices = np.array([3, 0, 3])
    one, two = views.pair(indices, np.random.default_rng(0))
    assert one.tokens is None and one.vectors.dtype == torch.float32
    for batch in (one, two):
        assert (batch.vectors[:, 0] // 3).tolist() == indices.tolist()
    assert (one.vectors != two.vectors).all()


def test_bank_views_join_tokens_and_vectors_of_the_same_region():
    tokens = np.arange(4 * 3, dtype=np.float16).reshape(4, 3, 1, 1)
    keep = np.broadcast_to(np.arange(4)[:, None, None] % 2 == 0, (4, 3, 2)).copy()
    views = Views(CPU, np.arange(4, dtype=np.float32).reshape(4, 1, 1), bank=(tokens, keep))
    indices = np.array([2, 1])
    one, two = views.pair(indices, np.random.default_rng(0))
    for batch in (one, two):
        assert (batch.tokens[:, 0, 0] // 3).tolist() == batch.vectors[:, 0].tolist() == indices.tolist()
        assert batch.keep[:, 0].tolist() == [True, False]
    assert (one.tokens != two.tokens).all()


def test_fresh_views_differ_within_a_pair_and_between_calls(vit, crops):
    views = Views(CPU, fresh=(vit, Crops(crops.__getitem__, N_REGIONS, SIDE)))
    rng = np.random.default_rng(0)
    (a, b), (c, _) = views.pair(np.array([1, 2]), rng), views.pair(np.array([1, 2]), rng)
    assert a.tokens.shape == (2, 5, 48) and a.keep.shape == (2, 4) and a.vectors is None
    assert not torch.allclose(a.tokens, b.tokens) and not torch.allclose(a.tokens, c.tokens)


def run_training(vit, views):
    config = make_config(
        {"learn": {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 0.003, "n_heads": 2}}, preset="paper"
    ).learn
    torch.manual_seed(0)
    net = RegionNet(48 + 4, 3, 2, vit=vit)
    scores = np.linspace(0, 1, N_REGIONS, dtype=np.float32)
    history, _ = train(net, views, np.full(N_REGIONS, -1), scores, config, seed=0, normal=0)
    return history, net


@pytest.fixture
def fresh_run(vit, crops, monkeypatch):
    """Training on fresh views, and what was seen: pictures[r] and tokens[r], keep[r] in the order of drawing."""
    seen = [{"pictures": [], "tokens": [], "keep": []} for _ in crops]
    asked = []

    def recorded_view(crop, mask, size, rng):
        asked.append(next(i for i, (own, _) in enumerate(crops) if own is crop))
        seen[asked[-1]]["pictures"].append(random_view(crop, mask, size, rng))
        return seen[asked[-1]]["pictures"][-1]

    plain_trunk = bank.run_trunk

    def recorded_trunk(vit, views):
        tokens, keep = plain_trunk(vit, views)
        for region, t, k in zip(asked[-len(views) :], tokens.numpy(), keep.numpy(), strict=True):
            seen[region]["tokens"].append(t)
            seen[region]["keep"].append(k)
        return tokens, keep

    vectors = np.random.default_rng(3).standard_normal((N_REGIONS, 1, 4)).astype(np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(bank, "random_view", recorded_view)
        patch.setattr(bank, "run_trunk", recorded_trunk)
        own = copy.deepcopy(vit)
        history, net = run_training(own, Views(CPU, vectors, fresh=(own, Crops(crops.__getitem__, N_REGIONS, SIDE))))
    return history, net, seen, vectors


def draw_in_order(monkeypatch):
    """Let a bank of 2 views an epoch hand out views 0 and 1 in the first epoch, 2 and 3 in the second …"""
    batches = iter(range(EPOCHS * N_REGIONS // BATCH))

    def drawn(count, n_views, rng):
        if n_views == 1:
            return draw_two(count, 1, rng)
        epoch = next(batches) * BATCH // N_REGIONS
        return np.full(count, 2 * epoch), np.full(count, 2 * epoch + 1)

    monkeypatch.setattr(bank, "draw_two", drawn)


def test_bank_and_fresh_training_are_the_same_on_the_same_views(vit, fresh_run, monkeypatch):
    """A bank in float32: every loss of every epoch and every weight equal to the last bit."""
    history, net, seen, vectors = fresh_run
    tokens, keep = (np.stack([np.stack(region[name]) for region in seen]) for name in ("tokens", "keep"))
    assert tokens.shape == (N_REGIONS, 2 * EPOCHS, 5, 48) and tokens.dtype == np.float32
    draw_in_order(monkeypatch)
    banked_history, banked = run_training(own := copy.deepcopy(vit), Views(CPU, vectors, bank=(tokens, keep)))
    assert banked_history == history
    for name, value in net.state_dict().items():
        assert torch.equal(value, banked.state_dict()[name]), name
    assert not torch.equal(own.vit.blocks[-1].mlp.fc1.weight, vit.vit.blocks[-1].mlp.fc1.weight)


def test_a_stored_bank_gives_the_loss_of_fresh_views_but_for_its_half_precision(
    tmp_path, vit, crops, fresh_run, monkeypatch
):
    history, _, seen, vectors = fresh_run
    stored = {id(crop): iter(region["pictures"]) for (crop, _), region in zip(crops, seen, strict=True)}
    monkeypatch.setattr(bank, "random_view", lambda crop, mask, size, rng: next(stored[id(crop)]))
    tokens, keep = fill(tmp_path, vit, crops, n_views=2 * EPOCHS)
    draw_in_order(monkeypatch)
    banked, _ = run_training(copy.deepcopy(vit), Views(CPU, vectors, bank=(tokens, keep)))
    assert len(banked) == EPOCHS
    for ours, theirs in zip(banked, history, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert history[0]["loss"] - history[-1]["loss"] > 0.02  # far more than the tolerance
