"""Maps of a run, file by file, with a detector of ten lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anomalyncd.blocks.engine import Engine
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.detect.base import Detection
from anomalyncd.discovery import maps
from anomalyncd.errors import DataError, RunError
from anomalyncd.progress import Advance, Silent
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.map_files import MapFiles
from anomalyncd.run.stages import Stages


class Grey:
    """Maps of the mean colour; a score that is ten times the largest; it needs normal images where it is told so."""

    name, is_ready, compared = "grey", False, None

    def __init__(self, *, needs_normal: bool = False, unseen: object = None) -> None:
        self.needs_normal, self.unseen = needs_normal, unseen
        self.seen: list[int] = []
        self.asked: list[list[int]] = []
        self.progress, self.workspace = Silent(), None
        self.suspects: dict[int, float] = {}

    def fit(self, images: object) -> None:
        self.seen = [int(image.mean()) for image in images]  # type: ignore[attr-defined]
        self.told = (self.progress, self.workspace)

    def detect(self, images: object) -> Iterator[Detection]:
        for image in images:  # type: ignore[attr-defined]
            values = image.mean(axis=2).astype(np.float32)
            yield Detection(values, 10 * float(values.max()))

    def held_out(self, images: object, places: list[int]) -> object:
        self.asked.append(list(places))
        if self.unseen is None:
            return None
        return [
            found if place in self.unseen else None  # type: ignore[operator]
            for place, found in zip(places, self.detect(images), strict=True)
        ]


class Noted(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []
        self.shown: list[tuple[str, int, list[int]]] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        steps: list[int] = []
        self.shown.append((name, total, steps))
        yield lambda count=1, note="": steps.append(count)


def greys(*levels: int | None) -> list[Sample]:
    """Grey images of 6 × 8; None is a file that cannot be read."""
    return [
        Sample(f"{place}.png", Path(f"gone {place}.png") if level is None else np.full((6, 8, 3), level, np.uint8))
        for place, level in enumerate(levels)
    ]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "opened").writing() as folder:
        yield folder


CONFIG = make_config({"model": {"backbone": "tiny"}, "detect": {"name": "musc"}})


def written(
    folder: RunFolder, samples: list[Sample], names: list[str], detector: Grey, shown: Silent, **how: Any
) -> pd.DataFrame:
    config = CONFIG.model_copy(update={"ignore": how.pop("ignore", ())})
    files = MapFiles(folder, samples, names, "key", Engine())
    return maps.write_maps(files, detector, config, shown, **how)  # type: ignore[arg-type]


def fitted(folder: RunFolder, detector: Grey, normal: list[Sample], shown: Silent | None = None) -> Stages:
    stages = Stages(folder, CONFIG, shown or Silent())
    maps._fit(stages, detector, normal)  # type: ignore[arg-type]
    return stages


@pytest.fixture(autouse=True)
def not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing of this detector to store."""
    monkeypatch.setattr(maps, "save_detector", lambda detector, folder: None)


@pytest.mark.parametrize("order", [None, [2, 0, 1]])
def test_maps_scores_and_sizes_by_hand(order: list[int] | None, opened: RunFolder) -> None:
    names, shown = ["maps/a.npy", "maps/b.npy", "maps/c.npy"], Noted()
    table = written(opened, greys(10, None, 30), names, Grey(), shown, order=order)
    assert table["image"].tolist() == ["0.png", "1.png", "2.png"] and table["height"].tolist() == [6, 0, 6]
    assert table["score"].fillna(-1).tolist() == [100, -1, 300] and table["width"].tolist() == [8, 0, 8]
    assert [bool(why) for why in table["message"]] == [False, True, False]
    assert [np.load(opened.place(name)).mean() for name in (names[0], names[2])] == [10, 30]
    unreadable = np.load(opened.place(names[1]))
    assert unreadable.shape == (1, 1) and np.isnan(unreadable).all() and unreadable.dtype == np.float32
    assert shown.shown == [("Anomaly maps", 3, [1, 1, 1, 0])]


def test_a_part_that_is_ignored_has_no_say_in_the_score(opened: RunFolder) -> None:
    image = np.full((6, 8, 3), 10, np.uint8)
    image[:, :4] = 90
    left = [[[(0, 0), (0.5, 0), (0.5, 1), (0, 1)]]]
    table = written(opened, [Sample("a", image)], ["maps/a.npy"], Grey(), Silent(), ignore=left)
    assert table["score"].tolist() == [10] and np.load(opened.place("maps/a.npy"))[:, 4:].max() == 10


