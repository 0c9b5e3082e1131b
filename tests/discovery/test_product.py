"""Images that do not show the product: what `predict`, `update` and corrections make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import relearn
from anomalyncd.discovery.update import update_run
from anomalyncd.labels import NOT_THIS_PRODUCT
from anomalyncd.learn.features import RegionEncoder
from scenes import GOOD, KINDS, content, fit, images, regions, scene, write_scenes

OTHERS = ["black", "white", "stripes"]


def picture(what: str) -> np.ndarray:
    """(64, 64, 3) uint8 that no camera of the line would take."""
    out = np.full((64, 64, 3), {"black": 0, "white": 255, "stripes": 100}[what], np.uint8)
    if what == "stripes":
        out[:, ::8], out[:, 1::8] = (140, 80, 80), (60, 120, 120)
    return out


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Tomorrow's images, and behind them others: one with a mask and a map that see a defect, the rest with nothing."""
    folder = write_scenes(tmp_path / "mixed", [0, GOOD, 1], seed=5)
    _, mask, anomaly_map = scene(0, np.random.default_rng(0))
    for number, what in enumerate(OTHERS):
        cv2.imwrite(str(folder / "images" / f"9{number}_{what}.png"), picture(what)[..., ::-1])
        np.save(
            folder / "maps" / f"9{number}_{what}.npy", anomaly_map if not number else np.zeros((64, 64), np.float32)
        )
        if not number:
            cv2.imwrite(str(folder / "masks" / f"9{number}_{what}.png"), mask.astype(np.uint8) * 255)
    return folder


def inputs(folder: Path, given: str) -> Any:
    return gather(folder / "images", **{given: folder / given})


def test_they_are_of_no_class_even_where_no_region_was_found(run: Path, mixed: Path, given: str) -> None:
    found = AnomalyNCD.load(run).predict(mixed / "images", **{given: mixed / given})
    assert (found.labels[:3] >= 0).all() and found.labels[3:].tolist() == [-1] * 3
    assert found.images["class_name"].tolist()[3:] == [NOT_THIS_PRODUCT] * 3
    assert NOT_THIS_PRODUCT not in found.images["class_name"].tolist()[:3]
    assert found.images["n_regions"].tolist()[4:] == [0, 0] and found.images["classes"].tolist()[3:] == ["-1"] * 3
    assert (found.images["foreign"][3:] > 0.5).all() and (found.images["foreign"][:3] < 0.5).all()
    assert not found.probabilities[3:].any()
    own = found.regions[found.regions["image"].str.startswith("90_")]
    assert len(own) and set(own["label"]) == {-1} and set(own["class_name"]) == {NOT_THIS_PRODUCT}


def test_what_a_run_is_made_of_is_never_called_so(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "line", KINDS, seed=0)
    cv2.imwrite(str(folder / "images" / "999.png"), picture("stripes"))
    made = fit(folder, tmp_path / "run", "masks")
    assert (made.labels_ >= 0).all() and made.images_["foreign"].idxmax() == len(KINDS)


def test_update_keeps_them_apart_and_opens_no_class(run: Path, mixed: Path, given: str) -> None:
    before = DiscoveryModel.read(run)
    found = update_run(run, inputs(mixed, given))
    assert found.n_images == 6 and found.opened == {} and found.unknown == 0
    assert found.foreign == [f"9{number}_{what}.png" for number, what in enumerate(OTHERS)]
    table = images(run)
    assert table["class_name"].tolist()[-3:] == [NOT_THIS_PRODUCT] * 3 and table["label"].tolist()[-3:] == [-1] * 3
    after = DiscoveryModel.read(run)
    assert after.classes.tolist() == before.classes.tolist()
    assert after.product is not None and before.product is not None
    assert len(after.product.scenes) == len(before.product.scenes) + 3, "they are no examples of the product"
    again = AnomalyNCD.load(run).predict(mixed / "images", **{given: mixed / given})
    assert again.images["class_name"].tolist()[3:] == [NOT_THIS_PRODUCT] * 3
    more = update_run(run, inputs(write_scenes(mixed.parent / "more", [1, 2], seed=7), given))
    assert more.foreign == [] and images(run)["class_name"].tolist().count(NOT_THIS_PRODUCT) == 3, "they stay so"


@pytest.mark.parametrize("given", ["masks"], indirect=True)
def test_a_person_may_say_that_it_is_the_product(run: Path, mixed: Path, given: str) -> None:
    update_run(run, inputs(mixed, given))
    key = next((r.image, r.region) for r in regions(run).itertuples() if r.class_name == NOT_THIS_PRODUCT)
    relearn(run, {key: 1}, [key], {})
    table = images(run).set_index("image")
    assert table.loc[key[0], "label"] == 1 and table.loc[key[0], "class_name"] != NOT_THIS_PRODUCT
    assert table["class_name"].tolist().count(NOT_THIS_PRODUCT) == 2


@pytest.mark.parametrize("given", ["masks"], indirect=True)
def test_a_rate_of_0_switches_it_off_and_saves_the_pass(
    given: str, line: Path, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    plain = RegionEncoder.encode

    def counted(self: RegionEncoder, batch: Any) -> Any:
        passes.append(len(batch.contexts))
        return plain(self, batch)

    monkeypatch.setattr(RegionEncoder, "encode", counted)
    made = fit(line, tmp_path / "made", given, unknown={"foreign_rate": 0})
    with_region = sum(kind != GOOD for kind in KINDS)
    assert sum(passes) == with_region and made.model_.product is None
    found = made.predict(mixed / "images", masks=mixed / "masks")
    assert NOT_THIS_PRODUCT not in found.images["class_name"].tolist() and found.labels[4:].tolist() == [0, 0]
    assert found.images["foreign"].eq(0).all()

    passes.clear()
    relearn(tmp_path / "made", {}, (), {1: "dent"})
    again = fit(line, tmp_path / "made", given)
    assert sum(passes) == len(KINDS), "all images are seen, once"
    assert again.model_.product is not None and again.model_.names[1] == "dent"
    passes.clear()
    before = content(tmp_path / "made", "tokens/*")
    strict = fit(line, tmp_path / "made", given, unknown={"foreign_rate": 0.2})
    assert not passes and content(tmp_path / "made", "tokens/*") == before
    assert strict.model_.product is not None and strict.model_.product.limit <= again.model_.product.limit
    assert strict.model_.names[1] == "dent"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_run_of_few_images_calls_none_of_the_line_so(count: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pictures, masks, _ = zip(*[scene(kind % 3, rng) for kind in range(count)], strict=True)
    made = AnomalyNCD(2, backbone="tiny", model={"image_size": 224}).fit(list(pictures), masks=list(masks))
    new, new_masks, _ = zip(*[scene(kind % 3, rng) for kind in range(12)], strict=True)
    found = made.predict(list(new), masks=list(new_masks))
    assert NOT_THIS_PRODUCT not in found.images["class_name"].tolist()


def test_a_run_without_any_defect_knows_its_product_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    good = [scene(GOOD, rng)[0] for _ in range(12)]
    made = AnomalyNCD(2, backbone="tiny", model={"image_size": 224}).fit(good, masks=[None] * 12, run=tmp_path / "run")
    assert made.labels_.tolist() == [0] * 12
    found = AnomalyNCD.load(tmp_path / "run").predict([good[0], picture("black")], masks=[None, None])
    assert found.images["class_name"].tolist() == ["normal", NOT_THIS_PRODUCT]
