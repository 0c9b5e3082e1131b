"""Pictures of the benchmark: whole PNGs, whatever the number of points, panels, classes and gaps. Covers style.py too."""

import io
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from anomalyncd.bench.figures import COLOURS, INK, draw_bars, draw_lines, draw_tsne, to_png
from anomalyncd.errors import DataError

METRICS = ["nmi", "ari", "f1"]


def opened(figure):
    """(H, W, 3) uint8; fails on anything but a whole PNG."""
    with Image.open(io.BytesIO(to_png(figure))) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


def has_colour(picture, colour):
    rgb = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return bool((np.abs(picture.astype(int) - rgb).max(axis=2) <= 2).any())


def blobs(n_classes=3, per_class=8, width=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_classes), per_class)
    centres = 8 * rng.normal(size=(n_classes, width))
    return (centres[labels] + rng.normal(size=(len(labels), width))).astype(np.float32), [f"c{i}" for i in labels]


def fixed_thresholds():
    return pd.DataFrame(
        {"panel": ["musc"] * 3 + ["patchcore"] * 3, "x": [0.1, 0.5, 0.9] * 2}
        | {metric: [0.2, 0.5, 0.3, 0.3, 0.6, 0.1] for metric in METRICS}
    )


def mebin(panels=("musc", "patchcore")):
    return pd.DataFrame({"panel": list(panels)} | {metric: [0.7] * len(panels) for metric in METRICS})


def test_tsne_has_a_panel_for_each_method_and_all_points_in_each():
    features, labels = blobs()
    figure = draw_tsne({"ours": features, "theirs": features[:, :2]}, labels)
    assert opened(figure).std() > 0
    assert [axis.get_title() for axis in figure.axes] == ["ours", "theirs"]
    for axis in figure.axes:
        assert [len(points.get_offsets()) for points in axis.collections] == [8, 8, 8]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["c0", "c1", "c2"]


def test_tsne_keeps_clusters_together():
    features, labels = blobs(per_class=12)
    (axis,) = draw_tsne({"ours": features}, labels).axes
    clusters = [np.asarray(points.get_offsets()) for points in axis.collections]
    centres = np.array([cluster.mean(axis=0) for cluster in clusters])
    for own, cluster in enumerate(clusters):
        distances = np.linalg.norm(cluster[:, None] - centres, axis=2)
        assert (distances.argmin(axis=1) == own).all()


@pytest.mark.parametrize("n_points", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_tsne_of_few_points(n_points, width):
    features = np.random.default_rng(0).normal(size=(n_points, width)).astype(np.float32)
    opened(draw_tsne({"ours": features}, [str(i) for i in range(n_points)]))


def test_tsne_of_points_that_are_all_alike():
    opened(draw_tsne({"ours": np.ones((9, 4), np.float32)}, ["a"] * 9))


def test_tsne_tells_many_classes_apart():
    features, labels = blobs(n_classes=30, per_class=1)
    keys = draw_tsne({"ours": features}, labels).legends[0].get_lines()
    assert len({(key.get_color(), key.get_marker()) for key in keys}) == 30


def test_legend_of_long_names_stays_inside_the_picture():
    features, labels = blobs(n_classes=12, per_class=2)
    figure = draw_tsne({"ours": features}, [f"a rather long name of a class, {label}" for label in labels])
    opened(figure)
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_tsne_is_the_same_for_the_same_seed():
    features, labels = blobs()
    first, second = (opened(draw_tsne({"ours": features}, labels, seed=3)) for _ in range(2))
    assert (first == second).all()


def test_tsne_of_bad_features():
    with pytest.raises(DataError, match="ours must be finite, but 1 are not"):
        draw_tsne({"ours": np.array([[1.0], [np.nan]])}, ["a", "b"])


def test_lines_have_a_panel_for_each_detector_a_line_for_each_score_and_a_dashed_one_for_mebin():
    figure = draw_lines(fixed_thresholds(), mebin(), "MEBin", x_name="threshold", title="Fixed")
    assert has_colour(opened(figure), COLOURS[2])
    assert [axis.get_title() for axis in figure.axes] == ["musc", "patchcore"]
    assert {axis.get_xlabel() for axis in figure.axes} == {"threshold"}
    for axis, expected in zip(figure.axes, ([0.2, 0.5, 0.3], [0.3, 0.6, 0.1]), strict=True):
        lines = [line for line in axis.lines if line.get_marker() == "o"]
        dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
        assert [line.get_ydata().tolist() for line in lines] == [expected] * 3
        assert [set(line.get_ydata()) for line in dashed] == [{0.7}] * 3
        assert [line.get_color() for line in dashed] == [line.get_color() for line in lines]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["NMI", "ARI", "F1", "MEBin"]


def test_seeds_are_drawn_as_mean_and_band():
    table = pd.DataFrame({"panel": "mtd", "x": [32, 64] * 2, "nmi": [0.2, 0.4, 0.4, 0.5]})
    (axis,) = draw_lines(table, table.head(0)).axes
    assert axis.lines[0].get_ydata() == pytest.approx([0.3, 0.45])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("values", "scale"), [([16, 32, 64, 128], "log"), ([0.1, 0.3, 0.5], "linear"), ([0, 1], "linear")]
)
def test_powers_of_two_are_evenly_spaced_and_every_value_has_its_tick(values, scale):
    table = pd.DataFrame({"panel": "mtd", "x": values, "nmi": 0.5})
    (axis,) = draw_lines(table, table.head(0)).axes
    assert axis.get_xscale() == scale
    assert [text.get_text() for text in axis.get_xticklabels()] == [f"{value:g}" for value in values]


