"""`run.py replay rollout ID --rescore`: recorded rollouts, scored anew.

journal -> rollouts -> pool of processes that can be killed -> old and new, side by side
"""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from consumers.reward.pool import ScoringFailed, ScoringPool
from consumers.reward.rescore.rescored import Rescored, Totals
from consumers.reward.rescore.text import one_text, totals_text
from infra.amqp.errors import BadMessage
from infra.observe.progress import Progress
from infra.roles.command.rollouts import ALL, add_rollouts, chosen
from infra.roles.command.target import Target, target
from infra.roles.errors import ConfigError, ExitCode
from infra.runs.journal_reader import Entry
from infra.runs.recorded import trajectory_of
from schemas.config import RewardFunction, RewardSection
from schemas.journal import Arrived

_AT_ONCE = 128
"""Rollouts in memory: enough to keep every process busy."""


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_rollouts(parser)
    parser.add_argument(
        "--function",
        metavar="USE=WEIGHT",
        action="append",
        default=[],
        help="a registered name or import path, instead of the recipe's functions; may be repeated",
    )
    parser.add_argument("--quiet", action="store_true", help="of all: only the totals")
    parser.add_argument("--json", action="store_true", help="for machines: one object per line")


def run(options: Namespace) -> int:
    """Score anew; 1 where a rollout gets no score.

    Raises:
        ConfigError: There is no such run, rollout or function.
        JournalCorrupt: The journal is damaged.
    """
    found = target(options)
    section = reward_section(found.config.reward, options.function)
    return asyncio.run(_run(options, found, section))


def reward_section(recipe: RewardSection, functions: list[str]) -> RewardSection:
    """The recipe's, with other functions if any are named (`use=weight`, weight 1 if left out).

    Raises:
        ConfigError: A weight is no number.
    """
    if not functions:
        return recipe
    return recipe.model_copy(update={"functions": tuple(map(_function, functions))})


def _function(text: str) -> RewardFunction:
    use, separator, weight = text.rpartition("=")
    try:
        if not separator:
            return RewardFunction(use=text)
        return RewardFunction(use=use, weight=float(weight))
    except ValueError as error:
        raise ConfigError(
            f"--function {text!r}: {weight!r} is no weight",
            hint="write use=weight, as in exact_match=0.5",
        ) from error


async def _run(options: Namespace, found: Target, section: RewardSection) -> int:
    totals, whole = Totals(), options.rollout != ALL
    began, progress = time.monotonic(), Progress("rollouts scored")
    pool = ScoringPool(section)
    try:
        await pool.start()
        async for rescored in _rescored(pool, chosen(options, found.folder)):
            totals.add(rescored)
            progress.show(totals.num)
            if options.json:
                sys.stdout.write(json.dumps(rescored.as_json()) + "\n")
            elif whole:
                sys.stdout.write(one_text(rescored, section))
    finally:
        progress.clear()
        await pool.close()
    if not whole and options.json:
        sys.stdout.write(json.dumps(totals.as_json()) + "\n")
    elif not whole:
        seconds = time.monotonic() - began
        sys.stdout.write(totals_text(totals, section, seconds=seconds, brief=options.quiet))
    return ExitCode.FAILED if totals.num_failed else ExitCode.DONE


async def _rescored(
    pool: ScoringPool, records: Iterator[tuple[Arrived, Entry]]
) -> AsyncIterator[Rescored]:
    """In the order of the journal, many at a time."""
    while some := list(islice(records, _AT_ONCE)):
        for rescored in await asyncio.gather(*(_one(pool, *pair) for pair in some)):
            yield rescored


async def _one(pool: ScoringPool, record: Arrived, entry: Entry) -> Rescored:
    try:
        trajectory = trajectory_of(record, entry.body)
    except BadMessage as error:
        return Rescored.of(record, error=f"damaged in the journal: {error.reason}")
    try:
        scored = await pool.score(trajectory.rollout.model_dump_json().encode())
    except ScoringFailed as error:
        return Rescored.of(record, trajectory, error=str(error))
    return Rescored.of(record, trajectory, scored=scored)
