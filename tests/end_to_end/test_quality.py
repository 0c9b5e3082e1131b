"""Does it find the classes? With the real backbone, where its weights are on this machine."""

from __future__ import annotations

import pytest

from anomalyncd import AnomalyNCD, evaluate
from anomalyncd.demo import iter_line
from anomalyncd.model.registry import EMBEDDED
from anomalyncd.model.weights import available

pytestmark = pytest.mark.skipif(
    not available(EMBEDDED), reason=f"the weights {EMBEDDED} are not in the cache: anomalyncd weights fetch"
)


def test_classes_and_combined_images() -> None:
    kinds = ["hole", "scratch", "print"]
    items = list(iter_line(n_per_class=5, n_normal=2, n_combined=2, size=160, kinds=kinds))
    single = [item for item in items if item.label != "combined"]
    combined = [item for item in items if item.label == "combined"]
    model = AnomalyNCD(4, backbone=EMBEDDED)
    model.fit([item.image for item in single], masks=[item.mask if item.mask.any() else None for item in single])
    found = evaluate([item.label for item in single], model.labels_.tolist())
    assert found.f1 > 0.9 and found.normal_recall == 1
    name_of = found.matching
    prediction = model.predict([item.image for item in combined], masks=[item.mask for item in combined])
    for item, classes in zip(combined, prediction.images["classes"], strict=True):
        assert {name_of[int(label)] for label in classes.split(";")} == set(item.kinds)