def test_too_many_maps_and_no_image_at_all(opened: RunFolder) -> None:
    class Twice(Grey):
        def detect(self, images: object) -> Iterator[Detection]:
            for found in super().detect(images):
                yield found
                yield found

    with pytest.raises(DataError, match="'grey' must give one map for each of 2 images, not 4"):
        written(opened, greys(1, 2), ["maps/a.npy", "maps/b.npy"], Twice(), Silent())
    with pytest.raises(DataError, match="none of the 2 images could be read"):
        written(opened, greys(None, None), ["maps/a.npy", "maps/b.npy"], Grey(), Silent())


@pytest.mark.parametrize(("count", "places"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 2, 3]), (7, [0, 3, 6])])
def test_normal_images_that_are_held_out_are_evenly_spread(
    count: int, places: list[int], opened: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "MOST_HELD_OUT", 3)
    samples, detector = greys(*range(10, 10 + count)), Grey(needs_normal=True, unseen={0, 3, 6})
    fitted(opened, detector, samples)
    assert detector.asked == [places]
    found = maps.normal_samples(opened, samples)
    told = [place for place in places if place in (0, 3, 6)]
    assert [sample.id for sample in found] == [f"{place}.png" for place in told]
    for sample, place in zip(found, told, strict=True):
        assert isinstance(sample.map, Path) and np.load(sample.map).mean() == 10 + place


def test_suspects_are_not_held_out(opened: RunFolder) -> None:
    samples, detector, shown = greys(10, 11, 12, 13), Grey(needs_normal=True, unseen={0, 2, 3}), Noted()
    detector.suspects = {1: 5.0, 3: 4.0}
    fitted(opened, detector, samples, shown)
    assert opened.place("suspects.csv").read_text().splitlines() == ["image,deviations", "1.png,5.0", "3.png,4.0"]
    assert "2 of 4 normal images seem to show a defect" in shown.warned[-1]
    assert detector.asked == [[0, 2]]
    assert [sample.id for sample in maps.normal_samples(opened, samples)] == ["0.png", "2.png"]


def test_a_detector_that_cannot_tell_leaves_no_normal_maps(opened: RunFolder) -> None:
    samples = greys(1, 2, 3)
    fitted(opened, Grey(needs_normal=True), samples)
    assert maps.normal_samples(opened, samples) == []


def test_fitting_needs_normal_images_where_the_detector_does(opened: RunFolder) -> None:
    shown = Noted()
    stages = Stages(opened, CONFIG, shown)
    free, needy = Grey(), Grey(needs_normal=True)
    assert maps._fitted_on(stages, free, greys(1)) == [] and "needs no normal images" in shown.warned[0]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'grey' needs images of normal products"):
        maps._fitted_on(stages, needy, [])  # type: ignore[arg-type]
    needy.is_ready = True  # type: ignore[misc]
    assert maps._fitted_on(stages, needy, []) == []  # type: ignore[arg-type]
    samples = greys(5, None, 7)
    assert maps._fitted_on(stages, needy, samples) == [samples[0], samples[2]] and needy.seen == [5, 7]  # type: ignore[arg-type]
    assert needy.told == (shown, opened.place("training"))
    assert needy.workspace is None and isinstance(needy.progress, Silent)
    assert shown.shown == [("Normal images", 3, [1, 1, 1])] and "skipped" in shown.warned[-1]

    def refused(images: object) -> None:
        list(images)  # type: ignore[call-overload]
        raise DataError("cannot learn")

    needy.fit = refused  # type: ignore[method-assign]
    with pytest.raises(DataError, match="cannot learn"):
        maps._fitted_on(stages, needy, samples)  # type: ignore[arg-type]
    assert needy.workspace is None and needy.progress is not shown
    with pytest.raises(DataError, match="none of the 1 images could be read"):
        maps._fitted_on(stages, needy, greys(None))  # type: ignore[arg-type]


def test_a_finished_run_is_not_replaced_where_it_is_protected(opened: RunFolder) -> None:
    opened.write_text("images.csv", "a run")
    stages = Stages(opened, make_config({"model": {"backbone": "tiny"}, "detect": {"name": "musc"}}), Silent())
    with pytest.raises(RunError, match="here is a finished run of other images or settings"):
        maps.make_maps(stages, greys(1, 2), protected=True)
    assert opened.place("images.csv").exists()
