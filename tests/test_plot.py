"""Figures of a fitted model, drawn for real from a small run."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from anomalyncd import AnomalyNCD, plot
from anomalyncd.errors import DataError, RunError
from scenes import KINDS, fit, write_scenes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("plot"), KINDS, seed=0)


@pytest.fixture(scope="module")
def model(data: Path) -> AnomalyNCD:
    return fit(data, data / "run", "maps", "auto")


@pytest.fixture(scope="module")
def truth(data: Path) -> Path:
    rows = [f"{index:03d}.png,{'good' if kind < 0 else f'kind {kind}'}" for index, kind in enumerate(KINDS)]
    (data / "truth.csv").write_text("image,label\n" + "\n".join(rows), encoding="utf-8")
    return data / "truth.csv"


def png(figure: Figure) -> bytes:
    figure.savefig(buffer := io.BytesIO(), format="png")
    return buffer.getvalue()


def test_every_figure_is_drawn_from_model_run_and_folder(model: AnomalyNCD, truth: Path) -> None:
    for draw in (plot.classes, plot.count, plot.scores, plot.class_map):
        pictures = [png(draw(source)) for source in (model, model.run_, model.run_.path, str(model.run_.path))]
        assert pictures[0].startswith(b"\x89PNG") and len(set(pictures)) == 1
    assert png(plot.confusion(model, truth)).startswith(b"\x89PNG")


def test_the_map_has_a_dot_for_each_region_and_a_name_for_each_class(model: AnomalyNCD) -> None:
    axes = plot.class_map(model).axes[0]
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == len(model.regions_)
    shown = {text.get_text() for text in axes.get_legend().get_texts()}
    assert shown == set(model.regions_["class_name"])


def test_the_numbers_of_the_confusion_are_those_of_all_images(model: AnomalyNCD, truth: Path) -> None:
    axes = plot.confusion(model, str(truth)).axes[0]
    assert sum(int(text.get_text()) for text in axes.texts) == len(model.images_)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["good", "kind 0", "kind 1", "kind 2"]
    assert {label.get_text() for label in axes.get_xticklabels()} == set(model.images_["class_name"])


def test_what_cannot_be_drawn_says_why(data: Path, model: AnomalyNCD) -> None:
    with_masks = fit(data, data / "masks-run", "masks")
    with pytest.raises(DataError, match="was given, not estimated"):
        plot.count(with_masks)
    with pytest.raises(DataError, match="masks have no scores"):
        plot.scores(with_masks)
    with pytest.raises(DataError, match="lay in no class folders"):
        plot.confusion(model)
    with pytest.raises(NotFittedError):
        plot.classes(AnomalyNCD(3))
    with pytest.raises(RunError, match="expected a finished run"):
        plot.classes(data)


def test_matplotlib_waits_until_something_is_drawn() -> None:
    source = "import sys\nfrom anomalyncd import plot\nprint('matplotlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "False\n"
    )
