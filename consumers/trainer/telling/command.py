"""`run.py ledger RUN`: the books of a run, live or stopped. Needs neither broker nor lock."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace

from consumers.trainer.telling.books_text import to_json, to_text
from consumers.trainer.telling.history import read_history
from infra.observe.harmless import harmless
from infra.roles.command.target import add_run, target
from infra.roles.errors import ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object")


def run(options: Namespace) -> int:
    """Print the books; 6 when they do not balance.

    Raises:
        ConfigError: There is no run.
        JournalCorrupt: Its journal is damaged.
    """
    found = target(options)
    books = to_json(read_history(found.config, found.folder), now=time.time())
    if options.json:
        sys.stdout.write(json.dumps(books) + "\n")
    else:
        sys.stdout.write(harmless(to_text(books, name=found.config.run.name), lines=True))
    return ExitCode.DONE if books["balanced"] else ExitCode.UNBALANCED
