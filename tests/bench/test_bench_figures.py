"""Pictures of the benchmark: whole PNGs, whatever the number of points, panels, classes and gaps."""

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from anomalyncd.bench import figures as bench_figures
from anomalyncd.bench.figures import draw_lines, draw_tsne
from anomalyncd.errors import DataError

METRICS = ["nmi", "ari", "f1"]


def opened(path):
    """(H, W, 3) uint8; fails on anything but a whole PNG."""
    with Image.open(path) as picture:
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
        {"threshold": [0.1, 0.5, 0.9] * 2, "detector": ["musc"] * 3 + ["patchcore"] * 3}
        | {metric: [0.2, 0.5, 0.3, 0.3, 0.6, 0.1] for metric in METRICS}
    )


def mebin(detectors=("musc", "patchcore")):
    return pd.DataFrame({"detector": list(detectors)} | {metric: [0.7] * len(detectors) for metric in METRICS})


@pytest.fixture
def drawn_axes(monkeypatch):
    """The panels of what a test draws, as matplotlib has them."""
    kept = []
    save = bench_figures._save
    monkeypatch.setattr(bench_figures, "_save", lambda figure, path: (kept.extend(figure.axes), save(figure, path))[1])
    return kept


def test_tsne_has_a_panel_for_each_method_and_all_points_in_each(tmp_path, drawn_axes):
    features, labels = blobs()
    path = draw_tsne({"ours": features, "theirs": features[:, :2]}, labels, tmp_path / "new" / "tsne.png")
    assert opened(path).std() > 0
    assert [axis.get_title() for axis in drawn_axes] == ["ours", "theirs"]
    for axis in drawn_axes:
        assert [len(points.get_offsets()) for points in axis.collections] == [8, 8, 8]
    assert [text.get_text() for text in drawn_axes[0].figure.legends[0].get_texts()] == ["c0", "c1", "c2"]
    assert list(path.parent.iterdir()) == [path]


def test_tsne_keeps_clusters_together(tmp_path, drawn_axes):
    features, labels = blobs(per_class=12)
    draw_tsne({"ours": features}, labels, tmp_path / "tsne.png")
    clusters = [np.asarray(points.get_offsets()) for points in drawn_axes[0].collections]
    centres = np.array([cluster.mean(axis=0) for cluster in clusters])
    for own, cluster in enumerate(clusters):
        distances = np.linalg.norm(cluster[:, None] - centres, axis=2)
        assert (distances.argmin(axis=1) == own).all()


