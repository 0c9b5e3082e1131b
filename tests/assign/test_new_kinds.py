"""Which new regions become classes: those that are far off and alike, whole kinds of them, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage

from anomalyncd.assign import new_kinds
from anomalyncd.assign.new_kinds import _is_kind, open_classes

WIDTH = 60
ONE = np.ones(1, np.float32)


def regions(seed: int, kinds: list[int], noise: float = 0.08) -> np.ndarray:
    """Blocks (R, 1, C), a direction for each kind."""
    rng = np.random.default_rng(seed)
    return (np.eye(WIDTH)[kinds] + rng.normal(0, noise, (len(kinds), WIDTH)))[:, None].astype(np.float32)


def opened(old: list[int], new: list[int], *, labels: list[int] | None = None, **options: Any) -> list[int]:
    """Classes of the new regions; old regions have their kinds as classes, and new ones what they are likest to."""
    blocks = np.concatenate([regions(0, old, **options), regions(1, new, **options)])
    given = [*old, *(labels or [kind if kind in old else 1 for kind in new])]
    silent = np.zeros(len(given), bool)
    found = open_classes(blocks, ONE, np.arange(len(given)), np.array(given), len(old), silent, 3, max(old))
    assert found[: len(old)].tolist() == old
    return found[len(old) :].tolist()


OLD = [1] * 10 + [2] * 10 + [3] * 10


def test_a_new_kind_is_one_class_and_known_kinds_stay() -> None:
    new = [1, 7, 2, 7, 3, 7, 7, 1, 2]
    assert opened(OLD, new) == [4 if kind == 7 else kind for kind in new]


def test_two_new_kinds_are_two_classes_the_larger_first() -> None:
    new = [7] * 4 + [8] * 6 + [1]
    assert opened(OLD, new) == [5] * 4 + [4] * 6 + [1]


def test_too_few_alike_open_nothing() -> None:
    assert opened(OLD, [7, 7, 1]) == [1, 1, 1]
    assert opened(OLD, [7, 8, 9, 10]) == [1] * 4, "none is like another"


def test_known_kinds_alone_open_nothing() -> None:
    new = [1, 2, 3] * 8
    assert opened(OLD, new) == new


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_members_that_were_not_suspicious_are_drawn_in(noise: float) -> None:
    """A kind between two known ones: half of it seems known at first."""
    rng = np.random.default_rng(3)
    middle = np.eye(WIDTH)[1] * 0.5 + np.eye(WIDTH)[9] * 0.8
    between = (middle + rng.normal(0, noise, (12, WIDTH)))[:, None].astype(np.float32)
    blocks = np.concatenate([regions(0, OLD, noise), between])
    labels = np.array([*OLD, *[1] * 12])
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), np.zeros(len(labels), bool), 3, 3)
    assert found[len(OLD) :].tolist() == [4] * 12 and found[: len(OLD)].tolist() == OLD


def test_unknown_ones_of_before_and_new_ones_make_a_class_together() -> None:
    blocks = np.concatenate([regions(0, OLD), regions(1, [7, 7]), regions(2, [7, 2])])
    labels = np.array([*OLD, -1, -1, -1, 2])
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, 32, np.zeros(len(labels), bool), 3, 9)
    assert found[30:].tolist() == [10, 10, 10, 2], "above every number that was ever used"


def test_false_alarms_and_other_products_open_nothing_and_keep_their_labels() -> None:
    blocks = np.concatenate([regions(0, OLD), regions(1, [7] * 5)])
    labels = np.array([*OLD, *[-1] * 5])
    silent = np.arange(len(labels)) >= len(OLD)
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), silent, 3, 3)
    np.testing.assert_array_equal(found, labels)
    silent[-4:] = False
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), silent, 3, 3)
    assert found[len(OLD) :].tolist() == [-1, 4, 4, 4, 4]


def test_a_run_in_which_nothing_is_known() -> None:
    blocks, labels = regions(0, [1, 1, 1, 2, 2, 2]), np.full(6, -1)
    found = open_classes(blocks, ONE, np.arange(6), labels, 0, np.zeros(6, bool), 3, 0)
    assert sorted(found.tolist()) == [1, 1, 1, 2, 2, 2] or set(found.tolist()) == {1}


@pytest.mark.parametrize(("alike", "is_kind"), [(4, True), (3, True), (2, False)])
def test_three_of_four_must_be_more_like_each_other_than_like_anything_known(alike: int, is_kind: bool) -> None:
    known = np.eye(WIDTH, dtype=np.float32)[:1]
    far, near = np.eye(WIDTH)[1], np.eye(WIDTH)[0]
    members = np.stack([far + 0.1 * np.eye(WIDTH)[5 + i] if i < alike else near for i in range(4)]).astype(np.float32)
    members /= np.linalg.norm(members, axis=1, keepdims=True)
    assert _is_kind(members, known, widest=0.5) is is_kind


def test_new_ones_are_suspects_from_where_a_fifth_of_the_known_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    suspects: list[int] = []

    def counted(rows: np.ndarray, *given: Any, **named: Any) -> np.ndarray:
        suspects.append(len(rows))
        return linkage(rows, *given, **named)

    monkeypatch.setattr(new_kinds, "linkage", counted)
    opened([0] * 400, [0] * 400)
    assert suspects[0] / 400 == pytest.approx(0.2, abs=0.06)
