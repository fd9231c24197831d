"""`run.py ledger RECIPE`: the books of a run, live or stopped. Needs neither broker nor lock."""

import json
import sys
import time
from argparse import Namespace

from consumers.trainer.telling.books_text import to_json, to_text
from consumers.trainer.telling.history import read_history
from infra.roles.errors import ExitCode
from schemas.config import RunConfig


def run(config: RunConfig, options: Namespace) -> int:
    """Print the books; 6 when they do not balance.

    Raises:
        ConfigError: There is no run.
        JournalCorrupt: Its journal is damaged.
    """
    books = to_json(read_history(config), now=time.time())
    text = json.dumps(books) + "\n" if options.json else to_text(books, name=config.run.name)
    sys.stdout.write(text)
    return ExitCode.DONE if books["balanced"] else ExitCode.UNBALANCED
