"""The webhook's line, and addresses."""

from __future__ import annotations

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from anomalyncd.errors import SettingsError
from anomalyncd.watch.ledger import Ledger, Message
from anomalyncd.watch.lines import LONGEST_ANSWER, Webhook
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
        ("http://h:99999/", None, "http://host:port/path"), ("http://h/a b", None, "without spaces"),
        ("http://me:secret@h/", None, "password does not belong"),
        (None, "mqtt://host", "expected a topic"), (None, "mqtt://host/a/%23", "expected a topic"),
        (None, "mqtt://host/a/#", "mqtt://host:port"),
    ],
)  # fmt: skip
def test_addresses_that_are_none(webhook_url: str | None, mqtt_url: str | None, words: str) -> None:
    pytest.importorskip("paho")
    with pytest.raises(SettingsError, match=words) as error:
        make_lines(webhook_url, mqtt_url, "x")
    assert "secret" not in str(error.value)


def test_an_answer_without_end_is_not_waited_for(tmp_path: Path) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(10**12))
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(LONGEST_ANSWER))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    Thread(target=server.serve_forever, daemon=True).start()
    line = Webhook(f"http://127.0.0.1:{server.server_port}/")
    for number in (1, 2):
        line.send(Message(number, "0", "{}"), Ledger(tmp_path / "a.watch", tables=False))
    server.shutdown()
    server.server_close()


def test_a_token_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_WEBHOOK_TOKEN", "hidden\r\nword")
    with pytest.raises(SettingsError, match="ANOMALYNCD_WEBHOOK_TOKEN holds characters") as error:
        make_lines("http://127.0.0.1/", None, "x")
    assert "hidden" not in str(error.value)
    assert (
        Webhook("http://127.0.0.1/", "a secret from a file\n".replace(" ", "-"))
        ._headers["Authorization"]
        .endswith("-file")
    )
