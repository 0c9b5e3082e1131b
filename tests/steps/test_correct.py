"""Classes named and regions placed from a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.errors import DataError
from scenes import KINDS, fit, write_scenes


def test_names_and_corrections_from_a_script(tmp_path: Path) -> None:
    model = fit(write_scenes(tmp_path, KINDS, seed=0), tmp_path / "run", "masks")
    image = model.regions_["image"].iloc[0]
    moved = model.correct({(image, 0): 0}, names={1: "Riß", 2: "dent"})
    assert (image, 0) in [(move.image, move.region) for move in moved]
    for again in (model, AnomalyNCD.load(tmp_path / "run")):
        assert {"Riß", "dent"} <= set(again.run_.names.values())
        assert again.images_.set_index("image").loc[image, "label"] == 0
    for names in ({9: "x"}, {1: ""}, {1: "a\nb"}, {1: "DENT"}, {1: 3}, {1: "x", 2: 3}):
        with pytest.raises(DataError, match=r"there is no class 9|must be a line of text|two classes would be called"):
            model.correct(names=names)  # type: ignore[arg-type]
