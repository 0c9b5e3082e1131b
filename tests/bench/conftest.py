"""Fixtures of the benchmark."""

from handmade_run import make_run

__all__ = ["make_run"]
