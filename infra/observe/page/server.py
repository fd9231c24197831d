"""The page over HTTP: GET only, to this machine only unless told, and never a file by its path.

What rollouts say is hostile: it leaves here as JSON, and a browser runs no script but ours.
"""

import ipaddress
import logging
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import orjson

from infra.observe.page.answers import Answers, NotFound
from infra.observe.page.query import BadQuery
from infra.observe.page.runs import Runs
from infra.roles.errors import ConfigError, WarrenError
from schemas.base import encodable

logger = logging.getLogger(__name__)

SOCKET_TIMEOUT_S = 30.0
"""A browser that asks nothing for so long loses its connection."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}


def load_assets() -> dict[str, tuple[str, bytes]]:
    """Path on the page -> media type and bytes, of everything that the page is made of."""
    assets: dict[str, tuple[str, bytes]] = {}
    root = files("infra.observe.page") / "assets"
    for folder, prefix in ((root, "/"), (root / "js", "/js/")):
        for file in folder.iterdir():
            suffix = "." + file.name.rpartition(".")[2]
            if file.is_file() and suffix in _TYPES:
                kind = f"{_TYPES[suffix]}; charset=utf-8"
                assets[prefix + file.name] = (kind, file.read_bytes())
    assets["/"] = assets.pop("/index.html")
    return assets


class PageServer:
    """Serves runs until it is closed.

    Raises:
        ConfigError: The address cannot be had.
    """

    def __init__(self, runs: Runs, *, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen at {host}:{port}: {error}",
                hint="choose another with --port N; --port 0 takes any free one",
            ) from error
        self._server.answers = Answers(runs)
        self._server.assets = load_assets()
        self._server.host = host
        self.port = int(self._server.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self._server.host)

    def serve_forever(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop, from another thread than the one that serves."""
        self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.server_close()


def is_loopback(host: str) -> bool:
    """Whether an address or a name means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_allowed_host(header: str, *, bound: str) -> bool:
    """Whether a `Host` header may name this server.

    A name that an attacker's name server points here (DNS rebinding) may not: only addresses,
    `localhost`, this machine's own name, and what the server was told to listen at.
    """
    try:
        host = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        own = {"localhost", bound.lower()}
        if not is_loopback(bound):
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return host in own
    return address.is_loopback or not is_loopback(bound)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: Answers
    assets: dict[str, tuple[str, bytes]]
    host: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle is nothing to tell of; a fault of ours is."""
        gone = isinstance(sys.exception(), ConnectionError | TimeoutError)
        logger.log(logging.DEBUG if gone else logging.ERROR, "a request broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "Warren"
    sys_version = ""
    timeout = SOCKET_TIMEOUT_S

    def do_GET(self) -> None:
        if not is_allowed_host(self.headers.get("Host", ""), bound=self.server.host):
            self._problem(HTTPStatus.MISDIRECTED_REQUEST, "this server does not go by that name")
            return
        path, _, words = self.path.partition("?")
        if path in self.server.assets:
            kind, content = self.server.assets[path]
            self._send(HTTPStatus.OK, kind, content)
        elif not path.startswith("/api/"):
            self._problem(HTTPStatus.NOT_FOUND, "nothing is here: the page is at /")
        elif self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._problem(HTTPStatus.FORBIDDEN, "another site may not ask")
        else:
            self._answer(path.removeprefix("/api/"), words)

    def _answer(self, what: str, words: str) -> None:
        status, said = HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the page: its terminal says it"
        content: bytes | None = None
        try:
            query = dict(parse_qsl(words, max_num_fields=32))
            content = orjson.dumps(self.server.answers.answer(what, query))
        except NotFound as error:
            status, said = HTTPStatus.NOT_FOUND, str(error)
        except (BadQuery, ValueError) as error:
            status, said = HTTPStatus.BAD_REQUEST, str(error)
        except (WarrenError, OSError) as error:  # what lies in the run folder
            logger.warning("cannot answer %r?%r: %r", what, words, str(error))
            said = str(error)
        finally:
            if content is None:
                self._problem(status, encodable(said))
            else:
                self._send(HTTPStatus.OK, "application/json", content)

    def _problem(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "application/json", orjson.dumps({"error": text}))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses: another method than GET, a malformed request."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered"
        self._problem(HTTPStatus(code), message or "this cannot be understood")

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
