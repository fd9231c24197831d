"""`run.py replay rollout ID --fresh`: generated anew, beside the record."""

import asyncio
import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from pathlib import Path

from consumers.rollout.replay import text
from consumers.rollout.replay.fresh import generate
from consumers.rollout.replay.model import with_model
from consumers.rollout.replay.side_by_side import first_differing, side_by_side
from consumers.rollout.replay.task import task_of
from consumers.rollout.replay.versions import KeptVersions, ranges
from infra.roles.command.rollouts import ALL
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import ConfigError, ExitCode
from infra.runs.journal_reader import JournalReader
from infra.runs.recorded import find_trajectory
from schemas.config import RunConfig
from schemas.work import Rollout, RolloutTask, Trajectory


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument(
        "rollout", metavar="ID", type=_one, help="GROUP.INDEX as in 17.3, or eval20.5"
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="V",
        help="policy version (default: the newest in the record, or the newest that is kept)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of sampling (default: the record's)")
    parser.add_argument("--json", action="store_true", help="for machines: one object")
    add_run_option(parser)


def run(options: Namespace) -> int:
    """Generate; the tools of the recipe are really run.

    Raises:
        ConfigError: There is no such run, rollout or version.
        WarrenError: The engine or the rollout failed.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    found = target(options)
    config = with_model(found)
    if not found.folder.journal.is_dir():
        raise ConfigError(f"{found.folder.root} has no journal", hint="--run names a run folder")
    _, trajectory = find_trajectory(JournalReader(found.folder.journal), options.rollout)
    recorded = trajectory.rollout
    kept = KeptVersions(config, found.folder, starting=Path(found.config.model.path))
    version = _version(options.version, recorded, kept)
    task = _seeded(task_of(recorded, config), options.seed)
    with kept.prepared(version) as weights:
        fresh = asyncio.run(generate(config, weights, task, recorded=recorded))
    if options.json:
        sys.stdout.write(json.dumps(_as_json(trajectory, fresh, task, version)) + "\n")
    else:
        sys.stdout.write(_as_text(trajectory, fresh, task, version, config))
        if options.version is None and version != recorded.progress.tokens.newest_version:
            sys.stdout.write(
                f"version {recorded.progress.tokens.newest_version} of the record is not kept; "
                f"versions that are: {ranges(kept.numbers)}\n"
            )
    return ExitCode.DONE


def _one(rollout: str) -> str:
    if rollout == ALL:
        raise ArgumentTypeError(
            "--fresh generates one rollout at a time: name it (17.3, eval20.5); 'replay rollout "
            "all' without --fresh compares all with the record, with --rescore it scores them anew"
        )
    return rollout


def _version(asked: int | None, recorded: Rollout, kept: KeptVersions) -> int:
    if asked is not None:
        kept.check(asked)
        return asked
    newest = recorded.progress.tokens.newest_version
    if newest is not None and newest in kept.numbers:
        return newest
    if not kept.numbers:
        raise ConfigError("no version's weights are kept", hint="in the store, or in a checkpoint")
    return kept.numbers[-1]


def _seeded(task: RolloutTask, seed: int | None) -> RolloutTask:
    if seed is None:
        return task
    return task.model_copy(update={"sampling": task.sampling.model_copy(update={"seed": seed})})


def _as_text(
    trajectory: Trajectory, fresh: Rollout, task: RolloutTask, version: int, config: RunConfig
) -> str:
    from infra.text.renderer import Renderer

    recorded = trajectory.rollout
    renderer = Renderer.load(Path(config.model.path))
    decode = partial(renderer.decode, skip_special=False)
    tokens = fresh.progress.tokens
    return (
        f"{text.headline(trajectory)}"
        f"fresh: version {version}, seed {task.sampling.seed}, engine {config.rollout.engine} · "
        f"{len(tokens)} tokens, {tokens.num_sampled} sampled · {fresh.status}: "
        f"{fresh.finish_reason} (record: {recorded.status}: {recorded.finish_reason})\n\n"
        f"{side_by_side(recorded, fresh, decode)}"
    )


def _as_json(
    trajectory: Trajectory, fresh: Rollout, task: RolloutTask, version: int
) -> dict[str, object]:
    return {
        "rollout_id": fresh.rollout_id,
        "version": version,
        "seed": task.sampling.seed,
        "first_differing_token": first_differing(trajectory.rollout, fresh),
        "recorded": trajectory.model_dump(mode="json"),
        "fresh": fresh.model_dump(mode="json"),
    }
