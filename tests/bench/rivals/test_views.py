"""Cached views and the training loop that rivals share (views.py, last_block.py), and GCD's loss.

Covers last_block.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from anomalyncd.bench.rivals.gcd import GCD
from anomalyncd.bench.rivals.last_block import Outputs
from anomalyncd.bench.rivals.views import ViewRival, WholeViews, cosine_rate, two_views
from anomalyncd.data.gather import gather, gather_base
from anomalyncd.errors import SettingsError
from anomalyncd.progress import Silent


def test_views_of_several_banks_are_joined_in_order():
    rng = np.random.default_rng(0)
    banks = [rng.normal(size=(n, 3, 2, 4)).astype(np.float16) for n in (3, 2)]
    views = WholeViews(banks, torch.device("cpu"))
    joined = np.concatenate(banks)
    indices = np.array([4, 0, 3, 2])
    one, two = views.pair(indices, np.random.default_rng(5))
    for row, index in enumerate(indices):
        matches = [(joined[index, v] == one.tokens[row].numpy()).all() for v in range(3)]
        others = [(joined[index, v] == two.tokens[row].numpy()).all() for v in range(3)]
        assert sum(matches) == sum(others) == 1 and matches != others


def test_the_centre_view_is_never_drawn():
    vectors = torch.arange(12.0).view(3, 4, 1)
    for seed in range(20):
        one, two = two_views(vectors, np.array([0, 2]), np.random.default_rng(seed))
        assert (one != two).all() and (torch.cat([one, two]) % 4 != 0).all()


def test_the_rate_falls_as_in_torch():
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7, eta_min=0.01)
    for epoch in range(7):
        assert cosine_rate(epoch, 7, first=0.3, last=0.01) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()


class Line(ViewRival):
    """Learns one number from another; needs no images."""

    name = "line"

    def _learn(self, inputs):
        raise NotImplementedError


def learned(progress=None, learning_rate=0.1, target=3.0, **how):
    rival, net = Line(2, learning_rate=learning_rate, epochs=30, progress=progress), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    rival.seconds_, rival.history_ = {}, []
    seen = []

    def loss(indices, rng, epoch):
        seen.append((epoch, float(rng.random()), indices.tolist()))
        return ((net.weight - target) ** 2).mean()

    rival._train(net, torch.optim.SGD(net.parameters(), lr=learning_rate), lambda rng: [np.arange(2)], loss, **how)
    return rival, float(net.weight.detach()), seen


def test_the_loop_goes_down_the_gradient_and_keeps_its_history():
    rival, weight, seen = learned()
    assert weight == pytest.approx(3 * (1 - 0.8**30))  # each step leaves 1 − 2 · 0.1 of the distance
    assert [row["loss"] for row in rival.history_[:2]] == [9.0, round(9 * 0.64, 6)]
    assert seen == learned()[2] and len({draw for _, draw, _ in seen}) == 30
    assert learned(rate=lambda epoch: 0.1 * (epoch == 0), epochs=5)[1] == pytest.approx(0.6)


def test_a_loss_that_does_not_fall_is_told_and_one_that_explodes_is_refused():
    class Ear(Silent):
        heard = ""

        def warn(self, message):
            self.heard += message

    ear = Ear()
    learned(ear, learning_rate=1.1)
    assert "line: the loss did not fall" in ear.heard
    with pytest.raises(SettingsError, match=r"line: training diverged\. Lower learning_rate, which is 1e"):
        learned(learning_rate=1e30)


def slow_gcd(one, two, labels, weight):
    """(1 − λ) L_u + λ L_s, anchor by anchor."""
    z = [row / np.linalg.norm(row) for row in [*one, *two]]
    both = [*labels, *labels]
    n = len(one)

    def log_share(a, p, among, temperature):
        return math.log(math.exp(z[a] @ z[p] / temperature) / sum(math.exp(z[a] @ z[m] / temperature) for m in among))

    unsupervised = [-log_share(a, (a + n) % (2 * n), [m for m in range(2 * n) if m != a], 1.0) for a in range(2 * n)]
    known = [m for m in range(2 * n) if both[m] >= 0]
    supervised = []
    for a in known:
        others = [m for m in known if m != a]
        same = [m for m in others if both[m] == both[a]]
        supervised.append(-sum(log_share(a, p, others, 0.07) for p in same) / len(same))
    return (1 - weight) * np.mean(unsupervised) + weight * np.mean(supervised)


@pytest.mark.parametrize("weight", [0.35, 0.0])
def test_gcd_minimises_both_contrastive_losses(weight):
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 6, 4))
    labels = [0, 1, 1, -1, -1, -1]
    cosines, projections = (torch.zeros(6, 5),) * 2, (torch.tensor(one), torch.tensor(two))
    out = Outputs(torch.arange(6), cosines, projections, torch.tensor(labels), torch.eye(5), 2, 0)
    assert float(GCD(3)._loss(out, weight)) == pytest.approx(slow_gcd(one, two, labels, weight))


def test_gcd_never_answers_with_a_base_class():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (32, 32, 3), dtype=np.uint8) for _ in range(8)]
    base = gather_base((images[:6], [None] * 6, list("aabbcc")))  # the very images: a base cluster is nearest to them
    model = GCD(2, backbone="tiny", size=32, epochs=1, bank_views=2, learning_rate=1e-3).fit(gather(images), base=base)
    assert set(model.labels_) <= {0, 1} and len(model.labels_) == 8


def test_precision_is_of_the_frozen_views_and_their_keys(tmp_path):
    images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    features = [
        GCD(2, backbone="tiny", size=32, epochs=1, bank_views=2, precision=precision)
        .fit(gather(images), run=tmp_path)
        .features_
        for precision in ("float32", "bfloat16")
    ]
    difference = np.abs(features[0] - features[1]).max()
    assert 0 < difference < 0.1 and len(list(tmp_path.glob("views-*"))) == 2
