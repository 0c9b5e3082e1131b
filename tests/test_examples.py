"""Everything in examples/ is run, small. What needs a package that is not among those of the tests is counted here."""

from __future__ import annotations

import json
import runpy
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.demo import make_line
from scenes import KINDS, fit, write_scenes

EXAMPLES = Path(__file__).parent.parent / "examples"
ELSEWHERE = {"fiftyone_dataset.py": "fiftyone", "labelstudio_round_trip.py": "label_studio_sdk"}


def run(name: str, *arguments: object) -> None:
    runpy.run_path(str(EXAMPLES / name))["main"]([str(argument) for argument in arguments])


def test_every_example_is_run_or_needs_another_package() -> None:
    run_here = {"first_script.py", "own_clustering.py", "anomalib_predictions.py", "from_images_to_classes.ipynb"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == run_here | set(ELSEWHERE)
    for name, package in ELSEWHERE.items():
        source = (EXAMPLES / name).read_text("utf-8")
        assert f"pip install {package.replace('_', '-')}" in source
        compile(source, name, "exec")


def test_first_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("first_script.py", "--out", tmp_path, "--images", 3, "--size", 96, "--backbone", "tiny")
    assert "NMI" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "classes.png",
        "scores.png",
        "class_map.png",
        "confusion.png",
    }
    assert len(AnomalyNCD.load(tmp_path / "run").classes_) == 7


def test_own_clustering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_scenes(tmp_path, KINDS, seed=0)
    fit(data, tmp_path / "run", "masks")
    run("own_clustering.py", tmp_path / "run")
    assert "class 1" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("anomalib") is None, reason="anomalib is not installed")
def test_anomalib_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_line(tmp_path / "line", n_per_class=3, n_normal=4, n_combined=0, size=96, kinds=["hole", "print"])
    images = tmp_path / "flat"
    images.mkdir()
    for path in (tmp_path / "line/images").rglob("*.png"):
        path.rename(images / f"{path.parent.name}_{path.name}")
    good = tmp_path / "good"
    good.mkdir()
    for path in images.glob("good_*"):
        path.rename(good / path.name)
    run(
        "anomalib_predictions.py", images, "--normal", good, "--out", tmp_path / "run", "--classes", 3, "--size", 64,
        "--untrained", "--backbone", "tiny",
    )  # fmt: skip
    assert "Next: anomalyncd review" in capsys.readouterr().out
    assert len(AnomalyNCD.load(tmp_path / "run").images_) == 6


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell after cell in one namespace; the first cell says how large all is, and is made small here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None, raising=False)
    matplotlib.use("agg")
    notebook = json.loads((EXAMPLES / "from_images_to_classes.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5 and cells[0].startswith("IMAGES, SIZE, BACKBONE =")
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    names: dict[str, object] = {}
    for source in ["IMAGES, SIZE, BACKBONE = 3, 96, 'tiny'", *cells[1:]]:
        exec(compile(source, "notebook", "exec"), names)
    assert isinstance(names["model"], AnomalyNCD)
