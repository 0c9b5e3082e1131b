"""Which images, in which order, and what happens when files are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anomalyncd.errors import RunError
from anomalyncd.report import classes
from anomalyncd.report.canvas import OUTLINE
from anomalyncd.report.classes import (
    HEADER,
    MARGIN,
    PAIR_GAP,
    PAIR_WIDTH,
    SECTION,
    SIDE,
    WIDTH,
    _choose,
    _safe,
    class_page,
    draw_class_sheets,
    make_tiles,
)
from anomalyncd.run.finished import FinishedRun


def tiles(page: Any, row: int = 0, column: int = 0) -> tuple[Any, Any]:
    """Plain and painted tile of a pair in the first section."""
    top = HEADER + SECTION + row * (SIDE + 62)
    left = MARGIN + column * (PAIR_WIDTH + PAIR_GAP)
    pair = page[top : top + SIDE, left : left + PAIR_WIDTH]
    return pair[:, :SIDE], pair[:, -SIDE:]


def outlined(tile: Any) -> Any:
    return (tile == OUTLINE).all(axis=-1)


def read(path: Path) -> Any:
    return np.asarray(Image.open(path))


@pytest.mark.parametrize("maps", ["own", "mirrored", "given"])
def test_a_page_a_class_with_map_and_mask(make_run: Any, maps: str) -> None:
    run, items = make_run(maps=maps)
    pages = draw_class_sheets(FinishedRun(run, given=items))
    assert [page.name for page in pages] == ["class_0_normal.png", "class_1_Riß_Öl_3_µm.png"]
    assert all(page.parent == run / "pictures" for page in pages)
    assert not list(run.rglob("*.partial"))
    normal, defect = map(read, pages)
    assert normal.shape[1] == defect.shape[1] == WIDTH
    plain, painted = tiles(defect)
    assert (plain[SIDE // 2] == 100).all()  # the surest image is the first
    assert not outlined(plain).any()
    rows, columns = np.nonzero(outlined(painted))
    # Mask rows 4 … 11 of 20 and columns 6 … 17 of 30, on a picture of 149 × 224 in the middle of the tile.
    assert abs(rows.min() - (37 + 149 * 4 / 20)) <= 2 and abs(rows.max() - (37 + 149 * 12 / 20)) <= 2
    assert abs(columns.min() - 224 * 6 / 30) <= 2 and abs(columns.max() - 224 * 18 / 30) <= 2
    assert np.ptp(painted[37 + 60, 90].astype(int)) > 50  # hot, so no longer grey
    assert not outlined(normal).any(axis=1)[HEADER:].any()


def test_without_maps_only_the_mask_is_drawn(make_run: Any) -> None:
    run, items = make_run(maps="none")
    _, page = draw_class_sheets(FinishedRun(run, given=items))
    plain, painted = tiles(read(page))
    changed = (plain != painted).any(axis=-1)
    assert outlined(painted).any()
    assert set(map(tuple, painted[changed])) == {OUTLINE, (0, 0, 0)}


def test_images_that_are_gone_or_damaged_are_said(make_run: Any) -> None:
    run, items = make_run()
    whole = [read(page) for page in draw_class_sheets(FinishedRun(run, given=items))]
    items[0].image.unlink()
    items[1].image.write_bytes(b"no image")
    (run / "maps/000/000001_folder_001.npy").unlink()
    (run / "masks/000/000001_folder_001.png").write_bytes(b"")
    page = read(draw_class_sheets(FinishedRun(run, given=items))[1])
    for column in (0, 1):
        assert (tiles(page, column=column)[0] != tiles(whole[1], column=column)[0]).any()
        assert (tiles(page, column=column)[0] < 160).any()  # words
    assert outlined(tiles(page)[1]).any() and not outlined(tiles(page, column=1)[1]).any()
    np.testing.assert_array_equal(tiles(page, column=2)[1], tiles(whole[1], column=2)[1])
    np.testing.assert_array_equal(
        read(draw_class_sheets(FinishedRun(run))[1])[HEADER:][:SECTION], page[HEADER:][:SECTION]
    )


def test_surest_first_and_least_sure_last(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, items = make_run(n_images=60)  # 24 with a defect, the later the less sure; 36 without, alike but for the score
    table = pd.read_csv(run / "manifest.csv")
    table.loc[2, "score"] = 0.7
    table.to_csv(run / "manifest.csv", index=False)
    shown = []

    def keep(title: str, subtitle: str, sections: Any, scale: Any) -> Any:
        shown.append((subtitle, [(heading, [(name, note) for name, note, _ in pairs]) for heading, pairs in sections]))
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(classes, "class_page", keep)
    draw_class_sheets(FinishedRun(run, given=items))
    (_, normal), (subtitle, defect) = shown
    assert subtitle.startswith("24 images · 24 regions · probability 0.") and "at least 0.430" in subtitle
    (first, surest), (last, least) = defect
    numbers = [int(name[7:10]) for name, _ in surest + least]
    assert numbers == [0, 1, 5, 6, 10, 11, 15, 16, 20, 51, 55, 56]
    assert "Surest" in first and "Least sure" in last
    assert least[-1][1] == "probability 0.430 · 1 region · score 0.90 · or normal (0.57)"
    assert surest[0][1].startswith("probability 0.990") and "or normal (0.01)" in surest[0][1]
    assert normal[1][1][-1][0] == "folder/002.png"  # of equally sure normal images that with the highest map


@given(st.integers(1, 500))
@settings(deadline=None)
def test_choice_shows_none_twice_and_fills_lines(n_images: int) -> None:
    surest, least = _choose(n_images)
    chosen = [*surest, *least]
    assert len(set(chosen)) == len(chosen) == min(12, n_images)
    assert chosen[0] == 0 and chosen[-1] == n_images - 1
    assert len(least) <= 3 and (len(least) == 3 or n_images < 6)


def test_pages_of_earlier_classes_go_and_other_files_stay(make_run: Any) -> None:
    run, items = make_run()
    (run / "pictures").mkdir()
    (run / "pictures/class_7_old.png").touch()
    (run / "pictures/binarizers.png").touch()
    pages = draw_class_sheets(FinishedRun(run, given=items))
    assert set((run / "pictures").iterdir()) == {*pages, run / "pictures/binarizers.png"}


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "etc_passwd"),
        ("裂纹", "裂纹"),
        ("", ""),
        ("a:b*c?", "a_b_c"),
        ("x" * 300, "x" * 40),
        ("...", ""),
    ],
)
def test_class_names_are_safe_as_file_names(name: str, safe: str) -> None:
    assert _safe(name) == safe


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected a finished run"):
        draw_class_sheets(FinishedRun(tmp_path))


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (3000, 20), (37, 41)])
def test_any_shape_fits_its_tile(size: tuple[int, int]) -> None:
    image = np.full((*size, 3), 50, np.uint8)
    plain, painted = make_tiles(image, np.ones((3, 7)), np.ones((2, 2), bool), (0, 1))
    assert plain.shape == painted.shape == (SIDE, SIDE, 3)
    assert (plain == 50).all(axis=-1).any() and outlined(painted).any()


def test_long_texts_stay_in_their_place() -> None:
    both = make_tiles(np.full((9, 9, 3), 50, np.uint8), None, None, None)
    short, long = ("", "", both), ("folder/" * 90 + "name.png", "words " * 200, both)
    plain, wordy = (
        class_page("t" * n, "s" * n, [("All", [p, short])], scale=(0, 1)) for n, p in ((0, short), (900, long))
    )
    caption = slice(HEADER + SECTION + SIDE, None)
    np.testing.assert_array_equal(plain[caption, MARGIN + PAIR_WIDTH + 4 :], wordy[caption, MARGIN + PAIR_WIDTH + 4 :])
    assert (plain[caption] != wordy[caption]).any()
    legend = (slice(0, MARGIN + 36), slice(WIDTH - 470, None))
    np.testing.assert_array_equal(plain[legend], wordy[legend])
    assert (wordy[:, -MARGIN:] == plain[:, -MARGIN:]).all()
