"""`anomalyncd review`: name and correct the classes of a run in a browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from . import options as opt
from .commands import app
from .listening import check_installed, checked_token, listen, shown
from .show import counted, quoted


@app.command()
def review(
    run: opt.Run,
    port: opt.Port = 8765,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Name, merge, split and correct the classes of RUN on a page in the browser."""
    check_installed("review")
    import uvicorn

    from ..review.app import make_app

    token = checked_token(token, host)
    with listen(host, port) as listener:
        web = make_app(run, token)
        try:
            secret = f"?token={quote(token, safe='')}" if token else ""
            address = f"http://{shown(host)}:{listener.getsockname()[1]}/{secret}"
            typer.echo(f"Review {quoted(run)} at {address}\nEvery action is stored at once. Ctrl-C ends it.")
            if not no_browser and _has_screen():
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            # Without an access log: the first address of a visit may hold the token.
            server = uvicorn.Server(uvicorn.Config(web, log_level="warning", access_log=False, server_header=False))
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
            waiting = len(web.state.session.classes.done)
        finally:
            web.state.close()
    if waiting:
        typer.echo(f"\n{counted(waiting, 'correction')} kept, not applied yet.")
        typer.echo(f"Next: anomalyncd review {quoted(run)}, and press Apply")
    else:
        typer.echo(f"\nNext: anomalyncd export {quoted(run)} --format csv")
        typer.echo(f"  or: anomalyncd predict {quoted(run)} NEW_IMAGES {_inputs(run)}--out new.csv")


def _inputs(run: Path) -> str:
    """What `predict` needs besides images, as the run was made."""
    from ..run.finished import FinishedRun

    model = FinishedRun(run, device="cpu").model
    if model.config.detect.name:
        return ""
    return "--masks MASKS " if model.binarizer is None else "--maps MAPS "


def _has_screen() -> bool:
    """Without one, a browser would take over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
