"""`run.py control pause|resume|drain|stop`: tell a run, and say who has answered and who has not.

Command --> sync --> every role --> heard ... done --> events --> a line each
heartbeats of who is there --> whoever has not said `done` is waited for, and named at the end
"""

import asyncio
import getpass
import json
import logging
import os
import secrets
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.observe.harmless import harmless
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import ConfigError, DeadlinePassed, ExitCode
from schemas.control import WISHES, Command, CommandAck, Heartbeat

if TYPE_CHECKING:
    from infra.amqp.connection import Broker
    from infra.amqp.message import Delivery

CONNECT_S = 15.0
LISTEN_S = 5.0
"""Whoever is there has sent two heartbeats by then."""
_AGAIN_S = 2.0
_TICK_S = 0.25

Say = Callable[[str], None]


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument(
        "verb",
        choices=list(WISHES),
        help="pause: take up nothing new; drain: hand over what runs, then wait; resume: go on; "
        "stop: hand over and leave (--resume goes on with the run)",
    )
    add_run_option(parser)
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds to wait for everybody (default 120)",
    )


def run(options: Namespace) -> int:
    """Send the command and wait for everybody's answer.

    Raises:
        BrokerUnreachable: No broker answers.
        DeadlinePassed: Somebody has not answered in time, or nobody is heard at all.
    """
    from infra.roles.broker_url import find_url

    if options.timeout <= 0:
        raise ConfigError(f"--timeout is {options.timeout:g} seconds", hint="wait longer than 0")
    found = target(options)
    url, name = find_url(found.config, found.folder), found.config.run.name
    command = Command(verb=options.verb, number=int(time.time() * 1000), by=operator())
    say: Say = (lambda _line: None) if options.json else _say
    roll = asyncio.run(_run(url, name, command, options.timeout, say))
    if options.json:
        _say(json.dumps(roll.to_json(name)))
    if not roll.complete:
        raise DeadlinePassed(
            f"{command.verb} after {options.timeout:g} s: {roll.missing_text()}", hint=roll.hint()
        )
    say(f"{command.verb}: all {len(roll.roles)} have done it")
    return ExitCode.DONE


