"""A folder for each class: names that every system takes, and nothing outside."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.export import export_run, formats
from anomalyncd.export.formats import safe_name
from anomalyncd.run.tables import read_csv


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"export.json"}


EXPECTED = {
    "a_b/Riß, grün_a 1.png": "Riß, grün/a 1.png",
    "_/Riß, grün_a+b #2%.png": "Riß, grün/a+b #2%.png",
    "CON_/dot_000.png": "dot/000.png",
    "normal/dot_001.png": "dot/001.png",
    "normal/good_000.png": "good/000.png",
    "normal/good_A 1.png": "good/A 1.png",
    "unknown/裂_甲.png": "裂/甲.png",
}


def test_each_image_is_in_the_folder_of_its_class(run: Path, fitted: Path, tmp_path: Path) -> None:
    found = export_run(run, "folders", tmp_path / "out")
    assert tree(tmp_path / "out") == set(EXPECTED) and found.n_images == 7
    for copy, name in EXPECTED.items():
        assert (tmp_path / "out" / copy).read_bytes() == (fitted / "images" / name).read_bytes()
        assert not (tmp_path / "out" / copy).samefile(fitted / "images" / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my run", "out"]


def test_links(moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    for blocked in ((), ("link",), ("link", "symlink")):
        for name in blocked:
            monkeypatch.setattr(formats.os, name, refuse)
        export_run(moved / "run", "folders", tmp_path / "out", link=True)
        assert tree(tmp_path / "out") == set(EXPECTED)
        same = [(tmp_path / "out" / copy).samefile(moved / "images" / name) for copy, name in EXPECTED.items()]
        assert all(same) if len(blocked) < 2 else not any(same)
        assert os.path.islink(tmp_path / "out" / min(EXPECTED)) == (len(blocked) == 1)
    assert len(list((moved / "images").rglob("*.png"))) == 7  # replacing links leaves what they lead to


def test_files_that_are_gone_are_listed_and_left_out(moved: Path, tmp_path: Path) -> None:
    (moved / "images/dot/000.png").unlink()
    (moved / "images/good/000.png").unlink()
    (moved / "images/good/000.png").mkdir()
    found = export_run(moved / "run", "folders", tmp_path / "out")
    assert found.missing == ["dot/000.png", "good/000.png"] and found.n_images == 5
    assert json.loads((tmp_path / "out/export.json").read_text(encoding="utf-8"))["missing"] == found.missing
    assert len(tree(tmp_path / "out")) == 5 and not (tmp_path / "out/CON_").exists()


@pytest.mark.parametrize("format", ["folders", "labelstudio", "fiftyone"])
def test_names_that_no_file_can_have_are_gone_too(moved: Path, tmp_path: Path, format: str) -> None:
    path = moved / "run" / "manifest.csv"
    table = read_csv(path)
    table.loc[table["image"] == "dot/000.png", "file"] = str(moved / "images" / ("n" * 5000))
    table.to_csv(path, index=False)
    assert export_run(moved / "run", format, tmp_path / "out").missing == ["dot/000.png"]


def test_names_that_become_alike_stay_apart(run: Path, tmp_path: Path) -> None:
    names = {"0": "normal", "1": "A/B", "2": "a_b", "5": "unknown"}
    (run / "classes.json").write_text(json.dumps(names))
    export_run(run, "folders", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "A_B", "a_b_2", "unknown_2", "unknown", "normal", "export.json",
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "out/unknown").iterdir()] == ["裂_甲.png"]


def test_equal_names_share_a_folder_and_the_marker_keeps_its_name(run: Path, tmp_path: Path) -> None:
    (run / "classes.json").write_text(json.dumps({"0": "normal", "1": "dent", "2": "dent", "5": "export.json"}))
    export_run(run, "folders", tmp_path / "out")
    assert len(list((tmp_path / "out/dent").iterdir())) == 2
    assert (tmp_path / "out/export.json").is_file() and (tmp_path / "out/export_2.json").is_dir()


def test_images_that_become_alike_stay_apart(moved: Path, tmp_path: Path) -> None:
    for file in ("manifest.csv", "images.csv", "regions.csv"):
        table = read_csv(moved / "run" / file)
        table["image"] = table["image"].replace({"good/A 1.png": "good_000.PNG"})
        table.to_csv(moved / "run" / file, index=False)
    export_run(moved / "run", "folders", tmp_path / "out")
    assert {"normal/good_000.png", "normal/good_000_2.PNG"} <= tree(tmp_path / "out")


DEVICES = re.compile(r"(CON|PRN|AUX|NUL|COM\d|LPT\d)(\..*)?", re.IGNORECASE)


ODD = st.text("./\\ :abCON1é裂\0\n", max_size=8)


@given(st.one_of(st.text(), ODD, st.sampled_from(["CON", "nul.png", "Com1.a.b", "..", "a."])))
def test_any_name_becomes_safe(name: str) -> None:
    safe = safe_name(name)
    assert safe and safe not in (".", "..") and safe.isprintable()
    assert PurePosixPath(safe).name == PureWindowsPath(safe).name == safe
    assert not set(safe) & set('<>:"/\\|?*') and safe == safe.rstrip(" .")
    assert not DEVICES.fullmatch(safe)
    assert len(safe.encode("utf-8")) <= 200
    again = safe_name(name, {safe.casefold()})
    assert again.casefold() != safe.casefold()


def test_of_a_long_name_the_end_stays() -> None:
    safe = safe_name("裂" * 300 + "/0042.png")
    assert safe.endswith("裂_0042.png") and len(safe.encode("utf-8")) <= 160
