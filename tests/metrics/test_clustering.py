from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, permutations
from math import log

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.errors import DataError
from anomalyncd.metrics import evaluate, expected_calibration_error

pairs = st.lists(
    st.tuples(st.sampled_from(["good", "crack", "hole", "cut"]), st.integers(-1, 3)), min_size=1, max_size=25
).map(lambda rows: tuple(map(list, zip(*rows, strict=True))))


def slow_nmi(true, pred):
    n = len(true)
    information = 0.0
    for t, n_t in Counter(true).items():
        for p, n_p in Counter(pred).items():
            joint = sum(a == t and b == p for a, b in zip(true, pred, strict=True)) / n
            if joint:
                information += joint * log(joint / (n_t / n * n_p / n))
    entropies = [-sum(c / n * log(c / n) for c in Counter(labels).values()) for labels in (true, pred)]
    return information / (sum(entropies) / 2) if sum(entropies) else 1.0


def slow_ari(true, pred):
    together_true = together_pred = together_both = n_pairs = 0
    for i, j in combinations(range(len(true)), 2):
        same_true, same_pred = true[i] == true[j], pred[i] == pred[j]
        together_true += same_true
        together_pred += same_pred
        together_both += same_true and same_pred
        n_pairs += 1
    expected = together_true * together_pred / n_pairs if n_pairs else 0.0
    largest = (together_true + together_pred) / 2
    return (together_both - expected) / (largest - expected) if largest != expected else 1.0


def slow_accuracy(true, pred):
    labels = sorted(set(pred) - {-1})
    # a label may stay without a class, hence the placeholders
    names = sorted(set(true)) + [object() for _ in labels]
    best = 0
    for chosen in permutations(names, len(labels)):
        naming = dict(zip(labels, chosen, strict=True))
        best = max(best, sum(naming.get(p) == t for t, p in zip(true, pred, strict=True)))
    return best / len(true)


@given(pairs)
@settings(max_examples=150, deadline=None)
def test_figures_equal_slow_implementations(labels):
    true, pred = labels
    found = evaluate(true, pred)
    assert found.nmi == pytest.approx(slow_nmi(true, pred), abs=1e-9)
    assert found.ari == pytest.approx(slow_ari(true, pred), abs=1e-9)
    assert found.f1 == pytest.approx(slow_accuracy(true, pred))


@given(pairs, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_of_images_and_names_of_labels_do_not_matter(labels, random):
    true, pred = labels
    order = random.sample(range(len(true)), len(true))
    renamed = {label: f"class {5 - label}" if label != -1 else -1 for label in set(pred)}
    true2, pred2 = [true[i] for i in order], [renamed[pred[i]] for i in order]
    found, again = evaluate(true, pred), evaluate(true2, pred2)
    assert (again.nmi, again.ari, again.f1) == pytest.approx((found.nmi, found.ari, found.f1), abs=1e-12)


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_nmi_and_ari_are_symmetric_and_so_is_f1_without_unknown(labels):
    true, pred = labels
    found, mirrored = evaluate(true, pred), evaluate(pred, true)
    assert (found.nmi, found.ari) == pytest.approx((mirrored.nmi, mirrored.ari), abs=1e-12)
    known = [label + 1 for label in pred]
    assert evaluate(true, known).f1 == evaluate(known, true).f1


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_matching_is_one_to_one_and_gives_f1(labels):
    true, pred = labels
    found = evaluate(true, pred)
    matching = found.matching
    assert -1 not in matching
    assert len(set(matching.values())) == len(matching)
    hits = sum(matching.get(p) == t for t, p in zip(true, pred, strict=True))
    assert hits / len(true) == found.f1


def test_hungarian_takes_the_best_sum_not_the_best_single_pair():
    # greedy would give label 1 to "a" (5 images) and leave label 2 with nothing of "b": 5 right instead of 8
    true = ["a"] * 5 + ["a"] * 4 + ["b"] * 4
    pred = [1] * 5 + [2] * 4 + [1] * 4
    found = evaluate(true, pred)
    assert (found.matching, found.f1) == ({1: "b", 2: "a"}, 8 / 13)


def test_unknown_is_wrong_in_f1_and_a_cluster_in_nmi():
    true, pred = ["a", "a", "b", "b"], [1, 1, -1, -1]
    result = evaluate(true, pred)
    assert (result.nmi, result.ari, result.f1) == (pytest.approx(1.0), 1.0, 0.5)
    assert (result.n_classes, result.n_true_classes, result.matching) == (1, 2, {1: "a"})


def test_a_label_that_has_nothing_of_the_class_left_for_it_stays_without_one():
    assert evaluate(["a", "a", "a", "b"], [1, 1, 2, -1]).matching == {1: "a"}


def test_confusion_of_mixed_labels():
    found = evaluate(["b", "a", "b"], ["odd", -1, 2])
    assert found.true_names == ["a", "b"]
    assert found.pred_names == [-1, 2, "odd"]
    assert found.confusion.tolist() == [[1, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("true", "pred", "normal_names", "expected"),
    [
        (["good", "good", "good", "crack"], [0, 0, 1, 0], ("good", "ok"), (2 / 3, 2 / 3)),
        (["ok", "good", "crack"], [0, 0, 1], ("good", "ok"), (1.0, 1.0)),
        (["good", "crack"], [0, 0], "good", (0.5, 1.0)),
        ([7, 8], [0, 0], 7, (0.5, 1.0)),
        (["good", "crack"], [1, 2], ("good",), (None, 0.0)),
        (["hole", "crack"], [0, 2], ("good",), (0.0, None)),
        (["hole", "crack"], [1, 2], ("good",), (None, None)),
    ],
)
def test_normal_precision_recall(true, pred, normal_names, expected):
    found = evaluate(true, pred, normal_names=normal_names)
    assert (found.normal_precision, found.normal_recall) == expected


def test_evaluate_gathers_everything_and_is_json():
    true = ["good", "good", "crack", "crack", "hole"]
    pred = [0, 0, 1, 0, 2]
    result = evaluate(true, pred)
    assert result.to_json_dict() == {
        "nmi": pytest.approx(slow_nmi(true, pred)),
        "ari": pytest.approx(slow_ari(true, pred)),
        "f1": 0.8,
        "ece": None,
        "n_images": 5,
        "n_classes": 3,
        "n_true_classes": 3,
    }
    assert json.loads(json.dumps(result.to_json_dict())) == result.to_json_dict()
    assert result.confusion.tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 1]]
    assert (result.true_names, result.pred_names) == (["crack", "good", "hole"], [0, 1, 2])
    assert (result.normal_precision, result.normal_recall) == (2 / 3, 1.0)


