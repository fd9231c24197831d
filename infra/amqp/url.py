"""Broker URLs: checked once, never shown with their password."""

import os
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from infra.roles.errors import ConfigError

AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
MANAGEMENT_PORT_OFFSET = 10_000
"""RabbitMQ's own convention: 5672 and 15672. The private node keeps to it."""


def parse_url(url: str) -> SplitResult:
    """Split a broker URL.

    Raises:
        ConfigError: It is not `amqp://user:password@host:port/vhost` (or `amqps`).
    """
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid, parts = False, urlsplit("")
    if parts.scheme not in AMQP_PORTS or not parts.hostname or not port_is_valid:
        raise ConfigError(
            f"not a broker URL: {mask_url(url)!r}",
            hint="write amqp://user:password@host:5672/vhost in [broker] url or WARREN_BROKER_URL",
        )
    return parts


def mask_url(url: str) -> str:
    """The URL with its password as `***`; anything unreadable becomes `***` as a whole."""
    try:
        parts = urlsplit(url)
        user, secret, _ = parts.username, parts.password, parts.port
    except ValueError:
        return "***"
    if "@" in url and not parts.netloc:
        return "***"
    if secret is None:
        return urlunsplit(parts._replace(query=""))
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:***@{host}", query=""))


def without_user(url: str) -> str:
    """A URL without user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def address(url: str) -> str:
    """`host:port` of a broker URL, for log lines."""
    parts = parse_url(url)
    return f"{parts.hostname}:{parts.port or AMQP_PORTS[parts.scheme]}"


def make_url(*, user: str, password: str, host: str, port: int, vhost: str = "/") -> str:
    """An `amqp://` URL with every part quoted."""
    return (
        f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{host}:{port}"
        f"/{quote(vhost, safe='')}"
    )


def management_url(url: str) -> str:
    """Base URL of the management API of the broker at `url`, with its credentials.

    `WARREN_MANAGEMENT_URL` wins; else the AMQP port plus 10000, as RabbitMQ does.
    """
    chosen = os.environ.get("WARREN_MANAGEMENT_URL")
    if chosen:
        return chosen.rstrip("/")
    parts = parse_url(url)
    port = (parts.port or AMQP_PORTS[parts.scheme]) + MANAGEMENT_PORT_OFFSET
    userinfo = parts.netloc.rpartition("@")[0]
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"http://{userinfo + '@' if userinfo else ''}{host}:{port}"
