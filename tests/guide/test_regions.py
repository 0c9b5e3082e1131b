"""Regions to look at next, by their features alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.guide.regions import LEAST, LEAST_CLASS, NEAREST, next_regions


def slow(x: np.ndarray, p: np.ndarray, decided: np.ndarray, images: np.ndarray, n: int) -> list[int]:
    """One region and one pair after the other."""
    chosen: list[int] = []
    of_class = p.argmax(axis=1)
    taken_images = {images[j] for j in range(len(x)) if decided[j]}
    for label in sorted(set(of_class.tolist()), key=lambda label: (-(of_class == label).sum(), label)):
        own = [i for i in range(len(x)) if of_class[i] == label]
        free = [i for i in own if images[i] not in taken_images]
        if len(own) >= LEAST_CLASS and free and not any(decided[i] for i in own) and len(chosen) < n:
            speaker = max(free, key=lambda i: np.mean([x[i] @ x[j] if j != i else -1 for j in own]))
            if not any(images[speaker] == images[j] for j in chosen):
                chosen.append(speaker)
    for _ in range(n - len(chosen)):
        best, place = -1.0, None
        for i in range(len(x)):
            taken = [j for j in range(len(x)) if decided[j] or j in chosen]
            if any(images[i] == images[j] for j in taken):
                continue
            two = np.sort(p[i])[::-1]
            others = sorted((float(x[i] @ x[j]) for j in range(len(x)) if j != i), reverse=True)[:NEAREST]
            apart = min((1 - float(x[i] @ x[j]) for j in taken), default=1.0)
            worth = (LEAST + (1 - LEAST) * (1 - two[0] + two[1])) * max(apart, 1e-9) * (np.mean(others) + 1) / 2
            if worth > best + 1e-9:
                best, place = worth, i
        if place is None:
            break
        chosen.append(place)
    return chosen


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_order_is_that_of_the_slow_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    p = rng.dirichlet(np.ones(3), 12)
    decided, images = rng.random(12) < 0.2, rng.integers(0, 9, 12)
    found = next_regions(x, p, decided, images, 4)
    assert found == slow(x, p, decided, images, 4)
    assert len(set(images[found])) == len(found) and not decided[found].any()


def test_a_class_of_which_nothing_was_decided_comes_first() -> None:
    angle = np.array([0.0, 0.1, 0.2, 1.5, 1.6, 1.7, 1.8, 0.8])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    p = np.repeat([[0.9, 0.1], [0.1, 0.9], [0.48, 0.52]], [3, 4, 1], axis=0)
    nothing = np.zeros(8, bool)
    found = next_regions(x, p, nothing, np.arange(8), 3)
    assert found[0] in (3, 4, 5) and found[1:] == [1, 7], (
        "the middle of the larger class, that of the other, an uncertain one"
    )
    assert next_regions(x, p, np.arange(8) == 3, np.arange(8), 1) == [1]


def test_uncertain_and_diverse() -> None:
    x = np.float32([[1, 0], [1, 0.01], [0, 1], [0.01, 1]])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    p = np.array([[0.5, 0.5], [0.49, 0.51], [0.8, 0.2], [0.1, 0.9]])
    assert next_regions(x, p, np.zeros(4, bool), np.arange(4), 2) == [0, 2], "not the twin of the first"
    assert next_regions(x, p, np.ones(4, bool), np.arange(4), 2) == []
    assert next_regions(x[:0], p[:0], np.zeros(0, bool), np.arange(0), 2) == []
    assert next_regions(x[:1], np.full((1, 1), np.nan), np.zeros(1, bool), np.arange(1), 3) == [0]
