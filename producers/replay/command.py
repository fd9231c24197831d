"""`run.py replay queue`: recorded messages, sent again.

    recording | dump --> selected? --> due? --> marked --> queue    confirmed
                                                 as it is --> file

A replay may be killed at any moment: nothing waits for its rest, and nothing of it ever counted.
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

from infra.amqp.connection import Broker
from infra.amqp.errors import QueueMissing
from infra.amqp.topology import QUEUE_NAMES
from infra.amqp.url import mask_url
from infra.observe.logs import set_up_logging
from infra.roles.broker_url import find_url
from infra.roles.command.control import CONNECT_S
from infra.roles.command.target import Target as Run
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import BrokerUnreachable, ConfigError, ExitCode
from producers.replay import selection
from producers.replay.pace import Pace, parse_speed
from producers.replay.recorded import Recorded
from producers.replay.replaying import Replaying
from producers.replay.selection import Selection
from producers.replay.sources import newest_offset, no_recording, read_dump, read_recording
from producers.replay.targets import ORIGINAL, FileTarget, QueueTarget, Target, check_queue_name

URL_VARIABLE = "WARREN_REPLAY_BROKER_URL"
_NOT_THERE = (
    f"nothing was sent; --to-broker or {URL_VARIABLE} is amqp://user:password@host:5672/vhost"
)
_HEARTBEAT_S = 20
"""To a broker, when no run says how often."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the command line."""
    add_run_option(parser)
    parser.add_argument(
        "--from-file", type=Path, metavar="X.jsonl", help="instead of the run's recording"
    )
    selection.add_arguments(parser)
    to = parser.add_mutually_exclusive_group()
    to.add_argument(
        "--to-queue",
        metavar="NAME",
        help=f"a queue of the run (rollouts), any queue of the broker (other.rollouts), or "
        f"{ORIGINAL!r}: each to the one that it came from",
    )
    to.add_argument("--to-file", type=Path, metavar="X.jsonl", help="as text, one a line")
    parser.add_argument(
        "--to-broker",
        metavar="URL",
        nargs="?",
        const="",
        help=f"with --to-queue: another broker; without a URL, that of {URL_VARIABLE}, where its "
        "password is not seen by others",
    )
    parser.add_argument(
        "--speed",
        type=parse_speed,
        default=float("inf"),
        metavar="original|N|max",
        help="as fast as it was, N times as fast, or at once (default)",
    )
    parser.add_argument("--dry-run", action="store_true", help="count, and send nothing")


def run(options: argparse.Namespace) -> int:
    """Replay; the exit code.

    Raises:
        ConfigError: The command line asks for nothing that can be done, or of a queue that is not.
        BrokerUnreachable: No broker answers.
        DeadlinePassed: It stopped answering.
    """
    _check(options)
    set_up_logging("replay", stream=sys.stderr)
    asyncio.run(_replay(options, target(options) if _needs_run(options) else None))
    return ExitCode.DONE


def _needs_run(options: argparse.Namespace) -> bool:
    """A run that is not there is no matter when nothing of it is asked: recording, broker, name."""
    if not options.from_file:
        return True
    named = options.to_queue == ORIGINAL or options.to_queue in QUEUE_NAMES
    return bool(options.to_queue) and (named or options.to_broker is None)


def _check(options: argparse.Namespace) -> None:
    if not (options.to_queue or options.to_file or options.dry_run):
        raise ConfigError(
            "a replay needs to know where to", hint="--to-queue NAME, --to-file X or --dry-run"
        )
    if options.to_broker is not None and not options.to_queue:
        raise ConfigError("--to-broker needs --to-queue NAME")
    if options.to_broker == "" and not os.environ.get(URL_VARIABLE):
        raise ConfigError(f"--to-broker without a URL takes that of {URL_VARIABLE}: it is not set")
    if options.to_queue:
        check_queue_name(options.to_queue)


async def _replay(options: argparse.Namespace, found: Run | None) -> None:
    replay = f"r{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:

        async def connect(url: str) -> Broker:
            broker = Broker(
                url,
                run=found.config.run.name if found else "replay",
                app_id=f"replay/{replay}",
                heartbeat_s=found.config.broker.heartbeat if found else _HEARTBEAT_S,
                guest=True,
            )
            await broker.start(CONNECT_S)
            stack.push_async_callback(broker.close)
            return broker

        here = None
        if found is not None and not (options.from_file and options.to_broker is not None):
            here = await connect(find_url(found.config, found.folder))
        goal: Target | None = None
        if options.to_broker is not None and not options.dry_run:
            url = options.to_broker or os.environ[URL_VARIABLE]
            try:
                there = await connect(url)
            except (BrokerUnreachable, ConfigError) as error:
                error.hint = _NOT_THERE
                raise
            goal = QueueTarget(there, options.to_queue, replay)
            goal.name += f" at {mask_url(url)}"
        elif not options.dry_run:
            goal = _goal_here(options, here, replay)
        if isinstance(goal, FileTarget):
            stack.callback(goal.discard)
        chosen = Selection.of(options)
        replaying = Replaying(replay, chosen, goal, Pace(options.speed))
        await replaying.run(await _source(options, here, chosen, replaying))
        sys.stdout.write(replaying.summary())


def _goal_here(options: argparse.Namespace, here: Broker | None, replay: str) -> Target:
    if options.to_file:
        return FileTarget(options.to_file)
    assert here is not None
    return QueueTarget(here, options.to_queue, replay)


async def _source(
    options: argparse.Namespace, here: Broker | None, chosen: Selection, replaying: Replaying
) -> AsyncGenerator[Recorded]:
    if options.from_file:
        return read_dump(options.from_file)
    assert here is not None
    try:
        replaying.last = await newest_offset(here)
    except QueueMissing as error:
        raise no_recording(here.run, error) from error
    return read_recording(here, first=chosen.first, last=replaying.last)
