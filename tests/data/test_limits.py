from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from anomalyncd.data.images import read_image
from anomalyncd.data.limits import MEGABYTE, TooLarge, check_size, memory_limit, room
from anomalyncd.errors import SettingsError


def test_the_limit_is_a_setting_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANOMALYNCD_READ_MB", raising=False)
    assert memory_limit() == 1200 * MEGABYTE
    for text, megabytes in (("100", 100), (" 64000 ", 64_000), ("", 1200)):
        monkeypatch.setenv("ANOMALYNCD_READ_MB", text)
        assert memory_limit() == megabytes * MEGABYTE


@pytest.mark.parametrize("text", ["99", "-5", "2 GB", "1e4", "nan", "²", "0x100", "9" * 400, "١٢٠٠"])
def test_other_texts_are_one_line(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANOMALYNCD_READ_MB", text)
    with pytest.raises(
        SettingsError, match="ANOMALYNCD_READ_MB must be a whole number of megabytes, at least 100"
    ) as caught:
        memory_limit()
    assert len(str(caught.value)) < 300
    (tmp_path / "a.bmp").write_bytes(b"BM" + bytes(12) + b"\x28" + bytes(47))
    with pytest.raises(SettingsError):  # not taken for a fault of the file
        read_image(tmp_path / "a.bmp")


def test_sizes() -> None:
    check_size(1_000_000, 1_000_000)
    check_size(8, 4, 32)
    for size in ((0, 5), (5, 0), (-1, 5)):
        with pytest.raises(ValueError, match="pixels"):
            check_size(*size)
    for size in ((1_000_001, 1), (1, 1_000_001), (8, 5, 39)):
        with pytest.raises(TooLarge, match="limit"):
            check_size(*size)


def test_threads_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_READ_MB", "1000")
    lock, held, most, n_done = threading.Lock(), 0, 0, 0

    def work(n_bytes: int) -> None:
        nonlocal held, most, n_done
        for _ in range(20):
            with room(n_bytes, "it"):
                with lock:
                    held += n_bytes
                    most = max(most, held)
                time.sleep(0.0005)
                with lock:
                    held -= n_bytes
        n_done += 1

    threads = [threading.Thread(target=work, args=(size * MEGABYTE,)) for size in (1000, 600, 600, 300, 300, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert n_done == 6 and held == 0
    assert 600 * MEGABYTE < most <= 1000 * MEGABYTE


def test_what_fails_gives_its_room_back() -> None:
    for _ in range(3):
        with pytest.raises(KeyError), room(memory_limit(), "it"):
            raise KeyError
        with (
            pytest.raises(TooLarge, match=r"1,201 MB.*limit of 1,200 MB.*READ_MB to 1201"),
            room(memory_limit() + 1, "it"),
        ):
            pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_does_not_wait_for_threads_that_are_not_there() -> None:
    with room(memory_limit(), "it"):
        child = os.fork()
        if not child:
            with room(memory_limit(), "it"):
                os._exit(7)
        for _ in range(500):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.02)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert pid and os.waitstatus_to_exitcode(status) == 7
