"""The review page of each run, inside the studio: opened when it is asked for, and a few are kept open."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from ..errors import AnomalyNCDError, without_folders
from ..review.app import make_app
from ..serve.guard import refusal

MOST_OPEN = 4
IDLE_SECONDS = 30.0  # after which one may be closed: its pages ask every second, or every five when hidden


class Reviews:
    """Answers everything below /runs/NAME/review with the review app of that run.

    Parameters
    ----------
    runs : name → folder, as of now
    """

    def __init__(self, runs: Callable[[], dict[str, Path]]) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._open: OrderedDict[Path, tuple[FastAPI, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = self._runs().get(scope.get("path_params", {}).get("run", ""))
        if run is None:
            await refusal(404, "There is no such run.")(scope, receive, send)
            return
        try:
            app = await run_sync(self._app, run)
        except AnomalyNCDError as error:
            await refusal(503, without_folders(str(error), run))(scope, receive, send)
            return
        await app(scope, receive, send)

    def close(self) -> None:
        """Close all, after what they apply."""
        with self._lock:
            for app, _ in self._open.values():
                app.state.close()
            self._open.clear()

    def _app(self, run: Path) -> FastAPI:
        with self._lock:
            app = self._open[run][0] if run in self._open else make_app(run, guarded=False)
            self._open[run] = (app, time.monotonic())
            self._open.move_to_end(run)
            self._close_idle()
            return app

    def _close_idle(self) -> None:
        """Of too many, those that no page has asked for a while and that apply nothing."""
        old = time.monotonic() - IDLE_SECONDS
        for run, (app, used) in list(self._open.items()):
            if len(self._open) <= MOST_OPEN or used > old:
                return
            if not app.state.is_busy():
                app.state.close()
                del self._open[run]
