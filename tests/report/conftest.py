"""Fixtures of the reports."""

from handmade_run import make_run

__all__ = ["make_run"]
