"""`anomalyncd review`: name and correct the classes of a run in a browser."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SettingsError
from . import options as opt
from .commands import app
from .show import counted, quoted

SHORTEST_TOKEN = 8


@app.command()
def review(
    run: opt.Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="ANOMALYNCD_TOKEN", help="Who has it may come in; `auto` makes one.", show_envvar=True),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Name, merge, split and correct the classes of RUN on a page in the browser."""
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise SettingsError(f"`review` needs {missing[0]}: pip install 'anomalyncd[serve]'.")
    import uvicorn

    from ..serve.guard import is_loopback
    from ..serve.review import make_app

    if token == "auto":
        token = secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"--host {host} can be reached from other machines, so it needs a token: add --token auto, or --token with "
            f"at least {SHORTEST_TOKEN} characters of your own."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingsError(f"--token must have at least {SHORTEST_TOKEN} plain characters.")
    with _listen(host, port) as listener:
        web = make_app(run, token)
        try:
            address = f"http://{_shown(host)}:{listener.getsockname()[1]}/" + (
                f"?token={_quote(token)}" if token else ""
            )
            typer.echo(f"Review {quoted(run)} at {address}\nEvery action is stored at once. Ctrl-C ends it.")
            if not no_browser and _has_screen():
                _open_browser(address)
            # Without an access log: the first address of a visit may hold the token.
            server = uvicorn.Server(uvicorn.Config(web, log_level="warning", access_log=False, server_header=False))
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
            waiting = len(web.state.session.state.done)
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
    from ..run.model import DiscoveryModel

    model = DiscoveryModel.read(run, device="cpu")
    if model.config.detect.name:
        return ""
    return "--masks MASKS " if model.binarizer is None else "--maps MAPS "


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already: the browser may come before the server is up."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--host {host}: expected an address of this machine ({error}).") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two processes share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}). Choose another with --port, as --port "
            f"{port + 1 if 0 < port < 65535 else 0}, or --port 0 for any that is free."
        ) from error
    return listener


def _shown(host: str) -> str:
    """An address for a browser: the wildcard means every address of this machine."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _quote(token: str) -> str:
    from urllib.parse import quote

    return quote(token, safe="")


def _has_screen() -> bool:
    """Without one, a browser would take over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(address: str) -> None:
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
