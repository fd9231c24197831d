"""`run.py dead drop`: letters that nobody needs any more."""

import json
import sys
from argparse import ArgumentParser, Namespace

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


def run(options: Namespace) -> int:
    """Drop them. Their members stay as they are: dead.

    Raises:
        BrokerUnreachable: No broker answers.
        ConfigError: There is none such, or `--yes` is missing.
    """
    choice = choice_of(options)
    sure = options.yes or choice.by_name
    dropped = at_desk(options, lambda broker: _drop(broker, choice, sure=sure))
    ids = [letter for letter, _ in dropped]
    if not sure and ids:
        raise ConfigError(
            f"{len(ids)} dead letters would be dropped for good", hint="add --yes, or name them"
        )
    if options.json:
        sys.stdout.write(json.dumps({"dropped": ids}) + "\n")
    else:
        lines = [f"dropped {harmless(name)}" for name in ids]
        sys.stdout.write("\n".join([*lines, f"{len(ids)} dropped"]) + "\n")
    check_found(choice, [names for _, names in dropped])
    return ExitCode.DONE


async def _drop(broker: Broker, choice: Choice, *, sure: bool) -> list[tuple[str, frozenset[str]]]:
    ids: list[tuple[str, frozenset[str]]] = []
    async for letter, delivery in browse(broker, choice):
        ids.append((letter.id, letter.names))
        if sure:
            broker.ack(delivery)
    return ids
