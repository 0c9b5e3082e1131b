"""Runs of a folder, in short; names for new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalyncd.studio import workspace as workspace_module
from anomalyncd.studio.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "work")


def test_runs_are_folders_with_stages_here_or_in_run(workspace: Workspace) -> None:
    for name in ("a", "b/run", "c/deep/run", ".hidden", "d"):
        (workspace.path / name).mkdir(parents=True)
        if name != "d":
            (workspace.path / name / "stages.json").write_text("{}")
    (workspace.path / "link").symlink_to(workspace.path / "a")
    (workspace.path / "e").mkdir()
    (workspace.path / "e/run").symlink_to(workspace.path / "a")
    assert workspace.runs() == {"a": workspace.path / "a", "b": workspace.path / "b/run"}


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Línea 3", "Línea-3"),
        ("../../etc", "etc"),
        ("", "run"),
        ("...", "run"),
        ("a" * 99, "a" * 60),
        ("-x-", "x"),
        ("a/b\\c:d", "a-b-c-d"),
    ],
)
def test_names_are_plain_and_new(workspace: Workspace, title: str, name: str) -> None:
    assert workspace.new_name(title) == name
    assert workspace.new_name(title) == f"{name}-2"
    assert {path.parent for path in workspace.path.iterdir()} == {workspace.path}


def test_a_summary_is_read_again_when_the_tables_change(workspace: Workspace, product: Path) -> None:
    assert workspace.summary(product / "nowhere").n_images == 0
    found = workspace.summary(product / "run")
    assert found.n_images == 12 and workspace.summary(product / "run") is found
    assert workspace.picture(product / "run")[:2] == b"\xff\xd8"


def test_what_was_read_is_kept_for_the_next_studio_until_a_run_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Workspace(place / "work")
    run = first.runs()["plate"]
    told = first.summary(run)
    first.keep()
    first.close()
    monkeypatch.setattr(workspace_module, "_read_summary", lambda _: workspace_module.Summary(n_images=-1))
    second = Workspace(place / "work")
    assert second.summary(run) == told and told.n_images == 12
    (run / "images.csv").write_text((run / "images.csv").read_text() + "\n")
    assert second.summary(run).n_images == -1
    second.close()


@pytest.mark.parametrize("content", ["", "{", "[]", "[[1]]", '[["a", [[1, 2]], {"n_images": "many"}]]', "[" * 100_000])
def test_damaged_notes_of_an_earlier_studio_are_passed_over(place: Path, content: str) -> None:
    (place / "work/.studio").mkdir()
    (place / "work/.studio/summaries.json").write_text(content)
    found = Workspace(place / "work")
    assert found.summary(found.runs()["plate"]).n_images == 12
    found.close()
