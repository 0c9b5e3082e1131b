"""MQTT with a real broker: each message once, wherever its sender was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anomalyncd.errors import SettingsError
from anomalyncd.watch import mqtt as mqtt_module
from anomalyncd.watch import senders
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import Ledger, content_id
from anomalyncd.watch.mqtt import Mqtt
from anomalyncd.watch.senders import Sender, make_lines

pytest.importorskip("paho")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from watch import Receiver, broker

# A process that sends the first message, and is killed on the way.
CHILD = """
import os, signal, sys
from pathlib import Path
from anomalyncd.watch.ledger import Ledger
from anomalyncd.watch.mqtt import Mqtt

moment, place, url = sys.argv[1:]
ledger, line = Ledger(Path(place), tables=False), Mqtt(url, "anomalyncd-test")

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

line._connect()
if moment == "received, not noted":
    ledger.set_note = kill
elif moment == "noted, not released":
    line._client.release = kill
line.send(ledger.messages("mqtt", 0, 1)[0], ledger)
kill()
"""


@pytest.fixture
def other_side(tmp_path: Path) -> Iterator[tuple[Receiver, str]]:
    with broker(tmp_path) as found:
        if found is None:
            pytest.skip("no mosquitto")
        yield found


def filled(path: Path, count: int) -> Ledger:
    ledger = Ledger(path, tables=False)
    rows = [{"id": content_id(f"{k}.png", "00"), "time": "2026", "image": f"{k}.png"} for k in range(count)]
    ledger.commit([Entry(row, "1") for row in rows], targets=["mqtt"])
    return ledger


def until(receiver: Receiver, count: int) -> None:
    end = time.monotonic() + 60
    while sum(receiver.taken.values()) < count and time.monotonic() < end:
        time.sleep(0.02)


def test_a_broker_gets_each_once(other_side: tuple[Receiver, str], tmp_path: Path) -> None:
    receiver, url = other_side
    ledger = filled(tmp_path / "a.watch", 20)
    sender = Sender(Mqtt(url, "anomalyncd-test"), ledger.path, tables=False)
    sender.drain(ledger, 60)
    sender.close(60)
    until(receiver, 20)
    assert len(receiver.taken) == 20 and receiver.again == 0


@pytest.mark.parametrize("moment", ["received, not noted", "noted, not released", "released, not taken off"])
def test_a_message_under_way_at_a_kill_comes_once(
    moment: str, other_side: tuple[Receiver, str], tmp_path: Path
) -> None:
    receiver, url = other_side
    ledger = filled(tmp_path / "a.watch", 2)
    first, second = ledger.messages("mqtt", 0, 2)
    child = subprocess.run([sys.executable, "-c", CHILD, moment, str(ledger.path), url], capture_output=True)
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    line = Mqtt(url, "anomalyncd-test")
    line.send(first, ledger)
    line.send(second, ledger)
    line.close()
    until(receiver, 2)
    assert receiver.taken == {first.id: 1, second.id: 1}


def test_a_broker_that_forgot_the_session_gets_the_message_again(
    other_side: tuple[Receiver, str], tmp_path: Path
) -> None:
    receiver, url = other_side
    ledger = filled(tmp_path / "a.watch", 1)
    (message,) = ledger.messages("mqtt", 0, 2)
    ledger.set_note(mqtt_module.RECEIVED, str(message.seq))  # by a broker that is there no more
    line = Mqtt(url, "anomalyncd-test")
    line.send(message, ledger)
    line.close()
    until(receiver, 1)
    assert receiver.taken == {message.id: 1}


def test_a_broker_that_is_away_gets_all_when_it_is_back(
    other_side: tuple[Receiver, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "FIRST_REST", 0.01)
    receiver, url = other_side
    ledger = filled(tmp_path / "a.watch", 3)
    away = Sender(Mqtt("mqtt://127.0.0.1:9/line/defects", "anomalyncd-test"), ledger.path, tables=False)
    end = time.monotonic() + 60
    while not away.problem and time.monotonic() < end:
        time.sleep(0.01)
    away.close(60)
    assert "refused" in away.problem and ledger.waiting("mqtt") == 3
    back = Sender(Mqtt(url, "anomalyncd-test"), ledger.path, tables=False)
    back.drain(ledger, 60)
    back.close(60)
    until(receiver, 3)
    assert len(receiver.counted) == 3 and receiver.again == 0


def test_without_paho_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setattr(mqtt_module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'anomalyncd\[mqtt\]'"):
        make_lines(None, "mqtt://host/topic", "x")
