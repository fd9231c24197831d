"""Which of a run's recorded rollouts a tool looks at: one, or all that fit."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import chain, islice

from infra.roles.command.target import add_run_option
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import Entry, JournalReader
from infra.runs.recorded import arrived_trajectories
from schemas.headers import Purpose
from schemas.journal import Arrived, Batch

ALL = "all"


def add_rollouts(parser: ArgumentParser) -> None:
    """Add `ID | all [--step N] [--purpose P] [--limit N] [--run RUN]`."""
    parser.add_argument(
        "rollout", metavar="ID", help="GROUP.INDEX as in 17.3, or eval20.5, or 'all'"
    )
    parser.add_argument("--step", type=int, metavar="N", help="of all: what step N trained on")
    parser.add_argument(
        "--purpose", choices=[purpose.value for purpose in Purpose], help="of all: only these"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="of all: the first N")
    add_run_option(parser)


def chosen(options: Namespace, folder: RunFolder) -> Iterator[tuple[Arrived, Entry]]:
    """The rollouts that the command line names, in the order in which they arrived.

    Raises:
        ConfigError: There is none.
        JournalCorrupt: A record is damaged.
    """
    if not folder.journal.is_dir():
        raise ConfigError(
            f"{folder.root} has no journal",
            hint="--run names a run folder; a recipe that has not run yet has nothing to replay",
        )
    reader = JournalReader(folder.journal)
    members = None if options.step is None else _members(reader, options.step)
    arrived = arrived_trajectories(reader)
    found = (one for one in arrived if _fits(one[0], options, members))
    limit = options.limit if options.rollout == ALL else 1
    first = next(found, None)
    if first is None:
        raise ConfigError(
            f"no such trajectory in the journal of {folder.root}: {_words(options)}",
            hint="ids are GROUP.INDEX as in 17.3, eval20.5, or 'all'; the journal is kept since "
            "the oldest checkpoint, and longer by checkpoint.journal_bytes",
        )
    yield from islice(chain((first,), found), limit)


def _fits(record: Arrived, options: Namespace, members: set[str] | None) -> bool:
    return (
        options.rollout in (ALL, record.rollout_id)
        and options.purpose in (None, record.purpose.value)
        and (members is None or record.rollout_id in members)
    )


def _members(reader: JournalReader, step: int) -> set[str]:
    """Rollouts that a step was trained on; of a step that was decided twice, the last time."""
    batches = [entry.record for entry in reader.records() if isinstance(entry.record, Batch)]
    members = [set(batch.members) for batch in batches if batch.step == step]
    if not members:
        steps = [batch.step for batch in batches]
        kept = f"{min(steps)} to {max(steps)}" if steps else "none"
        raise ConfigError(f"no step {step} in the journal", hint=f"steps that are kept: {kept}")
    return members[-1]


def _words(options: Namespace) -> str:
    words = [repr(options.rollout)]
    words += [] if options.step is None else [f"of step {options.step}"]
    words += [] if options.purpose is None else [f"for {options.purpose}"]
    return " ".join(words)
