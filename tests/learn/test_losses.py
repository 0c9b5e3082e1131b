"""Each loss against a slow, obvious implementation written from the formula, in plain Python floats."""

import math

import pytest
import torch

from anomalyncd.learn import losses
from anomalyncd.learn.losses import Temperatures, objective


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(row, temperature):
    top = max(row)
    powers = [math.exp((x - top) / temperature) if x > -math.inf else 0.0 for x in row]
    return [p / sum(powers) for p in powers]


def cross_entropy(target, row, temperature):
    return -sum(q * math.log(p) for q, p in zip(target, softmax(row, temperature), strict=True) if q > 0)


def slow_info_nce(first, second, tau):
    z = [unit(v) for v in first.tolist() + second.tolist()]
    batch = len(first)
    total = 0.0
    for a in range(2 * batch):
        positive = a + batch if a < batch else a - batch
        denominator = sum(math.exp(dot(z[a], z[n]) / tau) for n in range(2 * batch) if n != a)
        total -= math.log(math.exp(dot(z[a], z[positive]) / tau) / denominator)
    return total / (2 * batch)


def slow_supervised_contrastive(first, second, labels, tau):
    z = [unit(v) for v in first.tolist() + second.tolist()]
    label = labels.tolist() * 2
    total = 0.0
    for a in range(len(z)):
        positives = [p for p in range(len(z)) if p != a and label[p] == label[a]]
        denominator = sum(math.exp(dot(z[a], z[n]) / tau) for n in range(len(z)) if n != a)
        total -= sum(math.log(math.exp(dot(z[a], z[p]) / tau) / denominator) for p in positives) / len(positives)
    return total / len(z)


def slow_distillation(one, two, q_one, q_two, tau):
    total = 0.0
    for l1, l2, q1, q2 in zip(one.tolist(), two.tolist(), q_one.tolist(), q_two.tolist(), strict=True):
        total += (cross_entropy(q2, l1, tau) + cross_entropy(q1, l2, tau)) / 2
    return total / len(one)


def slow_mean_entropy(one, two, tau):
    rows = [softmax(row, tau) for row in one.tolist() + two.tolist()]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return sum(p * math.log(p) for p in mean) + math.log(len(mean))


def slow_targets(logits, n_base, tau, scores, normal, threshold):
    out = []
    for row, score in zip(logits.tolist(), scores.tolist(), strict=True):
        q = softmax([-math.inf] * n_base + row[n_base:], tau)
        weight = max(threshold - score, 0)
        out.append([(1 - weight) * p + (weight if k == normal else 0) for k, p in enumerate(q)])
    return torch.tensor(out, dtype=torch.float64)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    return {
        "logits": tuple(torch.rand(2, 6, 5, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(2)),
        "z": tuple(torch.randn(6, 7, generator=generator, dtype=torch.float64) for _ in range(2)),
        "labels": torch.tensor([0, 1, 0, -1, -1, -1]),
        "scores": torch.tensor([1.0, 1.0, 1.0, 0.1, 0.45, 0.9], dtype=torch.float64),
    }


@pytest.mark.parametrize("tau", [0.07, 1.0])
def test_info_nce(batch, tau):
    assert losses.info_nce(*batch["z"], tau).item() == pytest.approx(slow_info_nce(*batch["z"], tau), rel=1e-9)


@pytest.mark.parametrize("tau", [0.07, 1.0])
def test_supervised_contrastive(batch, tau):
    labels = torch.tensor([0, 1, 0, 2, 2, 2])
    expected = slow_supervised_contrastive(*batch["z"], labels, tau)
    assert losses.supervised_contrastive(*batch["z"], labels, tau).item() == pytest.approx(expected, rel=1e-9)


def test_supervised_contrastive_of_all_different_labels_is_info_nce(batch):
    """With one crop a class the only positive is the crop's own second view."""
    expected = losses.info_nce(*batch["z"], 0.3)
    assert losses.supervised_contrastive(*batch["z"], torch.arange(6), 0.3).item() == pytest.approx(expected.item())


def test_supervised_classification(batch):
    one, two = (view[0] for view in batch["logits"])
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    one_hot = torch.eye(5).tolist()
    rows = [(row, one_hot[k]) for view in (one, two) for row, k in zip(view.tolist(), labels.tolist(), strict=True)]
    expected = sum(cross_entropy(target, row, 0.1) for row, target in rows) / len(rows)
    assert losses.supervised_classification(one, two, labels, 0.1).item() == pytest.approx(expected, rel=1e-9)


def test_pseudo_labels_rule_out_base_classes_and_carry_no_gradient(batch):
    logits = batch["logits"][0][0].clone().requires_grad_()
    q = losses.pseudo_labels(logits, n_base=2, temperature=0.04)
    expected = slow_targets(logits.detach(), 2, 0.04, batch["scores"], 2, threshold=-1)
    assert not q.requires_grad
    assert torch.equal(q[:, :2], torch.zeros(6, 2, dtype=torch.float64))
    torch.testing.assert_close(q, expected)


def test_correction_by_hand():
    q = torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.25, 0.75], [0.0, 0.25, 0.75]])
    corrected = losses.correct_pseudo_labels(q, torch.tensor([0.1, 0.5, 0.9]), normal=1, threshold=0.5)
    torch.testing.assert_close(corrected[0], torch.tensor([0.0, 0.4 + 0.6 * 0.25, 0.6 * 0.75]))
    assert torch.equal(corrected[1:], q[1:])