@pytest.mark.parametrize("n_points", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_tsne_of_few_points(tmp_path, n_points, width):
    features = np.random.default_rng(0).normal(size=(n_points, width)).astype(np.float32)
    opened(draw_tsne({"ours": features}, [str(i) for i in range(n_points)], tmp_path / "tsne.png"))


def test_tsne_of_points_that_are_all_alike(tmp_path):
    opened(draw_tsne({"ours": np.ones((9, 4), np.float32)}, ["a"] * 9, tmp_path / "tsne.png"))


def test_tsne_tells_many_classes_apart(tmp_path, drawn_axes):
    features, labels = blobs(n_classes=30, per_class=1)
    draw_tsne({"ours": features}, labels, tmp_path / "tsne.png")
    keys = drawn_axes[0].figure.legends[0].get_lines()
    assert len({(key.get_color(), key.get_marker()) for key in keys}) == 30


def test_legend_of_long_names_stays_inside_the_picture(tmp_path, drawn_axes):
    features, labels = blobs(n_classes=12, per_class=2)
    draw_tsne({"ours": features}, [f"a rather long name of a class, {label}" for label in labels], tmp_path / "t.png")
    figure = drawn_axes[0].figure
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_tsne_is_the_same_for_the_same_seed(tmp_path):
    features, labels = blobs()
    first, second = (draw_tsne({"ours": features}, labels, tmp_path / name, seed=3) for name in ("a.png", "b.png"))
    assert (opened(first) == opened(second)).all()


@pytest.mark.parametrize(
    ("panels", "labels", "message"),
    [
        ({}, ["a"], "at least one method"),
        ({"ours": np.ones((0, 2))}, [], "at least one method and one image"),
        ({"ours": np.ones((3, 2))}, ["a", "b"], r"ours must be \(2, d\), but got \(3, 2\)"),
        ({"ours": np.ones(2)}, ["a", "b"], r"ours must be \(2, d\), but got \(2,\)"),
        ({"ours": np.array([[1.0], [np.nan]])}, ["a", "b"], "ours must be finite, but 1 are not"),
    ],
)
def test_tsne_of_bad_features(tmp_path, panels, labels, message):
    with pytest.raises(DataError, match=message):
        draw_tsne(panels, labels, tmp_path / "tsne.png")
    assert not list(tmp_path.iterdir())


def test_lines_have_a_panel_for_each_detector_a_line_for_each_score_and_a_dashed_one_for_mebin(tmp_path, drawn_axes):
    path = draw_lines(
        fixed_thresholds(), "threshold", "detector", METRICS, tmp_path / "fixed.png", marked=mebin(), title="Fixed"
    )
    assert has_colour(opened(path), bench_figures.COLOURS[2])
    assert [axis.get_title() for axis in drawn_axes] == ["musc", "patchcore"]
    for axis, expected in zip(drawn_axes, ([0.2, 0.5, 0.3], [0.3, 0.6, 0.1]), strict=True):
        lines = [line for line in axis.lines if line.get_marker() == "o"]
        dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
        assert [line.get_ydata().tolist() for line in lines] == [expected] * 3
        assert [set(line.get_ydata()) for line in dashed] == [{0.7}] * 3
        assert [line.get_color() for line in dashed] == [line.get_color() for line in lines]
    names = [text.get_text() for text in drawn_axes[0].figure.legends[0].get_texts()]
    assert names == ["NMI", "ARI", "F1", "MEBin"]


def test_seeds_are_drawn_as_mean_and_band(tmp_path, drawn_axes):
    table = pd.DataFrame({"T": [32, 64] * 2, "dataset": "mtd", "nmi": [0.2, 0.4, 0.4, 0.5]})
    draw_lines(table, "T", "dataset", ["nmi"], tmp_path / "T.png")
    (axis,) = drawn_axes
    assert axis.lines[0].get_ydata() == pytest.approx([0.3, 0.45])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("values", "scale"), [([16, 32, 64, 128], "log"), ([0.1, 0.3, 0.5], "linear"), ([0, 1], "linear")]
)
def test_powers_of_two_are_evenly_spaced_and_every_value_has_its_tick(tmp_path, drawn_axes, values, scale):
    table = pd.DataFrame({"x": values, "dataset": "mtd", "nmi": 0.5})
    draw_lines(table, "x", "dataset", ["nmi"], tmp_path / "x.png")
    assert drawn_axes[0].get_xscale() == scale
    assert [text.get_text() for text in drawn_axes[0].get_xticklabels()] == [f"{value:g}" for value in values]


def test_points_not_run_are_left_out_and_a_panel_of_none_says_so(tmp_path, drawn_axes):
    table = fixed_thresholds()
    table.loc[1, METRICS] = np.nan
    table.loc[table["detector"] == "patchcore", METRICS] = np.nan
    draw_lines(table, "threshold", "detector", METRICS, tmp_path / "fixed.png", marked=mebin(["musc"]))
    some, none = drawn_axes
    assert some.lines[0].get_xdata().tolist() == [0.1, 0.9]
    assert [text.get_text() for text in none.texts] == ["not run"]
    assert not some.texts
    assert some.get_xlim() == none.get_xlim()


def test_scores_below_zero_stay_inside(tmp_path, drawn_axes):
    table = pd.DataFrame({"T": [32, 64], "dataset": "mtd", "ari": [-0.1, 0.2]})
    draw_lines(table, "T", "dataset", ["ari"], tmp_path / "T.png")
    assert drawn_axes[0].get_ylim()[0] < -0.1


@pytest.mark.parametrize(
    ("table", "values", "marked", "message"),
    [
        (fixed_thresholds().drop(columns="ari"), METRICS, None, "no column ari"),
        (fixed_thresholds(), METRICS, mebin().drop(columns="f1"), "no column f1 of MEBin"),
        (fixed_thresholds().head(0), METRICS, None, "nothing to draw"),
        (fixed_thresholds(), [], None, "nothing to draw"),
    ],
)
def test_lines_of_a_bad_table(tmp_path, table, values, marked, message):
    with pytest.raises(DataError, match=message):
        draw_lines(table, "threshold", "detector", values, tmp_path / "fixed.png", marked=marked)


def test_drawing_needs_no_pyplot(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    draw_tsne({"ours": np.eye(4)}, list("aabb"), tmp_path / "tsne.png")
    draw_lines(fixed_thresholds(), "threshold", "detector", METRICS, tmp_path / "fixed.png")
    assert "matplotlib.pyplot" not in sys.modules
