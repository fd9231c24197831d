"""`run.py control pause|resume|drain|stop`: tell a run, and say who has answered and who has not.

a trainer's heartbeat, else the newest manifest, else any heartbeat --> whose run is meant
Command --> sync --> every role of it --> heard ... done --> events --> a line each
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
from typing import TYPE_CHECKING, Any

from infra.observe.harmless import harmless
from infra.roles.command.roll import Roll, line
from infra.roles.command.target import Target, add_run_option, target
from infra.roles.errors import ConfigError, DeadlinePassed, ExitCode, WarrenError
from infra.roles.newest import newest_manifest
from schemas.control import WISHES, Command, CommandAck, Heartbeat

if TYPE_CHECKING:
    from infra.amqp.connection import Broker
    from infra.amqp.message import Delivery

CONNECT_S = 15.0
LISTEN_S = 5.0
"""Whoever is there has sent two heartbeats by then."""
_WORD_S = 4.0
"""A living trainer has sent a heartbeat by then, and said which run it trains."""
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
    number = int(time.time() * 1000)
    command = Command(run_id="", verb=options.verb, number=number, by=operator())
    say: Say = (lambda _line: None) if options.json else _say
    roll = asyncio.run(_run(url, found, command, options.timeout, say))
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


async def _run(url: str, found: Target, command: Command, timeout_s: float, say: Say) -> Roll:
    from infra.amqp.connection import Broker

    name = found.config.run.name
    logging.getLogger("infra.amqp").setLevel(logging.ERROR)  # who does not answer is said anyway
    broker = Broker(url, run=name, app_id=f"operator/{command.by}")
    await broker.start(CONNECT_S)
    try:
        say(f"{command.verb} -> {name} as {harmless(command.by)}, waiting for everybody")
        return await tell(broker, found, command, timeout_s, say)
    finally:
        await broker.close(1.0)


async def tell(
    broker: "Broker", found: Target, command: Command, timeout_s: float, say: Say
) -> Roll:
    """Send a command, again and again, until everybody of the run who is heard has done it.

    Args:
        broker: Started.
        found: The run, for its weight store.
        command: What to send; whose run is meant is found out here.
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
                if not roll.settled and now - began_at >= min(_WORD_S, timeout_s / 2):
                    roll.settle(await _without_trainer(found) or roll.heard_run_id)
                if roll.settled and now - sent_at >= _AGAIN_S:
                    await _publish(broker, roll.command)
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


async def _without_trainer(found: Target) -> str:
    """The run's id as the weight store tells it; empty if it does not."""
    with suppress(WarrenError):  # a store that is not to be read from here tells nothing
        manifest = await newest_manifest(found.folder, found.config)
        return "" if manifest is None else manifest.run_id
    return ""


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
        headers={"run_id": command.run_id},
        message_id=f"Command:{command.by}:{command.number}",
    )
    outgoing = Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
    with suppress(PublishTimeout):  # it is sent again
        await broker.publish(outgoing, timeout_s=_AGAIN_S)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
