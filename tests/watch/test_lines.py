"""The webhook's line, and addresses."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from anomalyncd.errors import SettingsError
from anomalyncd.watch.ledger import Ledger, Message
from anomalyncd.watch.lines import Webhook
from anomalyncd.watch.senders import make_lines


def test_a_redirect_is_no_yes(tmp_path: Path) -> None:
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
        Webhook(f"http://127.0.0.1:{server.server_port}/").send(
            Message(1, "0", "{}"), Ledger(tmp_path / "a.watch", tables=False)
        )
    server.server_close()


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