def operator() -> str:
    """A name that no other process has: `ana@host#1f3a`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user id in the system's table
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}#{secrets.token_hex(4)}"


@dataclass(slots=True)
class Answer:
    """What is known of one role."""

    role: str
    worker: str
    host: str
    heard: bool = False
    done: bool = False
    left: bool = False
    detail: str = ""
    seen_at: float = 0.0

    @property
    def state(self) -> str:
        """`done`, `heard` or `no answer`."""
        return "done" if self.done else "heard" if self.heard else "no answer"


@dataclass(slots=True)
class Roll:
    """Who is there, and who has answered."""

    command: Command
    roles: dict[str, Answer] = field(default_factory=dict)
    """By `role/worker`."""

    def beat(self, beat: Heartbeat, now: float) -> None:
        """Take a heartbeat. Who leaves need not answer, except to a stop."""
        name = f"{beat.role}/{beat.worker}"
        if beat.state == "left":
            answer = self.roles.get(name)
            if answer is None:
                return
            answer.left = True
            if self.command.verb != "stop" and not answer.done:
                del self.roles[name]
            elif not answer.done:
                answer.detail = "left without handing over, its log says why"
            return
        answer = self._of(beat, now)
        answer.left = False

    def ack(self, ack: CommandAck, now: float) -> None:
        """Take an answer to our command."""
        ours = (self.command.by, self.command.number, self.command.verb)
        if (ack.by, ack.number, ack.verb) == ours:
            answer = self._of(ack, now)
            answer.heard, answer.done, answer.detail = True, ack.done, ack.detail

    @property
    def complete(self) -> bool:
        """Whether everybody has done it, the trainer among them."""
        return not self.missing and any(a.role == "trainer" for a in self.roles.values())

    @property
    def over(self) -> bool:
        """Whether no more answers can come: everybody has done it or left."""
        return self.complete or (bool(self.missing) and all(a.left for a in self.roles.values()))

    @property
    def missing(self) -> list[Answer]:
        """Who has not done it."""
        return [answer for _, answer in sorted(self.roles.items()) if not answer.done]

    def missing_text(self) -> str:
        """Who has not done it, in words."""
        if not self.roles:
            return "nobody of this run was heard"
        parts = [f"{line(answer)}" for answer in self.missing]
        if not any(answer.role == "trainer" for answer in self.roles.values()):
            parts.append("no trainer was heard")
        return f"{len(self.missing)} of {len(self.roles)} have not done it: " + "; ".join(parts)

    def hint(self) -> str:
        """What the operator can do."""
        if not self.roles:
            return "is the run alive, and is this its broker? 'run.py ledger' tells how it stands"
        if not any(answer.role == "trainer" for answer in self.roles.values()):
            return "the trainer decides what the run does: start it again with --resume"
        return "run the command again: who has done it answers at once"

    def to_json(self, run: str) -> dict[str, Any]:
        """For machines."""
        return {
            "run": run,
            "verb": self.command.verb,
            "number": self.command.number,
            "by": self.command.by,
            "complete": self.complete,
            "roles": [
                {
                    "role": answer.role,
                    "worker": answer.worker,
                    "host": answer.host,
                    "state": answer.state,
                    "left": answer.left,
                    "detail": answer.detail,
                }
                for _, answer in sorted(self.roles.items())
            ],
        }

    def _of(self, one: Heartbeat | CommandAck, now: float) -> Answer:
        name = f"{one.role}/{one.worker}"
        answer = self.roles.setdefault(name, Answer(one.role, one.worker, one.host))
        answer.seen_at = now
        return answer


def line(answer: Answer) -> str:
    """One role, for a terminal."""
    detail = f": {harmless(answer.detail, limit=200)}" if answer.detail else ""
    who = f"{harmless(answer.role, limit=20)}/{harmless(answer.worker, limit=60)}"
    return f"{who} on {harmless(answer.host, limit=60)} {answer.state}{detail}"


async def _run(url: str, name: str, command: Command, timeout_s: float, say: Say) -> Roll:
    from infra.amqp.connection import Broker

    logging.getLogger("infra.amqp").setLevel(logging.ERROR)  # who does not answer is said anyway
    broker = Broker(url, run=name, app_id=f"operator/{command.by}")
    await broker.start(CONNECT_S)
    try:
        say(f"{command.verb} -> {name} as {harmless(command.by)}, waiting for everybody")
        return await tell(broker, command, timeout_s, say)
    finally:
        await broker.close(1.0)


async def tell(broker: "Broker", command: Command, timeout_s: float, say: Say) -> Roll:
    """Send a command, again and again, until everybody who is heard has done it.

    Args:
        broker: Started.
        command: What to send.
        timeout_s: For all of it.
        say: Told each news, one line.
    """
    loop, roll = asyncio.get_running_loop(), Roll(command)
    began_at, sent_at, told = loop.time(), -_AGAIN_S, dict[str, tuple[str, str]]()
    with closing(broker.events()) as events:
        await events.ready()
        hearing = asyncio.create_task(_hear(events, roll))
        try:
            while (now := loop.time()) - began_at < timeout_s and not hearing.done():
                if roll.over and (now - began_at >= LISTEN_S or not broker.connected):
                    break  # after a stop, a private broker goes away with the run
                if now - sent_at >= _AGAIN_S:
                    await _publish(broker, command)
                    sent_at = now
                for name, answer in sorted(roll.roles.items()):
                    news = (answer.state, "" if answer.done else answer.detail)
                    if told.get(name) != news and answer.heard:
                        told[name] = news
                        say("  " + line(answer))
                await asyncio.sleep(_TICK_S)
            if hearing.done():
                hearing.result()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
    return roll


async def _hear(events: Any, roll: Roll) -> None:
    loop = asyncio.get_running_loop()
    async for delivery in events:
        take(delivery, roll, loop.time())


def take(delivery: "Delivery", roll: Roll, now: float) -> None:
    """What came over `events`; what cannot be read is nobody's answer."""
    from infra.amqp.codec import decode
    from infra.amqp.errors import BadMessage

    try:
        if delivery.envelope.type == Heartbeat.__name__:
            roll.beat(decode(delivery, delivery.body, Heartbeat), now)
        elif delivery.envelope.type == CommandAck.__name__:
            roll.ack(decode(delivery, delivery.body, CommandAck), now)
    except BadMessage:
        return


async def _publish(broker: "Broker", command: Command) -> None:
    from infra.amqp.codec import encode
    from infra.amqp.errors import PublishTimeout
    from infra.amqp.message import Outgoing

    envelope, body = encode(
        command,
        app_id=broker.app_id,
        correlation_id=command.by,
        headers={},
        message_id=f"Command:{command.by}:{command.number}",
    )
    outgoing = Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
    with suppress(PublishTimeout):  # it is sent again
        await broker.publish(outgoing, timeout_s=_AGAIN_S)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
