"""MQTT with quality of service 2 that holds across a kill: the broker has each message exactly once."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

from ..errors import SettingsError
from .ledger import Ledger, Message
from .lines import SECONDS, address

KEEPALIVE = 30
NUMBERS = 65_535  # of messages in MQTT; 0 is none
RECEIVED = "message that the broker has received"


class Mqtt:
    """Publish JSON on a topic, in the two steps of quality of service 2, the first of which is noted on disk.

    A message has the same number after a restart, and the broker keeps the session: one that it has received and not yet
    released is not taken for a second one, and one whose receipt was noted is only released. Should the broker have
    forgotten the session meanwhile, the message is published again, rather than lost.

    client : name of the session, the same after a restart
    """

    name = "mqtt"

    def __init__(self, url: str, client: str, password: str | None = None) -> None:
        if find_spec("paho") is None:
            raise SettingsError("--mqtt needs paho-mqtt: pip install 'anomalyncd[mqtt]'.")
        parts = address(url, "--mqtt", ("mqtt", "mqtts"))
        self._topic = unquote(parts.path).strip("/")
        if not self._topic or any(letter in self._topic for letter in "+#\0"):
            raise SettingsError(
                "--mqtt: expected a topic after the host, without + and #, as mqtt://host/line1/defects."
            )
        self._host, self._tls = parts.hostname or "", parts.scheme == "mqtts"
        self._port = parts.port or (8883 if self._tls else 1883)
        self._user, self._password, self._id = parts.username, password, client
        self._client: Any = None

    def send(self, message: Message, ledger: Ledger) -> None:
        if self._client is None:
            self._connect()
        client, number = self._client, number_of(message.seq)
        if client.is_remembered and ledger.note(RECEIVED) == str(message.seq):
            info = client.expect(number, self._topic)
        else:
            info = client.publish_as(number, self._topic, message.body.encode())
            if not client.received.wait(SECONDS):
                raise OSError(f"no answer of the broker within {SECONDS:g} s")
            ledger.set_note(RECEIVED, str(message.seq))
        client.release(number)
        info.wait_for_publish(SECONDS)
        if not info.is_published():
            raise OSError(f"no answer of the broker within {SECONDS:g} s")

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect()
            client.loop_stop()

    def _connect(self) -> None:
        client = _client(self._id)
        if self._user:
            client.username_pw_set(unquote(self._user), self._password)
        if self._tls:
            client.tls_set()
        connected = threading.Event()
        refused: list[str] = []

        def on_connect(_client: Any, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
            if reason.is_failure:
                refused.append(str(reason))
            client.is_remembered = flags.session_present
            connected.set()

        client.on_connect = on_connect
        client.connect(self._host, self._port, keepalive=KEEPALIVE)
        client.loop_start()
        self._client = client
        if not connected.wait(SECONDS) or refused:
            raise OSError(f"the broker did not let us in ({', '.join(refused) or 'no answer'})")


def number_of(seq: int) -> int:
    """The number that a message has in MQTT, 1 … 65,535, which is its own as long as it is under way.

    Examples
    --------
    >>> number_of(1), number_of(65_535), number_of(65_536)
    (1, 65535, 1)
    """
    return (seq - 1) % NUMBERS + 1


def _client(name: str) -> Any:
    """A client of paho that waits between the two steps.

    paho answers the broker's receipt at once and forgets numbers with the process; there is no public way to do otherwise.
    Where a later version no longer calls `_send_pubrel`, messages are told at least once, as by any client.
    """
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

    class TwoSteps(Client):
        def __init__(self) -> None:
            super().__init__(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
            self.received, self.is_remembered = threading.Event(), False
            self.on_publish = lambda *_: self.received.set()

        def publish_as(self, number: int, topic: str, body: bytes) -> Any:
            self.received.clear()
            self._last_mid = number - 1
            return self.publish(topic, body, qos=2)

        def expect(self, number: int, topic: str) -> Any:
            """The second step of a message whose first was done by another process."""
            message = MQTTMessage(number, topic.encode())
            message.qos = 2
            with self._out_message_mutex:
                self._out_messages[number] = message
                self._inflight_messages += 1
            return message.info

        def release(self, number: int) -> None:
            super()._send_pubrel(number)

        def _send_pubrel(self, mid: int) -> Any:
            self.received.set()
            return MQTTErrorCode.MQTT_ERR_SUCCESS

    return TwoSteps()