@pytest.mark.parametrize(
    ("true", "pred", "expected"),
    [
        (["good", "good", "good", "crack"], [0, 0, 1, 0], (1 / 3, 1.0)),
        (["good", "good", "crack", "hole"], [0, -1, 0, -1], (0.5, 0.5)),  # unknown is not normal
        (["hole", "crack"], [0, 2], (None, 0.5)),
        (["good", "ok"], [0, 2], (0.5, None)),
    ],
)
def test_false_alarms_and_missed_defects(true, pred, expected):
    found = evaluate(true, pred)
    assert (found.false_alarms, found.missed) == expected


@given(pairs, st.data())
@settings(max_examples=60, deadline=None)
def test_an_image_is_right_where_its_label_is_matched(labels, data):
    true, pred = labels
    sure = data.draw(st.lists(st.floats(0, 1), min_size=len(true), max_size=len(true)))
    found = evaluate(true, pred, sure)
    judged = [(c, found.matching.get(p) == t) for t, p, c in zip(true, pred, sure, strict=True) if p != -1]
    expected = expected_calibration_error([c for c, _ in judged], [right for _, right in judged]) if judged else None
    assert found.ece == expected == found.to_json_dict()["ece"]
    assert evaluate(true, pred).ece is None


@pytest.mark.parametrize(("sure", "words"), [([0.5], "each of 2 images"), ([0.5, 1.5], "between 0 and 1")])
def test_bad_probabilities(sure, words):
    with pytest.raises(DataError, match=words):
        evaluate(["a", "b"], [0, 1], sure)


@pytest.mark.parametrize(
    ("true", "pred", "nmi_ari_f1", "n_classes"),
    [
        (["a", "a", "a"], [1, 1, 1], (1, 1, 1), 1),
        (["a", "a", "a"], [-1, -1, -1], (1, 1, 0), 0),
        (["a", "b", "c"], [-1, -1, -1], (0, 0, 0), 0),
        (["a", "b", "c"], [1, 1, 1], (0, 0, 1 / 3), 1),
        (["a"], [0], (1, 1, 1), 1),
    ],
)
def test_degenerate_input(true, pred, nmi_ari_f1, n_classes):
    result = evaluate(true, pred)
    assert (result.nmi, result.ari, result.f1) == pytest.approx(nmi_ari_f1)
    assert result.n_classes == n_classes


def test_arrays_and_table_columns_are_labels_too():
    true, pred = ["a", "a", "b", "b"], [1, 1, 2, -1]
    expected = evaluate(true, pred)
    for result in (
        evaluate(np.array(true), np.array(pred)),
        evaluate(pd.Series(true), pd.Series(pred, dtype=float)),
    ):
        assert result.to_json_dict() == expected.to_json_dict()
        assert result.matching == expected.matching == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("true", "pred", "message"),
    [
        ([], [], "no label"),
        (["a"], [1, 2], "1 true and 2 predicted"),
        (["a", float("nan")], [1, 2], "true label at position 1 is missing"),
        (["a", "b"], [1, None], "predicted label at position 1 is missing"),
        (pd.Series(["a", pd.NA]), [1, 2], "true label at position 1 is missing"),
        ([["a"], ["b"]], [1, 2], "flat list"),
    ],
)
def test_bad_input_is_a_clear_error(true, pred, message):
    with pytest.raises(DataError, match=message):
        evaluate(true, pred)
