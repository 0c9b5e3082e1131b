"""Plans: what a stage leaves of its experiment, and what it says about the rest."""

from __future__ import annotations

import pytest

from anomalyncd.bench.experiment import experiment_names, load_experiment
from anomalyncd.bench.plan import Stage, load_plan, stages_of
from anomalyncd.errors import SettingsError

SIZES = {"large": 90, "small": 10, "middle": 50}


def test_the_smallest_data_sets_are_taken_in_the_order_in_which_they_were_given():
    found = Stage(experiment="table-06", data=2).narrowed(SIZES)
    assert found.data == ["small", "middle"]
    assert Stage(experiment="table-06").narrowed(SIZES).data == list(SIZES)


def test_rows_run_on_fewer_data_sets_or_none():
    stage = Stage(experiment="table-09", rows={"preset paper*": 1, "with": 0})
    rows = {row.name: row.data for row in stage.narrowed(SIZES).rows}
    assert rows == {"without (default)": None, "preset paper, without": ["small"], "preset paper, with": ["small"]}
    said = stage.left_out(SIZES)
    assert "no row with" in said and "preset paper, with on small only" in said


def test_seeds_and_sources_of_a_stage_hold_for_all_rows():
    stage = Stage(experiment="table-14", seeds=[4])
    found = stage.narrowed(SIZES)
    assert found.seeds == [4] and all(row.seeds is None for row in found.rows)
    assert Stage(experiment="table-08", sources=["pni"]).narrowed(SIZES).sources == ["pni"]
    assert "not with musc, patchcore, efficientad" in Stage(experiment="table-08", sources=["pni"]).left_out(SIZES)
    assert Stage(experiment="table-06").left_out(SIZES) == ""


def test_the_paper_has_every_table_and_figure_of_it():
    stages = [stage.experiment for stage in load_plan("paper").stages]
    assert len(stages) == len(set(stages))
    ours = {"goals", "judgement", "count", "recipe"}  # of our own, in no paper
    assert set(stages) == set(experiment_names()) - ours
    quick = load_plan("paper").form(quick=True)
    assert all(stage.seeds == [0] for stage in quick)
    for stage in [*load_plan("paper").stages, *quick]:
        found = stage.narrowed(SIZES)
        assert found.rows and set(found.sources) <= set(load_experiment(stage.experiment).sources)


def test_in_the_whole_form_no_row_is_without_figures():
    for stage in load_plan("paper").stages:
        found = stage.narrowed(SIZES)
        assert len(found.rows) == len(load_experiment(stage.experiment).rows)
        assert all(len(row.data or found.data) >= 2 for row in found.rows), stage.experiment


def test_names_of_experiments_and_plans():
    stages, limit = stages_of(["goals", "paper"])
    assert stages[0].experiment == "goals" and stages[0].plan == "" and stages[1].plan == "paper" and limit is None
    assert stages_of(["paper"], quick=True)[1] == load_plan("paper").limit
    with pytest.raises(SettingsError, match="--quick is for plans only"):
        stages_of(["goals"], quick=True)
    with pytest.raises(SettingsError, match="bench list"):
        stages_of(["gaols"])
