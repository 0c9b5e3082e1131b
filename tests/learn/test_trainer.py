import math

import numpy as np
import pytest
import torch
from torch import nn

from anomalyncd.config import LearnConfig
from anomalyncd.learn import trainer
from anomalyncd.learn.bank import Views
from anomalyncd.learn.losses import LossParts
from anomalyncd.learn.network import RegionNet
from anomalyncd.learn.trainer import parameter_groups, sample_batches, sample_epoch, train

CPU = torch.device("cpu")


def clusters(sizes, width=8, seed=0):
    """(R, 4, D) float32 views of tight clusters around the axes, and the cluster of each region."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = rng.normal(0, 0.05, (len(truth), 4, width))
    return (np.eye(width)[truth][:, None] + noise).astype(np.float32), truth


def make_net(n_outputs=3, n_heads=2, width=8, contrastive=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return RegionNet(width, n_outputs, n_heads, contrastive=contrastive)


def run(vectors, net=None, labels=None, views=None, **settings):
    net = net or make_net()
    options = {"epochs": 5, "batch_size": 8, **settings}
    labels = np.full(len(vectors), -1) if labels is None else labels
    scores, n_base = np.ones(len(vectors), np.float32), max(int(labels.max()) + 1, 0)
    return net, train(net, views or Views(CPU, vectors), labels, scores, LearnConfig(**options), seed=0, n_base=n_base)


class Counting(Views):
    """Notes which regions each batch asks for."""

    def __init__(self, vectors):
        super().__init__(CPU, vectors)
        self.asked = []

    def pair(self, indices, rng):
        self.asked.append(indices.tolist())
        return super().pair(indices, rng)


def test_half_of_an_epoch_is_labelled_in_expectation():
    labels = np.array([0, 1, 2] + [-1] * 57)
    drawn = np.concatenate([sample_epoch(labels, np.random.default_rng(seed)) for seed in range(300)])
    assert len(drawn) == 300 * 60
    counts = np.bincount(drawn, minlength=60) / len(drawn)
    assert counts[:3] == pytest.approx(np.full(3, 1 / 6), abs=0.01)
    assert counts[3:].sum() == pytest.approx(0.5, abs=0.02)
    assert counts[3:].max() < 2 * 0.5 / 57


@pytest.mark.parametrize("label", [-1, 0])
def test_regions_of_one_kind_come_once_each_in_a_new_order(label):
    orders = [sample_epoch(np.full(30, label), np.random.default_rng(seed)).tolist() for seed in (1, 2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]


def test_weight_decay_is_on_matrices_only_and_frozen_parameters_are_left_out():
    net = nn.ModuleDict({"linear": nn.Linear(3, 2), "norm": nn.LayerNorm(2), "frozen": nn.Linear(2, 2)})
    net["frozen"].requires_grad_(False)
    decayed, free = parameter_groups(net)
    assert decayed["weight_decay"] == 5e-5 and free["weight_decay"] == 0
    assert {id(p) for p in decayed["params"]} == {id(net["linear"].weight)}
    assert {id(p) for p in free["params"]} == {id(net["linear"].bias), *map(id, net["norm"].parameters())}


def test_learning_rate_follows_a_cosine_to_a_thousandth(monkeypatch):
    made, rates = [], []

    class Recorded(torch.optim.SGD):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

        def step(self):
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(torch.optim, "SGD", Recorded)
    run(clusters([4, 4])[0], epochs=6, learning_rate=0.2)
    expected = [0.0002 + 0.1998 * (1 + math.cos(math.pi * epoch / 6)) / 2 for epoch in range(7)]
    assert rates == pytest.approx(expected[:6])
    assert [group["lr"] for group in made[0].param_groups] == pytest.approx([expected[6]] * 2)
    assert made[0].param_groups[0]["momentum"] == 0.9
    assert made[0].param_groups[0]["weight_decay"] == 5e-5


@pytest.mark.parametrize("labelled", [False, True])
def test_the_same_seed_gives_the_same_history_and_weights(labelled):
    vectors, truth = clusters([6, 6, 6])
    labels = np.where(np.arange(18) % 3 == 0, truth % 2, -1) if labelled else None
    nets, results = zip(*(run(vectors, make_net(n_outputs=5), labels) for _ in range(2)), strict=True)
    assert results[0] == results[1]
    assert torch.equal(nets[0].heads.directions, nets[1].heads.directions)


def test_the_loss_falls_and_the_classes_are_learned_on_separable_data():
    vectors, truth = clusters([20, 20, 20])
    net, (history, best_head) = run(vectors, epochs=30, batch_size=30, entropy_weight=2.0)
    losses = [row["loss"] for row in history]
    assert losses[-1] < losses[0] / 2
    found = net.heads.weight[best_head].detach().numpy() @ vectors[:, 0].T
    pairs = set(zip(found.argmax(axis=0).tolist(), truth.tolist(), strict=True))
    assert len(pairs) == 3


def test_labelled_regions_learn_their_own_class():
    vectors, truth = clusters([15, 15, 15, 15])
    labels = np.where(truth < 2, truth, -1)
    net, (history, best_head) = run(vectors, make_net(n_outputs=4), labels, epochs=20, entropy_weight=2.0)
    cosines = vectors[:, 0] @ net.heads.weight[best_head].detach().numpy().T
    assert np.array_equal(cosines.argmax(axis=1)[truth < 2], truth[truth < 2])
    assert set(cosines[truth >= 2][:, 2:].argmax(axis=1)) == {0, 1}
    assert history[-1]["supervised"] < history[0]["supervised"] / 2


def test_the_head_that_fits_the_clusters_is_chosen():
    vectors, _ = clusters([6, 6, 6])
    net = make_net(n_heads=3)
    net.heads.start_from(1, torch.eye(8)[:3])
    _, (_, best_head) = run(vectors, net, epochs=2, learning_rate=1e-4)
    assert best_head == 1


def test_only_the_last_epoch_decides_on_the_best_head(monkeypatch):
    per_epoch = iter([torch.tensor([0.0, 9.0]), torch.tensor([1.0, 0.5])])

    def made_up(logits, *args, **options):
        zero = logits[0].sum() * 0
        return LossParts(zero, zero, zero, zero, zero, zero), next(per_epoch)

    monkeypatch.setattr(trainer, "objective", made_up)
    _, (_, best_head) = run(clusters([4, 4])[0], epochs=2)
    assert best_head == 1


@pytest.mark.parametrize(("entropy_weight", "best"), [(0.0, 0), (4.0, 1)])
def test_a_head_that_calls_everything_the_same_is_only_chosen_where_entropy_has_no_say(entropy_weight, best):
    """All in one class is easy to distil: cosines of .58 and −.58, where the head of three classes has 1 and 0."""
    vectors, _ = clusters([6, 6, 6])
    net = make_net(n_heads=2)
    everything = torch.eye(8)[:3].sum(0)
    net.heads.start_from(0, torch.stack([everything, -everything, -everything]))
    net.heads.start_from(1, torch.eye(8)[:3])
    _, (_, best_head) = run(vectors, net, epochs=1, learning_rate=1e-6, entropy_weight=entropy_weight)
    assert best_head == best


def test_every_batch_has_the_same_say_in_which_head_is_best(monkeypatch):
    per_batch = iter([torch.tensor([0.0, 1.0]), torch.tensor([1.5, 0.0])])  # of 6 regions and of 2

    def made_up(logits, *args, **options):
        zero = logits[0].sum() * 0
        return LossParts(zero, zero, zero, zero, zero, zero), next(per_batch)

    monkeypatch.setattr(trainer, "objective", made_up)
    _, (_, best_head) = run(clusters([4, 4])[0], epochs=1, batch_size=6)
    assert best_head == 1


@pytest.mark.parametrize(("sizes", "batch_size"), [([1, 1], 2), ([1, 6], 3), ([9, 2], 2), ([20, 20], 4)])
def test_with_a_base_set_a_batch_without_base_or_without_other_regions_is_left_out(sizes, batch_size):
    vectors, truth = clusters(sizes)
    views = Counting(vectors)
    labels = np.where(truth == 0, 0, -1)
    _, (history, _) = run(vectors, make_net(n_outputs=2), labels, views, epochs=20, batch_size=batch_size)
    assert all({*(labels[asked] >= 0)} == {True, False} for asked in views.asked)
    assert len(history) == 20 and all(math.isfinite(row["loss"]) for row in history)


def test_where_no_batch_of_an_epoch_has_both_it_is_drawn_again():
    labels = np.array([0, -1])
    drawn = [sample_batches(labels, 2, np.random.default_rng(seed)) for seed in range(30)]
    assert all(len(batches) == 1 and sorted(batches[0].tolist()) == [0, 1] for batches in drawn)


def test_no_epochs_leave_everything_as_it_was():
    net = make_net()
    before = net.heads.directions.clone()
    _, (history, best_head) = run(clusters([4, 4])[0], net, epochs=0)
    assert history == [] and best_head == 0
    assert torch.equal(net.heads.directions, before) and not net.training


def test_a_last_batch_of_one_region_is_left_out():
    vectors, _ = clusters([5, 4])
    views = Counting(vectors)
    _, (history, _) = run(
        vectors, make_net(contrastive=True), views=views, epochs=4, batch_size=4, contrastive_weight=1.0
    )
    assert [len(asked) for asked in views.asked] == [4, 4] * 4
    left_out = {*range(9)} - {*views.asked[0], *views.asked[1]}
    assert left_out != {*range(9)} - {*views.asked[2], *views.asked[3]}  # another one in the next epoch
    assert all(math.isfinite(row["loss"]) for row in history)


def test_a_single_region_can_be_learned_from():
    _, (history, _) = run(clusters([1])[0], make_net(n_outputs=1, contrastive=True), epochs=2, contrastive_weight=1.0)
    assert [row["loss"] for row in history] == [0, 0]


def test_every_epoch_is_reported_with_its_mean_loss():
    vectors, _ = clusters([5, 5])
    seen = []
    config = LearnConfig(epochs=3, batch_size=4, entropy_weight=0.25)
    net = make_net()
    options = {"seed": 0, "on_epoch": seen.append}
    history, _ = train(net, Views(CPU, vectors), np.full(10, -1), np.ones(10, np.float32), config, **options)
    assert seen == history and [row["epoch"] for row in seen] == [0, 1, 2]
    for row in seen:
        assert row["loss"] == pytest.approx(row["distillation"] + 0.25 * row["entropy"], abs=3e-6)
        assert row["supervised"] == row["contrastive"] == row["supervised_contrastive"] == 0
