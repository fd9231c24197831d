"""`run.py dead show`: everything about dead letters."""

import json
import sys
from argparse import ArgumentParser, Namespace

from infra.amqp.connection import Broker
from infra.roles.command.dead.desk import (
    Choice,
    add_choice,
    at_desk,
    browse,
    check_found,
    choice_of,
)
from infra.roles.command.dead.text import page, to_json
from infra.roles.errors import ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_choice(parser, everything=False)


def run(options: Namespace) -> int:
    """Print them, with `--json` as one object a line.

    Raises:
        BrokerUnreachable: No broker answers.
        ConfigError: There is none such.
    """
    choice = choice_of(options)
    check_found(choice, at_desk(options, lambda broker: _show(broker, choice, options.json)))
    return ExitCode.DONE


async def _show(broker: Broker, choice: Choice, as_json: bool) -> list[frozenset[str]]:
    names = []
    async for letter, _ in browse(broker, choice):
        text = json.dumps(to_json(letter, whole=True)) + "\n" if as_json else page(letter)
        sys.stdout.write(text)
        names.append(letter.names)
    return names
