"""Heads that learn again, without a run: where they start, what has a say, and the files that follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anomalyncd.config import make_config
from anomalyncd.discovery import relearn as module
from anomalyncd.discovery.model import DiscoveryModel


def state(labels: list[int], *, classes: list[int], heads: np.ndarray, learns: bool = False, n_base: int = 0) -> Any:
    """Regions along the axes of their classes (0 along the last), of a model with these heads."""
    features = np.eye(4, dtype=np.float32)[[label - 1 for label in labels]]
    space = SimpleNamespace(transform=lambda given: features)
    weight = np.concatenate([np.full((n_base, 4), 0.5, np.float32), heads])
    model = DiscoveryModel(make_config({}), learns_normal=learns, classes=np.array(classes))
    model.classifier = SimpleNamespace(space=space, weight=weight, n_base=n_base, temperature=0.1)  # type: ignore[assignment]
    return SimpleNamespace(model=model, labels=np.array(labels), features={})


def learned(monkeypatch: pytest.MonkeyPatch, given: Any, wanted: list[int], fixed: list[bool]) -> Any:
    """What `refine` was asked; it answers with twos."""
    seen: list[Any] = []
    monkeypatch.setattr(module, "refine", lambda *a, **named: (seen.append((a, named)), np.full_like(a[3], 2))[1])
    module._learn_heads(given, np.array(wanted), np.array(fixed))
    return seen[0]


def test_a_head_goes_on_from_where_it_is_unless_its_class_became_another(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = np.float32([[0.6, 0.8, 0, 0], [0, 0.6, 0.8, 0]])
    given = state([1, 1, 1, 2, 2], classes=[0, 1, 2], heads=heads, n_base=1)
    (features, target, fixed, start), named = learned(
        monkeypatch, given, [1, 1, 3, 2, -1], [False, False, True, False, False]
    )
    assert (
        target.tolist() == [0, 0, 2, 1]
        and fixed.tolist() == [False, False, True, False]
        and named == {"temperature": 0.1, "seed": 0}
    )
    assert len(features) == 4, "what is unknown has no say"
    # Class 1 kept two of three, class 2 one of two; 3 is new and begins in the middle of its regions.
    np.testing.assert_allclose(start, [heads[0], heads[1], [1, 0, 0, 0]], atol=1e-6)
    assert given.model.classes.tolist() == [0, 1, 2, 3] and given.model.highest == 3 and not given.model.learns_normal
    assert given.model.classifier.weight.tolist() == [[0.5] * 4] + [[2] * 4] * 3
    given = state([1, 1, 1, 2, 2], classes=[0, 1, 2], heads=heads)
    (_, _, _, start), _ = learned(monkeypatch, given, [1, 2, 2, 2, 2], [False] * 5)
    np.testing.assert_allclose(start, [[1, 0, 0, 0], heads[1]], atol=1e-6)  # 1 of 3, but 2 of 4
    given = state([1, 1, 1, 2], classes=[0, 1, 2], heads=heads)
    (_, _, _, start), _ = learned(monkeypatch, given, [1, 2, 2, 2], [False] * 4)
    np.testing.assert_allclose(start[1], np.float32([2, 1, 0, 0]) / 5**0.5, atol=1e-6)  # 1 of 3


@pytest.mark.parametrize(
    ("wanted", "fixed", "learns"),
    [
        ([0, 1, 2], [False] * 3, False),  # a false alarm by its score, as before
        ([0, 1, 2], [True, False, False], True),
        ([0, 0, 2], [False] * 3, True),  # a whole class
        ([0, 1, 1], [False] * 3, False),
    ],
)
def test_false_alarms_that_a_person_found_make_normal_a_class(
    wanted: list[int], fixed: list[bool], learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = state([0, 1, 2], classes=[0, 1, 2], heads=np.eye(4, dtype=np.float32)[:2])
    (features, target, *_), _ = learned(monkeypatch, given, wanted, fixed)
    assert given.model.learns_normal is learns
    assert len(features) == (3 if learns else 2) and given.model.classes[0] == 0
    if learns:
        assert target.tolist()[0] == 0


def test_what_is_learned_again_ends_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    table = pd.DataFrame({"image": ["0.png", "1.png", "1.png"], "region": [0, 0, 1], "label": [1, 2, -1]})

    def classified(*given: Any, **named: Any) -> Any:
        seen.append((given, named))
        return SimpleNamespace(regions=table), {"images.csv": b"i"}

    monkeypatch.setattr(module, "classify_stored", classified)
    model = DiscoveryModel(make_config({"n_classes": 3}), names={1: "dent"})
    model.pack = lambda: b"model"  # type: ignore[method-assign]
    regions = [SimpleNamespace(index=k, image=f"{k}.png", region=r) for k, r in ((0, 0), (1, 0), (1, 1))]
    given = module.RunState(
        model, SimpleNamespace(regions=regions), {}, np.array([1, 1, -1]), np.zeros(3, bool),  # type: ignore[arg-type]
        np.array([True, True]), {}, pd.DataFrame(),
    )  # fmt: skip
    files, labels = module.learn_again(given, np.array([1, -1, -1]), np.array([True, False, True]), {2: "hole"})
    assert labels.tolist() == [1, 2, -1] and files["model.safetensors"] == b"model" and files["images.csv"] == b"i"
    assert files["corrections.csv"] == b"image,region,label\n0.png,0,1\n1.png,1,-1\n"
    _, named = seen[0]
    assert named["fixed"] == {("0.png", 0): 1, ("1.png", 1): -1} and named["unknown"].tolist() == [False, True, True]
    assert named["outside"].tolist() == [False, True], "a region with a class shows that it is the product"
    assert given.outside.tolist() == [True, True] and model.names == {0: "normal", 1: "dent", 2: "hole"}
    assert given.row == {("0.png", 0): 0, ("1.png", 0): 1, ("1.png", 1): 2}


def test_the_state_of_a_run_is_read_from_its_tables() -> None:
    """Two regions, of which one was corrected; a correction of a region that is gone; one image of another product."""
    images = pd.DataFrame(
        {"image": ["a", "b", "c"], "label": [1, -1, -1], "class_name": ["dent", "unknown", "not this product"]}
    )
    run: Any = SimpleNamespace(
        regions=pd.DataFrame({"label": [1, -1]}), rows={("a", 0): 0, ("b", 0): 1}, corrections={("a", 0): 1, ("z", 9): 2},
        images=images, store=SimpleNamespace(images=[SimpleNamespace(id=name) for name in "abc"], regions=[]),
        model="model", features={}, truth={"a": "x"}, manifest="manifest",
    )  # fmt: skip
    found = module.RunState.of(run)
    assert found.fixed.tolist() == [True, False] and found.labels.tolist() == [1, -1]
    assert found.outside.tolist() == [False, False, True] and found.truth == {"a": "x"} and found.manifest == "manifest"
