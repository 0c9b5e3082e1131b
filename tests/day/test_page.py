"""The page of a day against counting by hand. Covers source, figures, charts, pictures, html, pdf."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.day.charts import HEIGHT, nice, pareto_chart
from anomalyncd.day.figures import DayFigures, Grouping, day_figures
from anomalyncd.day.html import write_day
from anomalyncd.day.source import groups_of, read_table
from anomalyncd.errors import DataError, MissingDataError, SettingsError
from anomalyncd.export.cells import safe_cells
from anomalyncd.metrics.control import ControlChart
from anomalyncd.watch.drift import BLOCK, REFERENCE, WINDOW

NAMES = {0: "normal", 1: "<b>crack</b>", 2: "$dent$", -1: "unknown"}

KEYS = {
    "hour": lambda row: row["time"][11:13] + ":00",
    "shift": lambda row: ("22–06", "06–14", "14–22")[(int(row["time"][11:13]) + 2) // 8 % 3],
    "lot": lambda row: row["lot"],
    "folder": lambda row: row["image"].split("/")[0],
}


def month(folder: Path, n: int = 400, seed: int = 0) -> Path:
    """Two days of a line with a picture of each kind, one unreadable file and one image of something else."""
    rng = np.random.default_rng(seed)
    times = pd.Timestamp("2026-11-17T00:00") + pd.to_timedelta(np.sort(rng.uniform(0, 2 * 86_400, n)), unit="s")
    labels = rng.choice(list(NAMES), n, p=[0.7, 0.15, 0.1, 0.05])
    for label in NAMES:
        cv2.imwrite(str(folder / f"{label}.png"), rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
    images = pd.DataFrame({"seq": np.arange(1, n + 1), "time": times.strftime("%Y-%m-%dT%H:%M:%S.000+05:00")})
    images["image"] = [f"camera{k % 2}/{k:04d}.png" for k in range(n)]
    images["file"] = [str(folder / f"{label}.png") for label in labels]
    images["status"], images["label"] = "ok", labels
    images["class_name"], images["lot"] = [NAMES[label] for label in labels], [f"L{k // 100}" for k in range(n)]
    images.loc[n - 1, ["status", "label", "class_name"]] = ["unreadable", np.nan, ""]
    images.loc[n - 2, ["label", "class_name"]] = [-1, "not this product"]
    regions = images.loc[images["label"].isin([1, 2, -1]), ["seq", "image", "label", "class_name"]].copy()
    for name, value in (("x", 3), ("y", 4), ("width", 9), ("height", 8)):
        regions[name] = value
    regions["area"] = rng.uniform(5, 90, len(regions)).round(1)
    images.to_csv(folder / "line.csv", index=False)
    regions.to_csv(folder / "line_regions.csv", index=False)
    return folder / "line.csv"


def test_figures_are_those_of_counting_one_by_one(tmp_path: Path) -> None:
    path = month(tmp_path)
    figures = day_figures(read_table(path), "2026-11-18", by=["lot"])
    rows = pd.read_csv(path).to_dict("records")
    good = [row for row in rows if row["status"] == "ok" and row["class_name"] != "not this product"]
    today, before = ([r for r in good if r["time"].startswith(day)] for day in ("2026-11-18", "2026-11-17"))
    assert (figures.n_images, figures.n_before, figures.before) == (len(today), len(before), "2026-11-17")
    assert figures.n_defects == sum(row["label"] != 0 for row in today)
    assert figures.n_unknown_before == sum(row["label"] == -1 for row in before)
    assert (figures.n_unreadable, figures.n_other) == (1, 1)
    counts = Counter(row["class_name"] for row in today if row["label"] != 0)
    assert [kind.look.name for kind in figures.kinds] == [name for name, _ in counts.most_common()]
    seqs, so_far = {row["seq"] for row in today}, 0
    areas = Counter()
    for region in pd.read_csv(tmp_path / "line_regions.csv").to_dict("records"):
        areas[region["class_name"]] += region["area"] if region["seq"] in seqs else 0
    for kind in figures.kinds:
        name, so_far = kind.look.name, so_far + counts[kind.look.name]
        assert (kind.count, kind.share) == (counts[name], counts[name] / len(today))
        assert kind.cumulative == so_far / sum(counts.values())
        assert kind.area == pytest.approx(areas[name] / sum(areas.values()))
        earlier = sum(row["class_name"] == name for row in before)
        assert kind.change == kind.share - earlier / len(before)
    assert [grouping.by for grouping in figures.groupings] == ["hour", "shift", "lot", "folder", "day"]
    for grouping in figures.groupings[:4]:
        key = KEYS[grouping.by]
        sizes = Counter(key(row) for row in today)
        bad = Counter(key(row) for row in today if row["label"] != 0)
        assert grouping.names == sorted(sizes) and grouping.sizes == [sizes[name] for name in grouping.names]
        assert grouping.defects.shares.tolist() == [bad[name] / sizes[name] for name in grouping.names]
    assert figures.groupings[4].sizes == [len(before), len(today)]


def test_the_page_is_one_file_and_nothing_in_a_table_becomes_a_part_of_it(tmp_path: Path) -> None:
    figures = write_day(read_table(month(tmp_path)), tmp_path / "day.html", pdf=tmp_path / "day.pdf")
    text = (tmp_path / "day.html").read_text("utf-8")
    assert figures.day == "2026-11-18" and "<b>crack</b>" not in text and "&lt;b&gt;crack&lt;/b&gt;" in text
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text) and text.count("data:image/webp") >= 3
    assert (tmp_path / "day.pdf").read_bytes().startswith(b"%PDF-") and not list(tmp_path.glob("*.partial"))
    assert write_day(read_table(tmp_path / "line.csv"), tmp_path / "x.html", day="2026-11-17").day == "2026-11-17"
    with pytest.raises(SettingsError, match="2026-11-17 to 2026-11-18"):
        write_day(read_table(tmp_path / "line.csv"), tmp_path / "x.html", day="2026-11-19")


def test_every_kind_of_table_tells_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = month(tmp_path)
    images, regions = pd.read_csv(path), pd.read_csv(tmp_path / "line_regions.csv")
    with sqlite3.connect(tmp_path / "line.sqlite") as db:
        images.to_sql("images", db), regions.to_sql("regions", db)
    (tmp_path / "line.parquet").mkdir()
    for day in ("2026-11-17", "2026-11-18"):
        own = images[images["time"].str.startswith(day)]
        own.to_parquet(tmp_path / "line.parquet" / f"{day}.parquet")
        rows = regions[regions["seq"].isin(own["seq"])]
        rows.to_parquet(tmp_path / "line.parquet" / f"{day}_regions.parquet")
    for name, table in (("images", images), ("regions", regions)):
        (tmp_path / "line.sets" / name).mkdir(parents=True)
        table.to_parquet(tmp_path / "line.sets" / name / "part-0.parquet")
    first, *others = (
        day_figures(read_table(tmp_path / f"line.{kind}"), "2026-11-18")
        for kind in ("csv", "sqlite", "parquet", "sets")
    )
    for other in others:
        assert (other.n_images, other.n_unreadable, other.n_other) == (
            first.n_images,
            first.n_unreadable,
            first.n_other,
        )
        assert [(k.count, round(k.area, 9)) for k in other.kinds] == [(k.count, round(k.area, 9)) for k in first.kinds]


def test_a_table_of_predict_takes_the_times_of_its_files(tmp_path: Path) -> None:
    month(tmp_path)
    names = ["0.png", "1.png", "2.png", "-1.png"]
    table = pd.DataFrame({"image": names, "label": [0, 1, 2, -1], "class_name": ["normal", "NA", "dent", "unknown"]})
    table.to_csv(tmp_path / "new.csv", index=False)
    alone = read_table(tmp_path / "new.csv")
    assert alone.days == [""] and day_figures(alone, "").n_images == 4
    with pytest.raises(DataError, match="not valid UTF-8"):
        read_table(tmp_path / "new.csv", root=Path("\udc80"))
    found = read_table(tmp_path / "new.csv", root=tmp_path)
    figures = write_day(found, tmp_path / "new.html")
    assert len(figures.day) == 10 and "NA" in [kind.look.name for kind in figures.kinds]
    assert "data:image/webp" in (tmp_path / "new.html").read_text("utf-8")


def test_a_day_may_begin_with_the_first_shift(tmp_path: Path) -> None:
    found = read_table(month(tmp_path), begin=6)
    assert found.days == ["2026-11-16", "2026-11-17", "2026-11-18"]
    assert all(found.images.loc[found.images["day"] == "2026-11-16", "time"].dt.hour < 6)


def test_drift_of_the_day_is_on_its_page(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), BLOCK * (REFERENCE + 2 * WINDOW)
    times = pd.date_range("2026-11-17", "2026-11-18T23:00", periods=n).strftime("%Y-%m-%dT%H:%M:%S")
    light = rng.normal(100, 2, n)
    light[-BLOCK * WINDOW :] *= 1.1
    table = pd.DataFrame({"image": "a.png", "time": times, "label": 0, "class_name": "normal", "brightness": light})
    table.assign(model="x").to_csv(tmp_path / "t.csv", index=False)
    figures = write_day(read_table(tmp_path / "t.csv"), tmp_path / "t.html")
    assert [shift.stream for _, shift in figures.shifts] == ["brightness"]
    assert "brightness of images went up" in (tmp_path / "t.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "image is not there"), ("", "cannot be read"),
        ("image,label,class_name,time\na,0,normal,soon\n", "expected times as"),
    ],
)  # fmt: skip
def test_tables_that_are_none(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "t.csv")
    with pytest.raises(MissingDataError, match="none found"):
        read_table(tmp_path / "other.csv")
    with pytest.raises(SettingsError, match="hour, shift, day, folder or a column"):
        groups_of(pd.DataFrame({"image": ["a"]}), "nothing")


@given(st.floats(0, 1e9))
def test_axes_end_above_the_highest_value(value: float) -> None:
    assert value <= nice(value) and (value < 1 or nice(value) <= 2 * value)


def test_bars_are_as_high_as_their_counts(tmp_path: Path) -> None:
    chart = pareto_chart(day_figures(read_table(month(tmp_path)), "2026-11-18").kinds)
    heights = np.array([bar.height for bar in chart.bars])
    counts = np.array([int(bar.title.rsplit(" ", 1)[1]) for bar in chart.bars])
    assert np.allclose(heights / heights[0], counts / counts[0], atol=0.01) and len(chart.dots) == len(counts)
    assert all(bar.y + bar.height == pytest.approx(HEIGHT, abs=0.11) for bar in chart.bars)


OFFSETS = ["", "Z", " UTC", "+01:00", "-0330", "+05", ".123+01:00", ".123456Z", ".5", " +01:00"]


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("between", ["T", " "])
def test_times_are_by_the_clock_that_hung_there(offset: str, between: str, tmp_path: Path) -> None:
    table = _days(f"2026-11-17{between}23:59:59{offset}", f"2026-11-18{between}00:00:00{offset}")
    table.to_csv(tmp_path / "t.csv", index=False)
    found = read_table(tmp_path / "t.csv")
    assert found.days == ["2026-11-17", "2026-11-18"] and found.images["time"].dt.hour.tolist() == [23, 0]


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "UTC"])
def test_times_of_parquet_are_too(unit: str, zone: str | None, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    times = pd.to_datetime(["2026-10-25T01:30", "2026-10-26T00:00"]).tz_localize(zone).as_unit(unit)
    _days("", "").assign(time=times).to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").images["time"].dt.hour.tolist() == [1, 0]


def _days(*times: str) -> pd.DataFrame:
    return pd.DataFrame({"image": [f"{k}.png" for k in range(len(times))], "time": times, "label": 0}).assign(
        class_name="normal"
    )


def test_lots_are_what_is_written_and_groups_are_in_the_order_of_people(tmp_path: Path) -> None:
    hours = [f"2026-11-18T{hour:02d}:30:00" for hour in (6, 14, 22)] + ["2026-11-19T01:30:00"]
    table = _days(*hours).assign(lot=["0010", "0009", "", "0010"], cavity=["10", "9", "", "2"], shift=list("BACA"))
    for name, options in (("t.csv", {"lineterminator": "\r\n", "encoding": "utf-8-sig"}), ("u.csv", {"sep": ";"})):
        table.to_csv(tmp_path / name, index=False, **options)
        figures = day_figures(read_table(tmp_path / name, begin=6), "2026-11-18", by=["lot", "cavity", "shift"])
        names = {grouping.by: grouping.names for grouping in figures.groupings}
        assert names["lot"] == ["", "0009", "0010"] and names["cavity"] == ["", "2", "9", "10"]
        assert names["hour"] == ["06:00", "14:00", "22:00", "01:00"] and names["shift"] == ["A", "B", "C"]
    names = {
        grouping.by: grouping.names for grouping in day_figures(read_table(tmp_path / "t.csv"), "2026-11-18").groupings
    }
    assert names["shift"] == ["06–14", "14–22", "22–06"]  # of the clock, where nobody asks for the column
    table = table.drop(columns="shift").assign(cavity=[10.0, 9.0, np.nan, 2.0])
    assert groups_of(table, "cavity").tolist() == ["10", "9", "", "2"]


def test_shifts_begin_with_the_day() -> None:
    times = pd.DataFrame({"time": pd.to_datetime(["2026-11-18 07:00", "2026-11-18 23:00", "2026-11-19 03:00"])})
    assert groups_of(times, "shift", begin=22).cat.categories.tolist() == ["22–06", "06–14"]
    assert groups_of(times, "hour", begin=22).cat.categories.tolist() == ["23:00", "03:00", "07:00"]


def test_what_is_not_on_the_page_is_told(tmp_path: Path) -> None:
    table = _days(*["2026-11-18T10:00:00"] * 70, "", "").assign(one="L1", each=[str(k) for k in range(72)])
    table.to_csv(tmp_path / "t.csv", index=False)
    figures = write_day(read_table(tmp_path / "t.csv"), tmp_path / "t.html", by=["one", "each"], pdf=tmp_path / "t.pdf")
    page = (tmp_path / "t.html").read_text("utf-8")
    assert len(figures.notes) == 3 and all(line in page for line in figures.notes)
    for words in ("all images are L1", "70 groups are more than 60", "2 images are on no day"):
        assert words in page


def test_a_day_without_the_product_has_a_page(tmp_path: Path) -> None:
    table = _days(*["2026-11-17T10:00:00"] * 3, *["2026-11-18T10:00:00"] * 4)
    table.loc[3:, ["label", "class_name"]] = [-1, "not this product"]
    table.assign(status=["ok"] * 6 + ["unreadable"]).to_csv(tmp_path / "t.csv", index=False)
    found = read_table(tmp_path / "t.csv")
    figures = write_day(found, tmp_path / "t.html", pdf=tmp_path / "t.pdf")
    assert (figures.day, figures.n_images, figures.n_other, figures.n_unreadable) == ("2026-11-18", 0, 3, 1)
    assert (figures.before, figures.n_before, found.n_files) == ("2026-11-17", 3, 7)


def test_a_share_that_is_beyond_its_limit_is_written_differently_from_it() -> None:
    chart = ControlChart(np.array([0.0852]), 0.06, np.array([0.04]), np.array([0.0851]))
    grouping = Grouping("shift", ["06–14"], [1091], {}, chart, ControlChart(np.zeros(1), 0.0, np.zeros(1), np.zeros(1)))
    figures = DayFigures("2026-11-18", "", *[0] * 8, [], set(), [grouping], [], False, [])
    assert figures.warnings == ["06–14 (shift): 8.52 % defects of 1091 images, limits 4.00 % to 8.51 %"]


def test_cells_that_were_quoted_for_spreadsheets_are_names_again(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "=1+1.png"), np.zeros((9, 9, 3), np.uint8))
    table = pd.DataFrame({"image": ["=1+1.png"], "label": [1], "class_name": ["-crack"]})
    safe_cells(table).to_csv(tmp_path / "t.csv", index=False)
    figures = write_day(read_table(tmp_path / "t.csv", root=tmp_path), tmp_path / "t.html")
    assert figures.day and figures.kinds[0].look.name == "-crack"
    assert "data:image/webp" in (tmp_path / "t.html").read_text("utf-8")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".sqlite"])
@pytest.mark.parametrize(
    ("images", "regions"),
    [
        ({"label": ["inf", "1"]}, {}),
        ({"label": ["9" * 30, "1"]}, {}),
        ({"time": ["9999-12-31T23:59:59", "2026-11-18T10:00:00"]}, {}),
        ({"image": ["n" * 5000, "\x1b[2J/a"], "file": ["n" * 5000, "/dev/zero"]}, {}),
        ({}, {"label": ["inf"]}),
        ({}, {"area": ["x"], "x": ["x"]}),
        ({}, {"width": ["1e300"]}),
        ({}, {"area": None, "x": None, "class_name": None}),
    ],
)
def test_tables_of_others_are_pages_too(tmp_path: Path, suffix: str, images: dict, regions: dict) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), np.zeros((30, 40, 3), np.uint8))
    told = {"image": ["a.png", "b.png"], "label": ["2", "1"], "class_name": ["dent", "crack"], "file": ["", ""]}
    told["file"] = [str(tmp_path / "0.png")] * 2
    own = {
        "image": ["b.png"],
        "label": ["1"],
        "class_name": ["dent"],
        "area": [4.0],
        "x": [1],
        "y": [1],
        "width": [2],
        "height": [2],
    }
    frames = [
        pd.DataFrame({name: cells for name, cells in (before | changed).items() if cells is not None})
        for before, changed in ((told, images), (own, regions))
    ]
    path = write_tables(tmp_path / f"line{suffix}", *frames)
    table = read_table(path)
    write_day(table, tmp_path / "day.html")
    assert len(table.images) + sum(table.n_unreadable.values()) == 2 and (tmp_path / "day.html").stat().st_size


def write_tables(path: Path, images: pd.DataFrame, regions: pd.DataFrame) -> Path:
    beside = path.with_name(f"{path.stem}_regions{path.suffix}")
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as db:
            images.to_sql("images", db)
            regions.to_sql("regions", db)
    elif path.suffix == ".csv":
        images.to_csv(path)
        regions.to_csv(beside)
    else:
        images.to_parquet(path)
        regions.to_parquet(beside)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".sqlite", ".parquet"])
def test_a_pipe_is_no_table(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"line{suffix}")
    with pytest.raises(DataError, match="device or pipe"):
        read_table(tmp_path / f"line{suffix}")


def test_regions_without_their_columns_are_refused(tmp_path: Path) -> None:
    pd.DataFrame({"image": ["a.png"], "label": [1], "class_name": ["dent"]}).to_csv(tmp_path / "a.csv")
    pd.DataFrame({"label": [1]}).to_csv(tmp_path / "a_regions.csv")
    with pytest.raises(DataError, match="regions with the columns image and label, but image is not there"):
        read_table(tmp_path / "a.csv")
