"""Stored pictures of regions."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from anomalyncd.regions.crops import drawn_masks, read_crop, resized


def write(path: Path, picture: np.ndarray) -> None:
    cv2.imwrite(str(path), picture)


def test_a_crop_comes_with_its_mask_and_what_is_gone_is_none(tmp_path: Path) -> None:
    picture = np.full((8, 8, 3), (1, 2, 3), np.uint8)
    write(tmp_path / "a.png", picture)
    crop, mask = read_crop(tmp_path / "a.png")
    assert crop is not None and crop[0, 0].tolist() == [3, 2, 1] and mask is None
    write(tmp_path / "a_mask.png", np.eye(8, dtype=np.uint8) * 255)
    assert read_crop(tmp_path / "a.png")[1].sum() == 8  # type: ignore[union-attr]
    (tmp_path / "link.png").symlink_to(tmp_path / "a.png")
    assert read_crop(tmp_path / "link.png") == (None, None)


def test_grey_of_a_mask_is_no_defect_up_to_the_middle(tmp_path: Path) -> None:
    write(tmp_path / "a_mask.png", np.array([[0, 126, 127, 128, 129, 255]], np.uint8))
    crop, mask = read_crop(tmp_path / "a.png")
    assert crop is None and mask is not None and mask.tolist() == [[False, False, False, True, True, True]]


def test_drawn_masks_are_the_last_ones_of_an_image(tmp_path: Path) -> None:
    for region in (2, 3):
        write(tmp_path / f"{region}.png", np.full((4, 4), 255, np.uint8) * (region == 3))
    found = drawn_masks(lambda region: tmp_path / f"{region}.png", 4)
    assert [mask.any() for mask in found] == [False, True]
    assert not drawn_masks(lambda region: tmp_path / f"{region}.png", 2)


def test_a_thin_line_is_not_lost_where_a_mask_becomes_smaller() -> None:
    mask = np.zeros((100, 100), bool)
    mask[:, 33] = True
    assert resized(mask, (10, 10))[:, 3].all() and resized(mask, (10, 10)).sum() == 10
    assert resized(mask, (200, 200)).sum() == 400
