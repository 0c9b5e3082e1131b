"""Whoever is told: in order, again until it is taken, and with a name by which it is counted once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from anomalyncd.watch import senders
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import Ledger, content_id
from anomalyncd.watch.lines import Webhook
from anomalyncd.watch.senders import LastTaken, Sender, make_lines

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from watch import webhook


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


def test_the_message_says_who_sent_it(monkeypatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_WEBHOOK_TOKEN", "a secret")
    (line,) = make_lines("http://h/x?y=1", None, "x")
    assert line._headers["Authorization"] == "Bearer a secret" and line._path == "/x?y=1"


def test_a_message_that_was_taken_before_a_kill_could_be_noted_is_not_sent_again(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "a.watch", 3, "webhook")
    first, *others = ledger.messages("webhook", 0, 3)
    LastTaken(tmp_path / "a.watch-webhook").set(first.id)
    with webhook(np.random.default_rng(0)) as (receiver, url):
        sender = Sender(Webhook(url), ledger.path, tables=False)
        sender.drain(ledger, 60)
        sender.close(60)
    assert receiver.taken == {message.id: 1 for message in others}
