"""Whoever is to be told of each image, by HTTP or MQTT: in order, until it is taken, from a queue on disk."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import AnomalyNCDError, SettingsError
from .ledger import Ledger, Message

SECONDS = 10.0  # until the other side must have answered
FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds between attempts, doubled each time
LOOK_SECONDS = 0.5  # between looks whether there is a new message
TOGETHER = 50  # messages that are read at once


class Line(Protocol):
    """A way to the other side."""

    name: str

    def send(self, message: Message) -> None:
        """Return once the other side has taken it; an OSError says that it has not."""
        ...

    def close(self) -> None: ...


class Sender:
    """A thread that takes messages off the ledger's queue, oldest first, and off it for good once they are taken.

    Each is sent at least once, and again if the process was killed between the answer and the note of it: with the same
    `id` and the same `seq`, by which whoever receives it counts it once.

    Attributes
    ----------
    problem : why the last attempt failed; empty where it did not
    """

    def __init__(self, line: Line, ledger: Path, *, tables: bool) -> None:
        self.line, self.problem = line, ""
        self._path, self._tables = ledger, tables
        self._waiting = 1  # until somebody has looked
        self._taken = 0  # highest number that was taken, in case that it could not be noted
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"anomalyncd-{line.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is a new message."""
        self._wake.set()

    def waiting(self) -> int:
        """How many messages have not been taken, as far as this thread has seen."""
        return self._waiting

    def drain(self, ledger: Ledger, seconds: float) -> None:
        """Wait until all is taken, or nothing was for so many seconds."""
        before, end = -1, 0.0
        while left := ledger.waiting(self.line.name):
            if left != before:
                before, end = left, time.monotonic() + seconds
            if time.monotonic() > end:
                break
            self.wake()
            time.sleep(LOOK_SECONDS / 10)

    def close(self, seconds: float) -> None:
        """Stop after the message that is under way."""
        self._stop.set()
        self._wake.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        rest = FIRST_REST
        ledger: Ledger | None = None
        while not self._stop.is_set():
            try:
                ledger = ledger or Ledger(self._path, tables=self._tables)
                messages = ledger.messages(self.line.name, self._taken, TOGETHER)
                self._waiting = ledger.waiting(self.line.name)
                for message in messages:
                    if self._stop.is_set():
                        break
                    self.line.send(message)
                    self._taken = message.seq
                    ledger.message_taken(self.line.name, message.seq)
                    self._waiting -= 1
                    self.problem, rest = "", FIRST_REST
                if not messages:
                    self._wake.wait(LOOK_SECONDS)
                    self._wake.clear()
            except (AnomalyNCDError, OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
                self.problem = f"{self.line.name}: {error or type(error).__name__}"
                self.line.close()
                self._stop.wait(rest)
                rest = min(2 * rest, LONGEST_REST)
        self.line.close()
        if ledger is not None:
            ledger.close()


class Webhook:
    """POST of JSON to an address; any status of 200 … 299 is a yes, all others a no, redirects too.

    The header `Idempotency-Key` has the id of the message. A token, from the environment, is sent as `Authorization`.
    """

    name = "webhook"

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = _parts(url, "--webhook", ("http", "https"))
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

    def send(self, message: Message) -> None:
        self._connection = self._connection or self._make()
        self._connection.request(
            "POST", self._path, message.body.encode(), {**self._headers, "Idempotency-Key": message.id}
        )
        answer = self._connection.getresponse()
        answer.read()
        if not 200 <= answer.status < 300:
            raise OSError(f"expected a status of 200 … 299, but got {answer.status} {answer.reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Mqtt:
    """Publish JSON on a topic, with quality of service 2: the broker has each once, unless the process is killed between."""

    name = "mqtt"

    def __init__(self, url: str, client: str, password: str | None = None) -> None:
        if find_spec("paho") is None:
            raise SettingsError("--mqtt needs paho-mqtt: pip install 'anomalyncd[mqtt]'.")
        parts = _parts(url, "--mqtt", ("mqtt", "mqtts"))
        self._topic = unquote(parts.path).strip("/")
        if not self._topic or any(letter in self._topic for letter in "+#\0"):
            raise SettingsError(
                "--mqtt: expected a topic after the host, without + and #, as mqtt://host/line1/defects."
            )
        self._host, self._tls = parts.hostname or "", parts.scheme == "mqtts"
        self._port = parts.port or (8883 if self._tls else 1883)
        self._user, self._password, self._id = parts.username, password, client
        self._client: Any = None

    def send(self, message: Message) -> None:
        if self._client is None:
            self._connect()
        published = self._client.publish(self._topic, message.body.encode(), qos=2)
        published.wait_for_publish(SECONDS)
        if not published.is_published():
            raise OSError(f"no answer of the broker within {SECONDS:g} s")

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect()
            client.loop_stop()

    def _connect(self) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        client = Client(CallbackAPIVersion.VERSION2, client_id=self._id, clean_session=True)
        if self._user:
            client.username_pw_set(unquote(self._user), self._password)
        if self._tls:
            client.tls_set()
        connected = threading.Event()
        refused: list[str] = []

        def on_connect(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
            if reason.is_failure:
                refused.append(str(reason))
            connected.set()

        client.on_connect = on_connect
        client.connect(self._host, self._port, keepalive=30)
        client.loop_start()
        self._client = client
        if not connected.wait(SECONDS) or refused:
            raise OSError(f"the broker did not let us in ({', '.join(refused) or 'no answer'})")


def make_lines(webhook: str | None, mqtt: str | None, client: str) -> list[Line]:
    """Those that were asked for; secrets come from the environment, where no list of processes shows them."""
    lines: list[Line] = []
    if webhook is not None:
        lines.append(Webhook(webhook, os.environ.get("ANOMALYNCD_WEBHOOK_TOKEN")))
    if mqtt is not None:
        lines.append(Mqtt(mqtt, client, os.environ.get("ANOMALYNCD_MQTT_PASSWORD")))
    return lines


def _parts(url: str, option: str, schemes: tuple[str, ...]) -> SplitResult:
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
