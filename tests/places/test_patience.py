from __future__ import annotations

from collections.abc import Callable

import pytest

from anomalyncd.errors import StoreError
from anomalyncd.places import patience
from anomalyncd.places.patience import patiently


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def request() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "here"

    return request


def test_what_fails_now_and_then_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WAITS", (0.1, 0.4, 1.6))
    for times in range(4):
        waits: list[float] = []
        assert patiently(failing(times, TimeoutError()), "s3://a/b", waits.append) == "here"
        assert len(waits) == times
        assert all(half / 2 <= wait <= half for wait, half in zip(waits, (0.1, 0.4, 1.6), strict=False))


def test_what_never_comes_is_a_clear_line() -> None:
    waits: list[float] = []
    with pytest.raises(
        StoreError, match=r"^s3://a/b: the store cannot be reached \(5 tries failed; OSError: 503\)\. Call"
    ):
        patiently(failing(99, OSError("503")), "s3://a/b", waits.append)
    assert len(waits) == len(patience.WAITS)


def test_what_is_refused_or_not_there_is_not_asked_for_again() -> None:
    waits: list[float] = []
    with pytest.raises(StoreError, match=r"refuses to read it .*Credentials come from its own settings"):
        patiently(failing(1, PermissionError("403")), "s3://a/b", waits.append)

    class NoCredentialsError(Exception):
        """As botocore calls it."""

    with pytest.raises(StoreError, match="refuses"):
        patiently(failing(1, NoCredentialsError()), "s3://a/b", waits.append)
    with pytest.raises(FileNotFoundError):
        patiently(failing(1, FileNotFoundError()), "s3://a/b", waits.append)
    assert not waits


def test_no_signature_is_told() -> None:
    error = OSError("GET https://x.example/b?sig=S3cret&se=2026 failed")
    with pytest.raises(StoreError) as told:
        patiently(failing(9, error), "az://a/b", lambda wait: None)
    assert "S3cret" not in str(told.value) and "https://x.example/b?… failed" in str(told.value)


def test_nothing_that_skips_damaged_files_skips_this() -> None:
    assert not issubclass(StoreError, OSError | ValueError)
