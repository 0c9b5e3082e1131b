"""A whole image goes through the network once, although its map and its description both come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from anomalyncd import AnomalyNCD
from anomalyncd.demo import make_line
from anomalyncd.detect.tokens import TokenDetector
from anomalyncd.discovery.update import update_run
from anomalyncd.model.backbone import MaskGuidedViT
from anomalyncd.run.finished import FinishedRun

SIDE, CROP = 128, 64
SETTINGS: dict[str, Any] = {
    "backbone": "tiny", "model": {"image_size": SIDE, "input_size": CROP}, "crop": {"size": CROP},
    "detect": {"settings": {"size": SIDE}, "false_alarms": 0.3},
}  # fmt: skip


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    make_line(folder / "line", n_per_class=5, n_normal=4, n_combined=0, kinds=["hole", "print"])
    make_line(folder / "more", n_per_class=2, n_normal=1, n_combined=0, kinds=["hole"], seed=2)
    make_line(folder / "normal", n_per_class=1, n_normal=7, n_combined=0, kinds=["hole"], seed=1)
    return folder


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """Side of a picture → how many of that side the network was shown."""
    shown: Counter[int] = Counter()
    embed = MaskGuidedViT._embed

    def counting(self: MaskGuidedViT, images: Tensor) -> Tensor:
        shown[images.shape[-1]] += len(images)
        return embed(self, images)

    monkeypatch.setattr(MaskGuidedViT, "_embed", counting)
    yield shown


def found(line: Path, run: Path, detector: str, **more: Any) -> AnomalyNCD:
    normal = line / "normal" / "images" / "good" if detector == "patchcore" else None
    settings = {**SETTINGS, **more, "detect": {**SETTINGS["detect"], **more.get("detect", {})}}
    return AnomalyNCD(3, **settings).fit(line / "line" / "images", detector=detector, normal=normal, run=run)


@pytest.mark.parametrize(("detector", "n_normal"), [("patchcore", 7), ("musc", 0)])
def test_each_image_is_looked_at_once_and_nothing_changes_by_it(
    detector: str, n_normal: int, line: Path, tmp_path: Path, passes: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = found(line, tmp_path / "run", detector)
    n_images, n_regions = len(model.labels_), len(model.regions_)
    assert passes == {SIDE: n_images + n_normal, CROP: n_regions}
    assert not (tmp_path / "run" / "seen").exists()
    passes.clear()
    new = model.predict(line / "more" / "images")
    assert passes == {SIDE: len(new.labels), CROP: len(new.regions)}
    passes.clear()
    update_run(tmp_path / "run", FinishedRun(tmp_path / "run").gather(line / "more" / "images"))
    assert passes == {SIDE: len(new.labels), CROP: len(new.regions)}
    assert not (tmp_path / "run" / "seen").exists()

    monkeypatch.setattr(TokenDetector, "shares", lambda self, config: False)
    passes.clear()
    other = found(line, tmp_path / "other", detector)
    assert passes[SIDE] > n_images + n_normal, "else this test counts nothing"
    assert model.labels_.tolist() == other.labels_.tolist()
    np.testing.assert_allclose(model.probabilities_, other.probabilities_, atol=2e-3)
    np.testing.assert_allclose(model.region_features(), other.region_features(), atol=2e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"detect": {"settings": {"size": SIDE, "tile": 200}}}, {"detect": {"settings": {"size": SIDE + 16}}},
        {"detect": {"settings": {"size": SIDE, "blocks": [1, 2]}}},
    ],
)  # fmt: skip
def test_another_look_of_the_detector_serves_nobody_else(
    more: dict[str, Any], line: Path, tmp_path: Path, passes: Counter[int]
) -> None:
    model = found(line, tmp_path / "run", "patchcore", **more)
    own = found(line, tmp_path / "other", "patchcore", **more, features={"views": 2})
    assert model.labels_.shape == own.labels_.shape
    assert passes[SIDE] >= 2 * len(model.labels_), "each run describes the whole images itself"
