"""The management API's client, before a server that is none."""

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import ClassVar

import pytest

from infra.amqp import admin
from infra.amqp.admin import Management
from infra.amqp.errors import ManagementUnreachable


class Server(BaseHTTPRequestHandler):
    """Redirects from `/moved`, breaks off at `/cut`, and else says what it is told to."""

    body = b"{}"
    sent: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.sent.append((self.path, self.headers["Authorization"]))
        moved, cut = self.path.startswith("/moved"), self.path.startswith("/cut")
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", "/stolen")
        self.send_header("Content-Length", str(len(self.body) + cut))
        self.end_headers()
        self.wfile.write(self.body)

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Server, "sent", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://u:geheim@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_redirect_does_not_get_the_login(url: str) -> None:
    moved = Management(f"{url}/moved")
    for ask in (moved.version, lambda: moved.delete_queue("r", "q")):
        with pytest.raises(ManagementUnreachable, match="HTTP 302") as failure:
            ask()
        assert "WARREN_MANAGEMENT_URL" in failure.value.hint
    assert len(Server.sent) == 2 and "/stolen" not in {path for path, _ in Server.sent}


def test_an_answer_has_a_size(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "body", b'{"rabbitmq_version": "4.1"}')
    monkeypatch.setattr(admin, "MAX_ANSWER_BYTES", 27)
    assert Management(url).version() == "4.1"
    monkeypatch.setattr(admin, "MAX_ANSWER_BYTES", 26)
    with pytest.raises(ManagementUnreachable, match="more than 26 bytes"):
        Management(url).version()


def test_an_answer_has_an_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a second later."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr(admin, "time", clock)
    monkeypatch.setattr(admin, "_READ_BYTES", 1)
    monkeypatch.setattr(Server, "body", b"[1]")
    assert Management(url, timeout_s=3.0)._get("/") == [1]
    monkeypatch.setattr(Server, "body", b"[1, 2]")
    with pytest.raises(ManagementUnreachable, match="did not end within 3 s"):
        Management(url, timeout_s=3.0)._get("/")


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_said(url: str, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(Server, "body", body)
    with pytest.raises(ManagementUnreachable, match="no JSON"):
        Management(url).version()


def test_an_answer_that_breaks_off_is_none(url: str) -> None:
    with pytest.raises(ManagementUnreachable, match="IncompleteRead"):
        Management(f"{url}/cut").version()