def test_self_distillation(batch):
    one, two = (view[0] for view in batch["logits"])
    q_one, q_two = (losses.pseudo_labels(view, 2, 0.05) for view in (one, two))
    expected = slow_distillation(one, two, q_one, q_two, 0.1)
    assert losses.self_distillation(one, two, q_one, q_two, 0.1).item() == pytest.approx(expected, rel=1e-9)


def test_mean_entropy(batch):
    one, two = (view[0] for view in batch["logits"])
    assert losses.mean_entropy(one, two, 0.1).item() == pytest.approx(slow_mean_entropy(one, two, 0.1), rel=1e-9)


def test_mean_entropy_is_zero_for_a_balanced_and_log_c_for_a_collapsed_prediction():
    balanced = torch.eye(4, dtype=torch.float64) * 1000
    collapsed = torch.zeros(4, 4, dtype=torch.float64)
    collapsed[:, 0] = 1000
    assert losses.mean_entropy(balanced, balanced, 1.0).item() == pytest.approx(0, abs=1e-9)
    assert losses.mean_entropy(collapsed, collapsed, 1.0).item() == pytest.approx(math.log(4))


def test_teacher_temperature_has_ten_values_of_four_epochs_each_the_last_of_which_stays():
    values = [losses.teacher_temperature(epoch) for epoch in range(50)]
    assert values == pytest.approx([0.07 - 0.03 * min(epoch // 4, 9) / 9 for epoch in range(50)])
    assert values[35] > 0.043 and values[36:] == [0.04] * 14
    each = [losses.teacher_temperature(epoch, epochs=30, step=1) for epoch in range(31)]
    assert each == pytest.approx([0.07 - 0.03 * min(epoch, 29) / 29 for epoch in range(31)])
    assert losses.teacher_temperature(0, epochs=0) == losses.teacher_temperature(0, epochs=4) == 0.04


def test_whole_objective_on_a_hand_made_batch(batch):
    """Eq. 4 with λ = 0.3, μ = 4, two base classes, normal the first novel class, two heads averaged."""
    temperatures = Temperatures(contrastive=0.5, supervised_contrastive=0.2, student=0.1, teacher=0.05)
    parts, per_head = objective(
        batch["logits"], batch["z"], batch["labels"], batch["scores"], n_base=2, normal=2,
        temperatures=temperatures, supervised_weight=0.3, entropy_weight=4.0, correction_threshold=0.5,
    )  # fmt: skip
    scores = batch["scores"][3:]
    distillation, entropy, supervised = [], [], []
    for one, two in zip(*batch["logits"], strict=True):
        targets = [slow_targets(view[3:], 2, 0.05, scores, 2, 0.5) for view in (one, two)]
        distillation.append(slow_distillation(one[3:], two[3:], *targets, 0.1))
        entropy.append(slow_mean_entropy(one[3:], two[3:], 0.1))
        rows = [(row, k) for view in (one, two) for row, k in zip(view[:3].tolist(), [0, 1, 0], strict=True)]
        supervised.append(sum(cross_entropy(torch.eye(5)[k].tolist(), row, 0.1) for row, k in rows) / 6)
    labelled_rep = slow_supervised_contrastive(*(z[:3] for z in batch["z"]), batch["labels"][:3], 0.2)
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    expected = 0.3 * (labelled_rep + mean(supervised)) + 0.7 * (
        slow_info_nce(*batch["z"], 0.5) + mean(distillation) + 4 * mean(entropy)
    )
    assert parts.total.item() == pytest.approx(expected, rel=1e-9)
    assert parts.distillation.item() == pytest.approx(mean(distillation))
    assert per_head.tolist() == pytest.approx([d + 4 * e for d, e in zip(distillation, entropy, strict=True)])
    assert not per_head.requires_grad


def test_without_a_base_set_the_labelled_terms_and_their_weight_vanish(batch):
    parts, _ = objective(
        batch["logits"], batch["z"], torch.full((6,), -1), batch["scores"], n_base=0, normal=None,
        temperatures=Temperatures(), supervised_weight=0.3, entropy_weight=1.0,
    )  # fmt: skip
    expected = parts.contrastive + parts.distillation + parts.entropy
    assert parts.total.item() == pytest.approx(expected.item())
    assert parts.supervised.item() == parts.supervised_contrastive.item() == 0


def test_a_batch_of_only_labelled_crops_has_a_finite_loss(batch):
    parts, _ = objective(
        batch["logits"], batch["z"], torch.tensor([0, 1, 0, 1, 0, 1]), batch["scores"], n_base=2, normal=2,
        temperatures=Temperatures(), supervised_weight=0.3, entropy_weight=4.0,
    )  # fmt: skip
    assert torch.isfinite(parts.total)
    assert parts.distillation.item() == parts.entropy.item() == 0
