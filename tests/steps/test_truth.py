"""Maps and image scores against masks and labels; the whole of it through the command: tests/cli/test_detect.py."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from anomalyncd.config import make_config
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.progress import Silent
from anomalyncd.steps.truth import evaluate_maps

SIDE = 64


def spot(top: int, left: int, side: int = 12) -> np.ndarray:
    out = np.zeros((SIDE, SIDE), np.float32)
    out[top : top + side, left : left + side] = 1
    return out


@pytest.fixture
def made(tmp_path):
    """Two defects, one of which the map finds and one it puts elsewhere, and a normal image with an even map."""
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    maps = {"hole/0": spot(10, 10), "hole/1": spot(40, 40), "good/0": np.full((SIDE, SIDE), 0.01, np.float32)}
    masks = {"hole/0": spot(10, 10) > 0, "hole/1": spot(4, 4) > 0, "good/0": None}
    samples = [Sample(name, image, map=values) for name, values in maps.items()]
    truth = [Sample(name, image, mask=mask, label=name.split("/")[0]) for name, mask in masks.items()]
    scores = pd.DataFrame({"image": list(maps), "score": [0.9, 0.3, 0.5], "height": SIDE, "width": SIDE, "message": ""})
    return samples, scores, Dataset(truth, masked=True)


def test_images_and_boxes_by_hand(made):
    samples, scores, truth = made
    found = evaluate_maps(samples, scores, truth, make_config({}), Silent())
    assert (found.n_images, found.n_defective) == (3, 2)
    assert found.image_auroc == 0.5  # 0.9 above the normal image's 0.5, 0.3 below
    assert (found.box_fpr_defective, found.box_fnr, found.box_fnr_images) == (0.5, 0.5, 0.5)


def test_without_masks_and_names_of_normal_there_is_no_truth(made):
    samples, scores, truth = made
    unnamed = Dataset([Sample(s.id, s.image) for s in truth])
    assert evaluate_maps(samples, scores, unnamed, make_config({}), Silent()) is None
    labelled = Dataset([Sample(s.id, s.image, label=s.label) for s in truth])
    found = evaluate_maps(samples, scores, labelled, make_config({}), Silent())
    assert found.image_auroc == 0.5 and found.aupro is None


def test_an_image_that_no_mask_is_about_is_normal(made):
    samples, scores, truth = made
    fewer = Dataset(truth.samples[:2], masked=True)
    found = evaluate_maps(samples, scores, fewer, make_config({}), Silent())
    assert found.aupro == evaluate_maps(samples, scores, truth, make_config({}), Silent()).aupro
