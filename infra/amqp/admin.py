"""The management HTTP API, for people and monitors: its counters lag by some seconds.

Decisions ask the broker itself (`Broker.depth`).
"""

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from infra.amqp.errors import ManagementUnreachable
from infra.amqp.url import mask_url

_LARGEST = 2**63
"""No number that a broker tells is larger: it stays one that can be added and written."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A broker with 50000 queues says less."""
_READ_BYTES = 64 * 1024
_ELSEWHERE = "is the management plugin enabled? WARREN_MANAGEMENT_URL names another place"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue, as an operator sees it."""

    name: str
    """Logical name, without the run's prefix."""
    num_ready: int
    num_unacked: int
    num_consumers: int
    ready_bytes: int
    publish_rate: float
    """Messages per second."""
    deliver_rate: float
    """Messages per second."""
    total_bytes: int = 0
    """Bodies of all messages, those of a stream included."""
    max_messages: int | None = None
    """By an argument or a policy."""
    max_bytes: int | None = None
    """By an argument or a policy."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """They would carry the login to wherever the answer says."""

    def redirect_request(self, *_: object) -> None:
        """None: the answer becomes an `HTTPError`."""


class Management:
    """A small client of the management API. Blocking.

    Args:
        url: Base URL with credentials, `http://user:password@host:15672`.
        vhost: Virtual host of the run.
        timeout_s: Until an answer begins, and then until all of it is there.

    Raises:
        ManagementUnreachable: The URL is none.
    """

    def __init__(self, url: str, *, vhost: str = "/", timeout_s: float = 5.0) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ManagementUnreachable(f"no URL: {mask_url(url)}", hint=_ELSEWHERE) from error
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._vhost = quote(vhost, safe="")
        self._timeout_s = timeout_s
        userinfo = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._authorization = "Basic " + base64.b64encode(userinfo.encode()).decode("ascii")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def queues(self, run: str) -> list[QueueRow]:
        """The queues of a run, by name.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        prefix = f"{run}."
        with self._sense(f"/api/queues/{self._vhost}") as found:
            rows = [_row(q, prefix) for q in found if str(q.get("name", "")).startswith(prefix)]
        return sorted(rows, key=lambda row: row.name)

    def alarms(self) -> list[str]:
        """Memory and disk alarms in force, `["memory on warren@localhost"]`; empty: none.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        with self._sense("/api/nodes") as nodes:
            return [
                f"{what} on {node.get('name')}"
                for node in nodes
                for what, key in (("memory", "mem_alarm"), ("disk", "disk_free_alarm"))
                if node.get(key)
            ]

    def objects(self) -> dict[str, int]:
        """How many `connections`, `channels`, `queues` and `consumers` the broker has.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        names = ("connections", "channels", "queues", "consumers")
        with self._sense("/api/overview") as overview:
            found = overview.get("object_totals") or {}
            return {name: int(found.get(name) or 0) for name in names}

    def version(self) -> str:
        """RabbitMQ's version.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        with self._sense("/api/overview") as overview:
            return str(overview.get("rabbitmq_version", ""))

    def listens(self, port: int) -> bool:
        """Whether the node serves this port: the last thing that its start does.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        with self._sense("/api/overview") as overview:
            listeners = overview.get("listeners") or ()
            return any(listener.get("port") == port for listener in listeners)

    def connections(self) -> list[Mapping[str, Any]]:
        """Open connections with `name`, `user`, `client_properties`, `state`.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        with self._sense(f"/api/vhosts/{self._vhost}/connections") as found:
            return list(found)

    def close_connection(self, name: str) -> None:
        """Close a connection from the broker's side.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        self._call("DELETE", f"/api/connections/{quote(name, safe='')}")

    def consumers(self, run: str) -> list[Mapping[str, Any]]:
        """Consumers of a run's queues with `consumer_tag`, `queue`, `channel_details`.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        with self._sense(f"/api/consumers/{self._vhost}") as found:
            return [row for row in found if str(row["queue"]["name"]).startswith(f"{run}.")]

    def policies_of(self, run: str) -> dict[str, str]:
        """Queue -> the policy that applies to it, of the queues that have one.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        prefix = f"{run}."
        with self._sense(f"/api/queues/{self._vhost}") as found:
            return {
                str(queue["name"]).removeprefix(prefix): str(queue["policy"])
                for queue in found
                if str(queue.get("name", "")).startswith(prefix) and queue.get("policy")
            }

    def peek(self, queue: str, count: int = 1) -> list[Mapping[str, Any]]:
        """The first messages of a queue as the pages' "Get messages" shows them, put back.

        Args:
            queue: The broker's name of it.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        asked = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
        path = f"/api/queues/{self._vhost}/{quote(queue, safe='')}/get"
        found: list[Mapping[str, Any]] = self._ask("POST", path, asked)
        return found

    def delete_queue(self, run: str, queue: str) -> None:
        """Delete a queue with its messages.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        self._call("DELETE", f"/api/queues/{self._vhost}/{quote(f'{run}.{queue}', safe='')}")

    def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Make users, permissions, policies, exchanges, queues and bindings. What exists stays, but
        users, permissions and policies are replaced.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        self._call("POST", "/api/definitions", definitions)

    def declare_stream(self, name: str) -> None:
        """Declare a durable stream.

        Raises:
            ManagementUnreachable: No answer, or an error.
        """
        body = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        self._call("PUT", f"/api/queues/{self._vhost}/{quote(name, safe='')}", body)

    @contextmanager
    def _sense(self, path: str) -> Iterator[Any]:
        """What is answered, for the block to make sense of.

        Raises:
            ManagementUnreachable: No answer, an error, or the block finds no sense in it.
        """
        found = self._get(path)
        try:
            yield found
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise ManagementUnreachable(
                f"GET {path} at {self._base}: an answer of no sense: {type(error).__name__}: "
                f"{error}",
                hint=_ELSEWHERE,
            ) from error

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, content: object = None) -> Any:
        body = self._call(method, path, content) or b"null"
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ManagementUnreachable(
                f"{method} {path} at {self._base}: no JSON: {type(error).__name__}", hint=_ELSEWHERE
            ) from error

    def _call(self, method: str, path: str, content: object = None) -> bytes:
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        try:
            request = urllib.request.Request(
                self._base + path, method=method, data=data, headers=headers
            )
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return _read(answer, self._timeout_s)
        except urllib.error.HTTPError as error:
            raise ManagementUnreachable(
                f"{method} {path} at {self._base}: HTTP {error.code}",
                hint=_ELSEWHERE
                if 300 <= error.code < 400
                else "is the user tagged `monitoring` or `administrator`?",
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ManagementUnreachable(
                f"{method} {path} at {mask_url(self._base)}: {error}",
                hint=_ELSEWHERE,
            ) from error


def _read(answer: http.client.HTTPResponse, timeout_s: float) -> bytes:
    """All of it.

    Raises:
        TimeoutError: It takes longer.
        ValueError: It is larger than any broker's.
        http.client.IncompleteRead: It breaks off.
    """
    stated = answer.length
    deadline = time.monotonic() + timeout_s
    body = bytearray()
    while piece := answer.read1(_READ_BYTES):
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer did not end within {timeout_s:.0f} s")
    if stated is not None and len(body) < stated:
        raise http.client.IncompleteRead(bytes(body), stated - len(body))
    return bytes(body)


def _row(queue: Mapping[str, Any], prefix: str) -> QueueRow:
    stats = queue.get("message_stats") or {}

    def count(name: str) -> int:
        return min(int(queue.get(name) or 0), _LARGEST)

    def rate(name: str) -> float:
        said = float((stats.get(f"{name}_details") or {}).get("rate") or 0.0)
        return min(said, float(_LARGEST))

    return QueueRow(
        name=str(queue["name"]).removeprefix(prefix),
        num_ready=count("messages_ready"),
        num_unacked=count("messages_unacknowledged"),
        num_consumers=count("consumers"),
        ready_bytes=count("message_bytes_ready"),
        publish_rate=rate("publish"),
        deliver_rate=rate("deliver_get"),
        total_bytes=count("message_bytes"),
        max_messages=_limit(queue, "max-length"),
        max_bytes=_limit(queue, "max-length-bytes"),
    )


def _limit(queue: Mapping[str, Any], name: str) -> int | None:
    """The smaller of what the declaration and the policy say, as brokers do."""
    said = (
        (queue.get("arguments") or {}).get(f"x-{name}"),
        (queue.get("effective_policy_definition") or {}).get(name),
    )
    return min((min(value, _LARGEST) for value in said if type(value) is int), default=None)
