"""Ray for the length of a job: on this machine, with a folder that does not stay, or as a cluster that is there."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..progress import Silent
from ..run.writer import has_ended

PREFIX = "ncd-ray-"
LONGEST = 40  # of the folder's name: Ray puts up to 67 letters behind it, and the name of a socket has at most 107


@contextmanager
def ray_for(workers: int, address: str | None) -> Iterator[None]:
    """Ray, as the caller has it, on a cluster, or on this machine for the length of the block; quiet in any case."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it warns of its own way to make the workers of Ray Data
    import ray

    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        _check_answers(address)
    else:  # Ray listens on all addresses of the machine whatever is said here, but asks for a token
        options |= {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    if ray.is_initialized():
        yield
        return
    with nullcontext() if address is not None else own_folder() as folder:
        try:
            with _hushed():
                ray.init(**options, _temp_dir=folder and str(folder))
        except Exception as error:  # Ray raises this very class when it starts too slowly
            where = f"no Ray cluster answers at {address}" if address else "Ray cannot be started"
            hint = " One that asks for a token needs RAY_AUTH_MODE=token." if address else ""
            raise RunError(f"{where} ({str(error).strip().splitlines()[0]}).{hint}") from error
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def own_folder() -> Iterator[Path | None]:
    """Where Ray on this machine keeps logs and sockets, which it would leave for ever; None: where it likes."""
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
    try:
        if len(os.fsencode(folder)) > LONGEST:
            raise OSError
        folder.mkdir(mode=0o700)  # not one that another user made there
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_away_left() -> None:
    """Take away what Ray kept for processes of this machine that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        number = left.name.removeprefix(PREFIX)
        if number.isdecimal() and len(number) < 10 and has_ended(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def ask_for_token(progress: Silent) -> None:
    """Let Ray on this machine answer only who has the user's token, unless the user has decided otherwise."""
    if "ray" not in sys.modules:  # which reads this once; the default of `ray.init` is a token too
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        progress.warn("RAY_AUTH_MODE is not token: who reaches this machine can run code in Ray while the job runs.")


def _check_answers(address: str) -> None:
    """Say at once that nobody is there, which takes Ray minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise RunError(f"no Ray cluster answers at {address} ({error}).") from error


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what native code prints on standard error."""
    sys.stderr.flush()
    with open(os.devnull, "wb") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
