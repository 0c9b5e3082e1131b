"""New images in a stream: a few at a time, in order, and the same classes as all at once."""

import threading

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.discovery import classify as predicting
from anomalyncd.discovery.classify import Predictor, joined, needs_of, warm_up
from anomalyncd.errors import DataError
from anomalyncd.regions.prefetch import DEPTH, prefetch
from command import call, fail


@pytest.fixture(scope="module")
def line():
    """24 images of three kinds with maps: bright squares, dark bars, and nothing."""
    rng = np.random.default_rng(0)
    images = rng.integers(90, 110, (24, 96, 96, 3), dtype=np.uint8)
    maps = rng.random((24, 48, 48)).astype(np.float32) * 0.05
    for index in range(24):
        if index % 3 == 0:
            images[index, 20:50, 30:60], maps[index, 10:25, 15:30] = 250, 1
        elif index % 3 == 1:
            images[index, 60:72, 10:80], maps[index, 30:36, 5:40] = 5, 1
    return list(images), list(maps)


@pytest.fixture(scope="module")
def model(line):
    return AnomalyNCD(3, backbone="tiny", model={"input_size": 64}, crop={"size": 64}).fit(line[0], maps=line[1])


def test_a_stream_gives_what_one_call_gives(model, line, monkeypatch):
    monkeypatch.setattr(predicting, "SHARD", 5)
    inputs = gather(*line)
    pieces = list(model.predictor(bare=inputs.is_bare).stream(inputs))
    whole = model.predict(line[0], maps=line[1])
    assert [len(piece.labels) for piece in pieces] == [5, 5, 5, 5, 4]
    together = joined(pieces)
    assert together.labels.tolist() == whole.labels.tolist() == model.labels_.tolist()
    pd.testing.assert_frame_equal(together.images, whole.images, atol=1e-6)
    pd.testing.assert_frame_equal(together.regions, whole.regions, atol=1e-6)


class EveryOther:
    """A map maker that gives too few."""

    def maps(self, images):
        return (np.zeros((8, 8), np.float32) for index, _ in enumerate(images) if index % 2)


class Twice:
    def maps(self, images):
        for _ in images:
            yield np.zeros((8, 8), np.float32)
            yield np.zeros((8, 8), np.float32)


class Bright:
    """Maps that show whether each image met its own."""

    def maps(self, images):
        return (image.mean(axis=2).astype(np.float32) for image in images)


def test_each_image_meets_its_own_map_and_bad_files_keep_their_place(model, tmp_path):
    paths = []
    for index in range(9):
        path = tmp_path / f"{index}.png"
        if index % 4 == 0:
            path.write_bytes(b"no image")
        else:
            cv2.imwrite(str(path), np.full((16, 16, 3), 10 * index, np.uint8))
        paths.append(path)
    predictor = Predictor(model.model_, model.model_.extractor(), Bright())
    items = list(predictor._with_maps(gather(paths, bare=True).samples))
    assert [item.id for item in items] == [path.as_posix() for path in paths]
    for index, item in enumerate(items):
        assert item.map is None if index % 4 == 0 else np.all(item.map == 10 * index)


@pytest.mark.parametrize(("maker", "word"), [(EveryOther(), "fewer"), (Twice(), "more")])
def test_a_detector_must_give_one_map_for_each_image(model, line, maker, word):
    predictor = Predictor(model.model_, model.model_.extractor(), maker)
    with pytest.raises(DataError, match=f"one map for each image, but gave {word}"):
        predictor(gather(line[0], bare=True))


def test_no_image_that_can_be_read_is_an_error_and_one_is_enough(model, line):
    with pytest.raises(DataError, match="none of the 2 images could be read"):
        model.predict(["gone.png", "gone too.png"], maps=line[1][:2])
    found = model.predict(["gone.png", line[0][0]], maps=line[1][:2])
    assert len(found.labels) == 1 and list(found.skipped) == ["gone.png"]


def test_prefetch_keeps_order_runs_little_ahead_and_passes_errors_on():
    begun, lock = [], threading.Lock()

    def work(value):
        with lock:
            begun.append(value)
        if value == 30:
            raise ValueError("thirty")
        return value * 2

    results = prefetch(work, range(100))
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert max(begun) <= 5 + DEPTH
    with pytest.raises(ValueError, match="thirty"):
        list(results)
    assert max(begun) <= 31 + DEPTH


def test_prefetch_can_be_left_early():
    results = prefetch(lambda value: value, iter(range(10**9)))
    assert next(results) == 0
    results.close()


