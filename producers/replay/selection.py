"""Which messages of a recording are meant."""

import argparse
import re
import time
from dataclasses import dataclass, field
from datetime import datetime

from infra.amqp.codec import decode
from infra.amqp.errors import BadMessage
from producers.replay.recorded import Recorded
from schemas.tokens import Tokens
from schemas.work import Rollout, Snapshot, Trajectory

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions that all must hold; an empty one holds for every message."""

    types: frozenset[str] = field(default_factory=frozenset)
    ids: frozenset[str] = field(default_factory=frozenset)
    """Rollout ids."""
    groups: frozenset[str] = field(default_factory=frozenset)
    """`7`, or `eval7`."""
    version: int | None = None
    """Policy version: one that a token was sampled by; of what has none yet, the one asked for."""
    since: float | None = None
    """Seconds since the epoch, by the senders' clocks, inclusive; they tell whole seconds."""
    until: float | None = None
    first: int = 0
    """Offset in the recording."""
    count: int | None = None
    """Messages at most."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Selection":
        """Of a command line."""
        return cls(
            types=frozenset(options.type),
            ids=frozenset(options.id),
            groups=frozenset(options.group),
            version=options.version,
            since=options.since,
            until=options.until,
            first=options.offset,
            count=options.count,
        )

    def takes(self, message: Recorded) -> bool:
        """Whether it is meant; what cannot be read has no version."""
        at = message.envelope.timestamp
        return (
            message.offset >= self.first
            and (not self.types or message.envelope.type in self.types)
            and (not self.ids or message.rollout_id in self.ids)
            and (not self.groups or message.group in self.groups)
            and (self.since is None or at >= self.since)
            and (self.until is None or at <= self.until)
            and (self.version is None or self.version in _versions(message))
        )


TYPES = ("Credit", "RolloutTask", "Snapshot", "Rollout", "Trajectory")
"""Of the messages that the recording hears."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument(
        "--type", action="append", default=[], choices=TYPES, help="of message; may be repeated"
    )
    for option, meaning in {
        "--id": "rollout: 7.3, or eval2.0",
        "--group": "group: 7, or eval2 for the evaluation of version 2",
    }.items():
        parser.add_argument(
            option, action="append", default=[], metavar="X", help=f"{meaning}; may be repeated"
        )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="with a token of policy version N; of a credit or a task: that waits for version N",
    )
    when = "2026-01-31T12:00:05, or 15m for 15 minutes ago (s, m, h, d)"
    parser.add_argument("--since", type=parse_time, metavar="TIME", help=when)
    parser.add_argument("--until", type=parse_time, metavar="TIME", help="inclusive")
    parser.add_argument(
        "--offset", type=_natural, default=0, metavar="N", help="begin at this one of the recording"
    )
    parser.add_argument("--count", type=_positive, metavar="N", help="at most so many")


def parse_time(text: str) -> float:
    """Seconds since the epoch of `2026-01-31T12:00:05` (local, unless it says its zone) or `15m`.

    Raises:
        argparse.ArgumentTypeError: It is neither.
    """
    if ago := _AGO.fullmatch(text):
        return time.time() - float(ago[1]) * _UNITS_S[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 2026-01-31T12:00:05, or 15m for 15 minutes ago"
        ) from None


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _positive(text: str) -> int:
    if not (number := _natural(text)):
        raise ValueError
    return number


def _versions(message: Recorded) -> set[int]:
    tokens = _tokens(message)
    if tokens is None:
        asked = message.envelope.headers.get("min_version", 0)
        return {asked} if isinstance(asked, int) else set()
    return {version for version, _ in tokens.versions if version >= 0}


def _tokens(message: Recorded) -> Tokens | None:
    """What was sampled; None for what has no tokens, or cannot be read."""
    kind, envelope, body = message.envelope.type, message.envelope, message.body
    try:
        if kind == Trajectory.__name__:
            return decode(envelope, body, Trajectory).rollout.progress.tokens
        if kind == Rollout.__name__:
            return decode(envelope, body, Rollout).progress.tokens
        if kind == Snapshot.__name__:
            return decode(envelope, body, Snapshot).progress.tokens
    except BadMessage:
        pass
    return None
