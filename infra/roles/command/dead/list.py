"""`run.py dead list`: one line for each dead letter."""

import json
import sys
from argparse import ArgumentParser, Namespace

from infra.amqp.connection import Broker
from infra.roles.command.dead.desk import Choice, add_choice, at_desk, browse, choice_of
from infra.roles.command.dead.letter import Letter
from infra.roles.command.dead.text import table, to_json
from infra.roles.errors import ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_choice(parser, everything=True)


def run(options: Namespace) -> int:
    """Print them.

    Raises:
        BrokerUnreachable: No broker answers.
    """
    choice = choice_of(options)
    rows, letters = at_desk(options, lambda broker: _read(broker, choice, as_json=options.json))
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    elif letters:
        letters.sort(key=lambda letter: letter.at)
        sys.stdout.write(table(letters) + f"{len(letters)} dead letters\n")
    else:
        sys.stdout.write("no dead letters\n")
    return ExitCode.DONE


async def _read(
    broker: Broker, choice: Choice, *, as_json: bool
) -> tuple[list[dict[str, object]], list[Letter]]:
    rows: list[dict[str, object]] = []
    letters: list[Letter] = []
    async for letter, delivery in browse(broker, choice):
        if as_json:
            rows.append(to_json(letter, whole=False))
        else:
            letters.append(without_bodies(letter))
        del delivery
    return rows, letters


def without_bodies(letter: Letter) -> Letter:
    """What a line shows of it: thousands of them fit into memory."""
    from dataclasses import replace

    return replace(letter, original=None, traceback="", error=letter.error[:200])