def test_points_not_run_are_left_out_and_a_panel_of_none_says_so():
    table = fixed_thresholds()
    table.loc[1, METRICS] = np.nan
    table.loc[table["panel"] == "patchcore", METRICS] = np.nan
    some, none = draw_lines(table, mebin(["musc"]), "MEBin").axes
    assert some.lines[0].get_xdata().tolist() == [0.1, 0.9]
    assert [text.get_text() for text in none.texts] == ["not run"]
    assert not some.texts
    assert some.get_xlim() == none.get_xlim()


def test_scores_below_zero_stay_inside():
    table = pd.DataFrame({"panel": "mtd", "x": [32, 64], "ari": [-0.1, 0.2]})
    (axis,) = draw_lines(table, table.head(0)).axes
    assert axis.get_ylim()[0] < -0.1


def test_drawing_needs_no_pyplot(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    opened(draw_tsne({"ours": np.eye(4)}, list("aabb")))
    opened(draw_lines(fixed_thresholds(), mebin(), "MEBin"))
    assert "matplotlib.pyplot" not in sys.modules


def test_bars_stand_side_by_side_and_the_paper_is_a_dash():
    rows = [
        ("masks", "mtd", "ours", 0.9, 0.8),
        ("masks", "mtd", "theirs", 0.5, np.nan),
        ("musc", "cable", "ours", 0.6, np.nan),
    ]
    bars = pd.DataFrame(rows, columns=["panel", "group", "name", "value", "paper"])
    figure = draw_bars(bars)
    masks, musc = figure.axes
    assert [axis.get_title() for axis in (masks, musc)] == ["masks", "musc"]
    assert [bar.get_height() for bar in masks.patches] == [0.9, 0.5] and [bar.get_height() for bar in musc.patches] == [
        0.6
    ]
    left, right = sorted(bar.get_x() for bar in masks.patches)
    assert right - left >= masks.patches[0].get_width(), "no bar hides another"
    assert [label.get_text() for label in masks.get_xticklabels()] == ["mtd", "cable"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "theirs", "printed in the paper"]
    (start, end) = masks.collections[0].get_segments()[0]
    bar = masks.patches[0]
    assert start[1] == 0.8 and start[0] < bar.get_x() + bar.get_width() / 2 < end[0]
    picture = opened(figure)
    assert all(has_colour(picture, colour) for colour in (*COLOURS[:2], INK))
