"""Whoever is told: in order, again until it is taken, and with a name by which it is counted once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.errors import SettingsError
from anomalyncd.watch import senders
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import Ledger, Message, content_id
from anomalyncd.watch.senders import Mqtt, Sender, Webhook, make_lines

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from watch import broker, webhook


def filled(path: Path, count: int, *targets: str) -> Ledger:
    ledger = Ledger(path, tables=False)
    rows = [{"id": content_id(f"{k}.png", "00"), "time": "2026", "image": f"{k}.png"} for k in range(count)]
    ledger.commit([Entry(row, "1") for row in rows], targets=targets)
    return ledger


def until_empty(ledger: Ledger, target: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while ledger.waiting(target) and time.monotonic() < end:
        time.sleep(0.02)
    assert ledger.waiting(target) == 0


def test_a_webhook_that_refuses_and_breaks_off_gets_all_in_the_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(senders, "FIRST_REST", 0.01)
    ledger = filled(tmp_path / "a.watch", 30, "webhook")
    with webhook(np.random.default_rng(0), 0.2) as (receiver, url):
        sender = Sender(Webhook(url), ledger.path, tables=False)
        until_empty(ledger, "webhook")
        sender.close(5)
    assert receiver.taken.keys() == {content_id(f"{k}.png", "00") for k in range(30)}
    assert receiver.refused and receiver.again


def test_nobody_there_loses_nothing_and_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(senders, "FIRST_REST", 0.01)
    ledger = filled(tmp_path / "a.watch", 3, "webhook")
    sender = Sender(Webhook("http://127.0.0.1:9/x"), ledger.path, tables=False)
    end = time.monotonic() + 10
    while not sender.problem and time.monotonic() < end:
        time.sleep(0.01)
    sender.close(5)
    assert "refused" in sender.problem and ledger.waiting("webhook") == 3
    with webhook(np.random.default_rng(0)) as (receiver, url):
        sender = Sender(Webhook(url), ledger.path, tables=False)
        sender.drain(ledger, 10)
        sender.close(5)
    assert len(receiver.taken) == 3


def test_a_redirect_is_no_yes() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:9/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    Thread(target=server.handle_request, daemon=True).start()
    with pytest.raises(OSError, match="302"):
        Webhook(f"http://127.0.0.1:{server.server_port}/").send(Message(1, "0", "{}"))
    server.server_close()


def test_a_broker_gets_each_once(tmp_path: Path) -> None:
    pytest.importorskip("paho")
    with broker(tmp_path) as found:
        if found is None:
            pytest.skip("no mosquitto")
        receiver, url = found
        ledger = filled(tmp_path / "a.watch", 20, "mqtt")
        sender = Sender(Mqtt(url, "anomalyncd-test"), ledger.path, tables=False)
        until_empty(ledger, "mqtt")
        sender.close(5)
        end = time.monotonic() + 10
        while len(receiver.taken) < 20 and time.monotonic() < end:
            time.sleep(0.05)
    assert len(receiver.taken) == 20 and receiver.again == 0


@pytest.mark.parametrize(
    ("webhook_url", "mqtt_url", "words"),
    [
        ("ftp://host/x", None, "http://host:port/path"), ("http://", None, "http://host:port/path"),
        ("http://h:99999/", None, "http://host:port/path"), ("http://me:secret@h/", None, "password does not belong"),
        (None, "mqtt://host", "expected a topic"), (None, "mqtt://host/a/%23", "expected a topic"),
        (None, "mqtt://host/a/#", "mqtt://host:port"),
    ],
)  # fmt: skip
def test_addresses_that_are_none(webhook_url: str | None, mqtt_url: str | None, words: str) -> None:
    pytest.importorskip("paho")
    with pytest.raises(SettingsError, match=words) as error:
        make_lines(webhook_url, mqtt_url, "x")
    assert "secret" not in str(error.value)


def test_without_paho_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setattr(senders, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'anomalyncd\[mqtt\]'"):
        make_lines(None, "mqtt://host/topic", "x")


def test_the_message_says_who_sent_it(monkeypatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_WEBHOOK_TOKEN", "a secret")
    (line,) = make_lines("http://h/x?y=1", None, "x")
    assert line._headers["Authorization"] == "Bearer a secret" and line._path == "/x?y=1"
