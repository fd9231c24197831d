"""Going through `dead_letters` without losing one.

    take ... look ... nothing acknowledged --> the connection closes --> all are in the queue again
    requeue: Requeue -> `failures`, confirmed --> acknowledge        drop: acknowledge
                        |
                        +--> the trainer journals it, asks for the member again

Killed between any two steps, a letter is still in the queue, or its wish is with the trainer, or
both: then it is wished for once more, and the trainer knows that it was.
"""

import asyncio
import contextlib
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from infra.amqp.codec import decode
from infra.amqp.connection import Broker
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery
from infra.observe.harmless import harmless
from infra.roles.broker_url import find_url
from infra.roles.command.control import CONNECT_S, operator
from infra.roles.command.dead.letter import STAGES, Letter, read_letter
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import ConfigError, DeadlinePassed
from schemas.control import RunState

QUEUE = "dead_letters"
_AT_ONCE = 16
_TAKE_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant: those with one of the names, and with everything else asked for."""

    names: frozenset[str] = frozenset()
    reason: str = ""
    stage: str = ""
    kind: str = ""

    @property
    def by_name(self) -> bool:
        """Whether the letters were named one by one."""
        return bool(self.names)

    def takes(self, letter: Letter) -> bool:
        """Whether it is meant."""
        return (
            (not self.names or bool(self.names & letter.names))
            and self.reason.lower() in letter.error.lower()
            and self.stage in ("", letter.stage)
            and self.kind in ("", letter.kind)
        )


def add_choice(parser: ArgumentParser, *, everything: bool) -> None:
    """Add `[ID ...] [--reason ...]`, and the run.

    Args:
        everything: Without any, all letters are meant; else they take `--all`.
    """
    parser.add_argument("ids", metavar="ID", nargs="*", help="of a letter, or of its rollout")
    add_run_option(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="whose error holds this text")
    parser.add_argument("--stage", default="", choices=STAGES, help="who gave them up")
    parser.add_argument("--kind", default="", choices=("infra", "data"), help="whose fault it was")
    if not everything:
        parser.add_argument("--all", action="store_true", help="every letter")
    parser.add_argument("--json", action="store_true", help="for machines")


def choice_of(options: Namespace) -> Choice:
    """What the command line chooses.

    Raises:
        ConfigError: Nothing, where something has to be chosen.
    """
    choice = Choice(frozenset(options.ids), options.reason, options.stage, options.kind)
    if choice == Choice() and not getattr(options, "all", True):
        raise ConfigError(
            "which letters?", hint="give IDs, --reason, --stage, --kind or --all; see 'dead list'"
        )
    return choice


def check_found(choice: Choice, found: Iterable[frozenset[str]]) -> None:
    """Whether there was a letter at all, and one of each name.

    Args:
        choice: What was asked for.
        found: The names of each letter that was found.

    Raises:
        ConfigError: There was none; says of which name.
    """
    names = [*found]
    missing = sorted(choice.names - frozenset().union(*names))
    if missing or not names:
        which = ", ".join(harmless(name, limit=80) for name in missing[:8])
        raise ConfigError(
            f"no dead letter {which}" if missing else "no such dead letter",
            hint="'run.py dead list' lists them",
        )


def at_desk(options: Namespace, work: Callable[[Broker], Awaitable[T]]) -> T:
    """Do something with the run's broker connected.

    Raises:
        BrokerUnreachable: No broker answers.
    """
    found = target(options)
    url, name = find_url(found.config, found.folder), found.config.run.name
    logging.getLogger("infra.amqp").setLevel(logging.ERROR)

    async def connected() -> T:
        broker = Broker(url, run=name, app_id=f"operator/{operator()}")
        await broker.start(CONNECT_S)
        try:
            return await work(broker)
        finally:
            await broker.close()

    return asyncio.run(connected())


async def browse(
    broker: Broker, choice: Choice, *, timeout_s: float = _TAKE_S
) -> AsyncIterator[tuple[Letter, Delivery]]:
    """Each letter that is meant, once, of those that lie in the queue now. Nobody else gets them
    until we disconnect; then what was not acknowledged lies there again.

    Args:
        timeout_s: Of waiting for the next letters.

    Raises:
        DeadlinePassed: The queue has more, and gave none in time.
    """
    ready, _ = await broker.depth(QUEUE)
    seen = 0
    while seen < ready:
        try:
            async with asyncio.timeout(timeout_s):
                deliveries = await broker.take(QUEUE, limit=min(_AT_ONCE, ready - seen))
        except TimeoutError as error:
            raise DeadlinePassed(
                f"{QUEUE!r} has {ready - seen} more letters and gave none within {timeout_s:.0f} s",
                hint="'run.py monitor' shows whether the broker answers; then look again: what "
                "was not dropped or requeued before still lies there",
            ) from error
        seen += len(deliveries)
        for delivery in deliveries:
            letter = read_letter(delivery)
            if choice.takes(letter):
                yield letter, delivery
        if not deliveries:
            return


async def trainers_word(broker: Broker, timeout_s: float = 4.0) -> RunState | None:
    """What a living trainer says within its period; None if none does."""
    control: Any = broker.control()
    with contextlib.closing(control), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            async for delivery in control:
                if delivery.envelope.type == RunState.__name__:
                    with contextlib.suppress(BadMessage):
                        return decode(delivery, delivery.body, RunState)
    return None
