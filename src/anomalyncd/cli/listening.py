"""What every command that starts a server needs: a socket, a token, and an address to print."""

from __future__ import annotations

import secrets
import socket
import sys
from importlib.util import find_spec

from ..errors import SettingsError

SHORTEST_TOKEN = 8
NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")  # of the extra `serve`


def check_installed(command: str) -> None:
    """Say which extra is missing before anything else is done."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SettingsError(f"`{command}` needs {missing[0]}: pip install 'anomalyncd[serve]'.")


def checked_token(token: str | None, host: str) -> str | None:
    """The token, a new one for `auto`; without one only this machine may be listened to."""
    from ..serve.guard import is_loopback

    if token == "auto":
        token = secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"--host {host} can be reached from other machines, so it needs a token: add --token auto, or --token with "
            f"at least {SHORTEST_TOKEN} characters of your own."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingsError(f"--token must have at least {SHORTEST_TOKEN} plain characters.")
    return token


def listen(host: str, port: int) -> socket.socket:
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


def shown(host: str) -> str:
    """An address for a browser: the wildcard means every address of this machine."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
