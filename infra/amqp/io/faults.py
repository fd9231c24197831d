"""What pika's errors mean for us: wait and try again, or tell the user."""

import re

from pika import exceptions
from pika.adapters.utils.connection_workflow import (
    AMQPConnectorException,
    AMQPConnectorStackTimeout,
)

from infra.amqp.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ResourceLocked,
    TopologyMismatch,
)
from infra.roles.errors import WarrenError

ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
NOT_ALLOWED = 530

PIKA_ERRORS = (
    exceptions.AMQPError,
    exceptions.ChannelError,
    AMQPConnectorException,
    OSError,
    TimeoutError,
)
"""All that an operation on a connection or channel may raise."""

_PROBABLY_REFUSED = (
    exceptions.ProbableAuthenticationError,
    exceptions.ProbableAccessDeniedError,
)
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class LinkLost(Exception):
    """The connection went away under an operation. Never leaves this room."""


def reply_code(error: BaseException) -> int:
    """AMQP's reply code of an error, or 0.

    pika calls whatever ends a handshake a probable refusal. Only what the broker itself said is
    one: a connection that was reset comes back.
    """
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return int(error.reply_code)
    if isinstance(error, _PROBABLY_REFUSED) and (said := _CLOSED_BY_BROKER.search(str(error))):
        return int(said[1])
    return 0


def describe(error: BaseException | None) -> str:
    """One line for a log."""
    if error is None:
        return "closed"
    if isinstance(error, AMQPConnectorStackTimeout):
        return "something listens there that does not answer as a broker"
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return f"{error.reply_code} {error.reply_text}"
    causes = [error]
    while isinstance(causes[-1], exceptions.AMQPError) and causes[-1].args:
        inner = causes[-1].args[0]
        inner = getattr(inner, "exceptions", [inner])[-1]
        inner = getattr(inner, "exception", inner)
        if not isinstance(inner, BaseException):
            break
        causes.append(inner)
    last = causes[-1]
    if isinstance(last, OSError) and last.strerror:
        return last.strerror
    return f"{type(last).__name__}: {last}" if str(last) else type(last).__name__


def fatal(error: BaseException, *, address: str) -> WarrenError | None:
    """Our error for what no retry can heal while connecting and declaring, else None."""
    if isinstance(error, WarrenError):
        return error
    code = reply_code(error)
    if isinstance(error, exceptions.AuthenticationError):
        return BrokerRefused(
            f"the broker at {address} refuses the user or the password",
            hint="correct [broker] url or WARREN_BROKER_URL",
        )
    if code == NOT_ALLOWED:
        return BrokerRefused(
            f"the broker at {address} has no such virtual host for this user: {describe(error)}",
            hint="create it with `rabbitmqctl add_vhost`, grant access with `set_permissions`",
        )
    if code == ACCESS_REFUSED:
        text = describe(error)
        if "login" in text.lower():
            return BrokerRefused(
                f"the broker at {address} refuses the user or the password",
                hint="correct [broker] url or WARREN_BROKER_URL",
            )
        return BrokerRefused(
            f"the broker at {address} denies a permission: {text}",
            hint="the user needs configure, write and read on `<run>\\..*`",
        )
    if code == RESOURCE_LOCKED:
        return ResourceLocked(
            f"another connection owns the queue: {describe(error)}",
            hint="is another trainer of this run alive?",
        )
    if code == PRECONDITION_FAILED:
        return TopologyMismatch(
            f"a queue or exchange exists with other arguments: {describe(error)}",
            hint="another version of Warren declared it: use another run name, or delete the queue",
        )
    return None


def size_limit(error: BaseException) -> int | None:
    """The broker's own body limit, when it closed a channel because a message exceeded it."""
    if reply_code(error) != PRECONDITION_FAILED:
        return None
    match = _TOO_LARGE.search(describe(error))
    return int(match.group(1)) if match else None


def unreachable(address: str, timeout_s: float, reason: str) -> BrokerUnreachable:
    """The error for a broker that does not answer in time."""
    return BrokerUnreachable(
        f"no broker answers at {address} within {timeout_s:.0f} s: {reason}",
        hint="start it, or correct [broker] url or WARREN_BROKER_URL; with an empty url "
        "Warren starts a private one",
    )
