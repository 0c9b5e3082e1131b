"""The log of a review that a stranger made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from anomalyncd.errors import RunError
from anomalyncd.review.action_log import LOG_FILE, ActionLog


@pytest.mark.parametrize(
    "made",
    [
        "DROP TABLE actions; CREATE VIEW actions AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
        "SELECT id, '' AS at, id AS key, '' AS request, 'name' AS kind, '{}' AS body, '' AS base FROM n",
        "CREATE TRIGGER gone AFTER INSERT ON actions BEGIN DELETE FROM actions; END",
    ],
)
def test_views_that_never_end_and_triggers_are_refused(made: str, tmp_path: Path) -> None:
    ActionLog(tmp_path / LOG_FILE).append("name", {"label": 1, "name": "dent"}, key="a")
    database = sqlite3.connect(tmp_path / LOG_FILE)
    database.executescript(made)
    database.close()
    with pytest.raises(RunError, match=r"it has a (view|trigger)"):
        ActionLog(tmp_path / LOG_FILE)
