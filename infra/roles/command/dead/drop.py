"""`run.py dead drop`: letters that nobody needs any more."""

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field

from infra.amqp.connection import Broker
from infra.observe.harmless import harmless
from infra.roles.command.dead.desk import (
    Choice,
    add_choice,
    at_desk,
    browse,
    check_found,
    choice_of,
)
from infra.roles.errors import ConfigError, ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_choice(parser, everything=False)
    parser.add_argument("--yes", action="store_true", help="do it, though no letter is named by ID")


@dataclass(slots=True)
class Outcome:
    """What became of the letters that were meant, by their ids."""

    found: list[frozenset[str]] = field(default_factory=list)
    """The names of each."""
    dropped: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """No longer ours when they were to be dropped: they lie in the queue again."""
    cut: bool = False
    """The connection was lost on the way."""


def run(options: Namespace) -> int:
    """Drop them; 1 when the connection was lost on the way. Their members stay as they are: dead.

    Raises:
        BrokerUnreachable: No broker answers.
        ConfigError: There is none such, or `--yes` is missing.
        DeadlinePassed: The queue gives none of those that it has.
    """
    choice = choice_of(options)
    sure = options.yes or choice.by_name
    outcome = at_desk(options, lambda broker: drop(broker, choice, sure=sure))
    if not sure and outcome.found:
        raise ConfigError(
            f"{len(outcome.found)} dead letters would be dropped for good",
            hint="add --yes, or name them",
        )
    if options.json:
        said = {"dropped": outcome.dropped, "kept": outcome.kept}
        sys.stdout.write(json.dumps(said) + "\n")
    else:
        lines = [f"dropped {harmless(name)}" for name in outcome.dropped]
        lines += [f"not dropped {harmless(name)}" for name in outcome.kept]
        lines.append(f"{len(outcome.dropped)} dropped")
        if outcome.cut:
            lines.append("the connection was lost on the way: see 'dead list' for what is left")
        sys.stdout.write("\n".join(lines) + "\n")
    check_found(choice, outcome.found)
    return ExitCode.FAILED if outcome.cut else ExitCode.DONE


async def drop(broker: Broker, choice: Choice, *, sure: bool) -> Outcome:
    """Acknowledge each letter that is meant.

    Args:
        sure: Without, they are only counted.
    """
    outcome = Outcome()
    async for letter, delivery in browse(broker, choice):
        outcome.found.append(letter.names)
        if not sure:
            continue
        if not broker.ack(delivery):
            outcome.kept.append(letter.id)
            outcome.cut = True
            continue
        outcome.dropped.append(letter.id)
        if letter.id in outcome.kept:  # it came again
            outcome.kept.remove(letter.id)
    return outcome
