"""Ways to whoever is to be told of each image; here, over HTTP."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from ..errors import SettingsError
from .ledger import Ledger, Message

SECONDS = 10.0  # until the other side must have answered
LONGEST_ANSWER = 65_536  # bytes of an answer's body, which nobody looks at


class Line(Protocol):
    """A way to the other side."""

    name: str

    def send(self, message: Message, ledger: Ledger) -> None:
        """Return once the other side has taken it; an OSError says that it has not, or that nobody knows.

        ledger : where to note how far it came
        """
        ...

    def close(self) -> None: ...


class Webhook:
    """POST of JSON to an address; any status of 200 … 299 is a yes, all others a no, redirects too.

    The header `Idempotency-Key` has the id of the message. A token, from the environment, is sent as `Authorization`.
    """

    name = "webhook"

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = address(url, "--webhook", ("http", "https"))
        if not _is_plain(url) or " " in url:
            raise SettingsError(
                "--webhook: expected an address without spaces and other than ASCII letters; %20 is a space."
            )
        token = token and token.strip()
        if token and not _is_plain(token):  # which errors would tell, and logs keep
            raise SettingsError("ANOMALYNCD_WEBHOOK_TOKEN holds characters that no header may have.")
        self._make: Callable[[], http.client.HTTPConnection]
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._make = lambda: http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=SECONDS, context=context
            )
        else:
            self._make = lambda: http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._connection: http.client.HTTPConnection | None = None

    def send(self, message: Message, ledger: Ledger) -> None:
        self._connection = self._connection or self._make()
        self._connection.request(
            "POST", self._path, message.body.encode(), {**self._headers, "Idempotency-Key": message.id}
        )
        answer = self._connection.getresponse()
        answer.read(LONGEST_ANSWER)
        if not answer.isclosed():  # it goes on, maybe without end: the next message takes another connection
            self.close()
        if not 200 <= answer.status < 300:
            raise OSError(f"expected a status of 200 … 299, but got {answer.status} {answer.reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def address(url: str, option: str, schemes: tuple[str, ...]) -> SplitResult:
    """The parts of an address that has one of these schemes, a host and no password; option : that it was given with"""
    try:
        parts = urlsplit(url)
        if parts.scheme in schemes and parts.hostname and parts.port != 0 and "#" not in url:
            if not parts.password:
                return parts
            raise SettingsError(f"{option}: a password does not belong into an address. Put it into the environment.")
    except SettingsError:
        raise
    except ValueError:  # a port that is none
        pass
    raise SettingsError(f"{option}: expected an address as {schemes[0]}://host:port/path, but got {url!r}.")
