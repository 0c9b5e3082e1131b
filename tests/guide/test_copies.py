"""Near-duplicates among images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD, large
from anomalyncd.guide.copies import copies
from scenes import KINDS, TINY, write_scenes


def test_groups_are_chains_of_what_is_much_nearer_than_usual() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 10)).astype(np.float32)
    x[5] = x[3] + 0.001 * rng.normal(size=10)
    x[9] = x[5] + 0.001 * rng.normal(size=10)
    x[12] = x[11]
    x[19] = np.nan
    assert copies(x) == [[3, 5, 9], [11, 12]]
    assert copies(x[:1]) == [] and copies(x[:0]) == [] and copies(x[[0, 1, 2, 4]]) == []


def test_a_run_knows_its_copies(tmp_path: Path) -> None:
    line = write_scenes(tmp_path, KINDS, seed=0)
    (line / "images" / "900.png").write_bytes((line / "images" / "010.png").read_bytes())
    (line / "masks" / "900.png").write_bytes((line / "masks" / "010.png").read_bytes())
    model = AnomalyNCD(4, **TINY).fit(line / "images", masks=line / "masks", run=tmp_path / "run")
    assert any({"010.png", "900.png"} <= set(group) for group in model.copies())


def test_of_many_images_the_same_groups_are_found_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(12, 20))[rng.integers(12, size=4000)] + rng.normal(0, 0.3, (4000, 20))).astype(np.float32)
    x[[3990, 3991]] = x[7] + 1e-4 * rng.normal(size=(2, 20))
    x[3000] = x[20]
    exact = copies(x)
    assert [7, 3990, 3991] in exact and [20, 3000] in exact
    monkeypatch.setattr(large, "LARGE", 1000)
    monkeypatch.setattr(large, "COMPARED", 512)
    assert copies(x) == exact
