"""`run.py replay step N`: recorded steps again, from a run folder alone. Changes nothing in it.

Needs neither broker nor lock: a copy will do, and a living trainer does not notice.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from consumers.trainer.replay.damage import explained
from consumers.trainer.replay.wanted import Wanted
from consumers.trainer.replay.what_if import Changes
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import ConfigError, WarrenError
from infra.runs.journal_reader import RecordCorrupt, SegmentTrimmed

_SETTABLE = frozenset({"model.path", "run.dir", "run.name"})


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument("steps", metavar="N", help="a step, a range N-M, or `all`")
    add_run_option(parser)
    parser.add_argument(
        "--with",
        dest="changes",
        metavar="a.b=c",
        nargs="+",
        action="extend",
        default=[],
        help="what if: from step N on, its recorded batch under another recipe",
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object")


def run(options: Namespace) -> int:
    """Replay and compare: 0 only when every step is equal, or with `--with`; else 1.

    Raises:
        ConfigError: There is no such run or step, or a change that a batch cannot follow.
        RecordCorrupt: What a step was trained on is damaged.
    """
    wanted, changes = Wanted.parse(options.steps), Changes.parse(options.changes)
    _check_settings(options.overrides)
    found = target(options)
    if changes is not None:
        changes.applied(found.config)
    os.environ.setdefault("TQDM_DISABLE", "1")  # before anybody imports it: lines, not bars
    from consumers.trainer.replay.session import Session

    try:
        return Session(found, changes, as_json=options.json).run(wanted)
    except RecordCorrupt as damage:
        raise explained(found.folder, damage) from None
    except (FileNotFoundError, SegmentTrimmed) as error:
        raise WarrenError(
            f"{error.filename} went away while it was needed: a living trainer removes what no "
            f"checkpoint needs",
            hint="ask for a newer step, or copy the run folder first; checkpoint.keep and "
            "checkpoint.journal_bytes say how much stays",
        ) from error


def _check_settings(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in _SETTABLE:
            raise ConfigError(
                f"--set {override}: a recorded step is replayed under its recorded recipe",
                hint="--with tries another one; --set model.path=... says where the starting "
                "model is now",
            )
