"""Run commands of `anomalyncd` in this process."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from anomalyncd.cli import app
from anomalyncd.errors import AnomalyNCDError


def call(*arguments: object) -> Result:
    """Run a command that must succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: object) -> str:
    """Run a command that must fail with an error for the user."""
    with pytest.raises(AnomalyNCDError) as error:
        call(*arguments)
    return str(error.value)