def test_regions_have_the_same_types_where_there_are_none(model, line):
    some, none = (
        model.predict(line[0][index : index + 1], maps=line[1][index : index + 1]).regions for index in (0, 2)
    )
    assert len(some) and not len(none)
    assert none.dtypes.to_dict() == some.dtypes.to_dict()


def test_what_is_read_is_not_written_over(model, line, tmp_path):
    model.save(tmp_path / "run")
    for index in range(2):
        cv2.imwrite(str(tmp_path / f"{index}.png"), line[0][index])
        np.save(tmp_path / f"{index}.npy", line[1][index])
    table = tmp_path / "list.csv"
    table.write_text("image,map\n0.png,0.npy\n1.png,1.npy\n")
    before = table.read_bytes()
    for out in (table, tmp_path / "run" / "images.csv", tmp_path / "run" / "manifest.csv"):
        assert "written over what is read" in fail("predict", tmp_path / "run", table, "--out", out)
    assert table.read_bytes() == before
    call("predict", tmp_path / "run", table, "--out", tmp_path / "new.csv")
    assert len(pd.read_csv(tmp_path / "new.csv")) == 2


def test_what_must_come_with_an_image(model, line):
    given = Predictor(model.model_, model.model_.extractor())
    assert needs_of(given) == "map"
    assert needs_of(Predictor(model.model_, model.model_.extractor(), Bright())) == "image"
    masks = [anomaly_map > 0.5 for anomaly_map in line[1][:6]]
    masked = AnomalyNCD(3, backbone="tiny", model={"input_size": 64}, crop={"size": 64}).fit(line[0][:6], masks=masks)
    assert needs_of(Predictor(masked.model_, masked.model_.extractor())) == "mask"


@pytest.mark.parametrize("given", ["maps", "masks", "detector"])
def test_warming_up_classes_a_region(model, line, given, monkeypatch):
    if given == "masks":
        masks = [anomaly_map > 0.5 for anomaly_map in line[1][:6]]
        settings = {"backbone": "tiny", "model": {"input_size": 64}, "crop": {"size": 64}}
        model = AnomalyNCD(3, **settings).fit(line[0][:6], masks=masks)
    maker = Bright() if given == "detector" else None
    predictor = Predictor(model.model_, model.model_.extractor(), maker)
    seen, samples = [], []
    extract = predictor.extract
    monkeypatch.setattr(predictor, "extract", lambda items: (samples.extend(items), extract(items))[1])
    monkeypatch.setattr(predictor, "classify", lambda found: seen.append(found))
    warm_up(predictor)
    (found,), (item,) = seen, samples
    assert item.image.shape == (256, 256, 3) and {(item.map is None), (item.mask is None)} == (
        {True} if given == "detector" else {True, False}
    )
    assert (item.image[64:128, 64:128] == 255).all() and item.image[:64].max() == item.image[128:].max() == 128
    (region,) = found.regions
    if given == "detector":  # its maps are of another range, so that all of the image is a region
        return
    x, y, width, height = region.box
    assert abs(x - 64) <= 4 and abs(y - 64) <= 4 and abs(width - 64) <= 8 and abs(height - 64) <= 8
    marks, binarizer = item.mask if given == "masks" else item.map, model.model_.binarizer
    low, high = (0, 1) if binarizer is None else (binarizer.low_, binarizer.high_)
    assert marks[:64].max() == np.float32(low) and marks[64:128, 64:128].min() == np.float32(high)


def test_predictions_in_pieces_are_joined_in_order(model, line):
    pieces = [model.predict(line[0][index : index + 1], maps=line[1][index : index + 1]) for index in (2, 0, 1)]
    pieces[1].skipped["gone.png"] = "damaged"
    whole = joined(pieces)
    assert whole.labels.tolist() == [int(piece.labels[0]) for piece in pieces] and whole.skipped == {
        "gone.png": "damaged"
    }
    np.testing.assert_array_equal(whole.probabilities, np.concatenate([piece.probabilities for piece in pieces]))
    assert len(whole.regions) == sum(len(piece.regions) for piece in pieces)
    assert whole.images["image"].tolist() == [piece.images["image"][0] for piece in pieces]
    assert whole.images.index.tolist() == [0, 1, 2] and joined(pieces[:1]) is pieces[0]
    none = joined([pieces[0], pieces[0]])
    assert not len(none.regions) and list(none.regions) == list(whole.regions)
