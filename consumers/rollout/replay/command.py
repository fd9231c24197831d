"""`run.py replay rollout ID`: recorded rollouts once more, from what was recorded."""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import asdict
from typing import Any

from consumers.rollout.replay import text
from consumers.rollout.replay.exact import Replayed, Stage
from consumers.rollout.replay.model import with_model
from consumers.rollout.replay.parts import RecordedEngine, RecordedTools
from consumers.rollout.replay.steps import Difference
from consumers.rollout.replay.task import task_of
from infra.amqp.errors import BadMessage
from infra.observe.harmless import harmless
from infra.observe.progress import Progress
from infra.roles.command.rollouts import ALL, add_rollouts, chosen
from infra.roles.command.target import Target, target
from infra.roles.errors import ExitCode
from infra.runs.recorded import trajectory_of
from schemas.config import RunConfig
from schemas.work import Trajectory


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_rollouts(parser)
    parser.add_argument("--quiet", action="store_true", help="only whether it is equal")
    parser.add_argument("--json", action="store_true", help="for machines: one object per line")
    other = parser.add_argument_group("instead of exactly, with options of their own (--help)")
    other.add_argument("--fresh", action="store_true", help="generated anew, beside the record")
    other.add_argument("--rescore", action="store_true", help="scored anew, beside the record")


def run(options: Namespace) -> int:
    """Replay; 1 where something is not equal.

    Raises:
        ConfigError: There is no such run or rollout, or its model, tools or agent are not here.
        JournalCorrupt: The journal is damaged.
    """
    return asyncio.run(_run(options, target(options)))


async def _run(options: Namespace, found: Target) -> int:
    totals: Counter[str] = Counter()
    began = time.monotonic()
    config = with_model(found)
    stage = _stage(config)
    progress = Progress("rollouts replayed")
    for record, entry in chosen(options, found.folder):
        try:
            trajectory = trajectory_of(record, entry.body)
        except BadMessage as error:
            difference = Difference(where="the journal", recorded="damaged", replayed=error.reason)
            _tell_damaged(record.rollout_id, difference, options)
            totals["rollouts"] += 1
            totals["not equal"] += 1
            continue
        replayed = await stage.replay(trajectory.rollout, task_of(trajectory.rollout, config))
        _count(totals, trajectory, replayed)
        progress.show(totals["rollouts"])
        if replayed.difference is not None:
            progress.clear()
        _tell(trajectory, replayed, options)
    progress.clear()
    if options.rollout == ALL:
        _tell_totals(totals, time.monotonic() - began, options)
    return ExitCode.FAILED if totals["not equal"] else ExitCode.DONE


def _stage(config: RunConfig) -> Stage:
    from consumers.rollout.agents.loop import AgentLoop
    from consumers.rollout.worker import loop_parts

    renderer, parser, _ = loop_parts(config)
    tools = RecordedTools.load(config.rollout.tools, timeout_s=config.rollout.tool_timeout)

    def make_loop(engine: RecordedEngine, worker: str) -> AgentLoop:
        return AgentLoop(
            engine=engine,
            renderer=renderer,
            parser=parser,
            tools=tools,
            worker=worker,
            admit=_at_once,
        )

    return Stage(renderer=renderer, tools=tools, make_loop=make_loop)


async def _at_once() -> None:
    """No weights are swapped: every request is admitted."""


def _count(totals: "Counter[str]", trajectory: Trajectory, replayed: Replayed) -> None:
    progress = trajectory.rollout.progress
    totals["rollouts"] += 1
    totals["equal" if replayed.difference is None else "not equal"] += 1
    totals["tokens"] += len(progress.tokens)
    totals["cut"] += bool(progress.interruptions)
    totals["cuts"] += len(progress.interruptions)
    totals["resumed elsewhere"] += bool(progress.num_resumed_elsewhere)
    totals["tool calls"] += len(progress.tool_results)
    totals[trajectory.rollout.status.value] += 1


def _tell(trajectory: Trajectory, replayed: Replayed, options: Namespace) -> None:
    whole = options.rollout != ALL
    if options.json:
        _write_json(_as_json(replayed, with_steps=whole and not options.quiet))
    elif whole and options.quiet:
        sys.stdout.write(text.verdict(trajectory.rollout, replayed.difference))
    elif whole or (replayed.difference is not None and not options.quiet):
        sys.stdout.write(
            f"{text.headline(trajectory)}\n{text.walk(replayed.steps)}\n"
            f"{text.verdict(trajectory.rollout, replayed.difference)}"
        )
    elif replayed.difference is not None:
        where = harmless(replayed.difference.where)
        sys.stdout.write(f"NOT EQUAL {harmless(replayed.rollout_id)}: {where}\n")


def _tell_damaged(rollout_id: str, difference: Difference, options: Namespace) -> None:
    if options.json:
        _write_json({"rollout_id": rollout_id, "equal": False, "difference": asdict(difference)})
    else:
        sys.stdout.write(
            f"NOT EQUAL {harmless(rollout_id)}: it is damaged in the journal: "
            f"{harmless(difference.replayed)}\n"
        )


def _tell_totals(totals: "Counter[str]", seconds: float, options: Namespace) -> None:
    if options.json:
        _write_json({**totals, "seconds": round(seconds, 3)})
        return
    sys.stdout.write(
        f"{text.counted(totals['rollouts'], 'rollout')} replayed in {seconds:.1f} s: "
        f"{totals['equal']:,} equal, {totals['not equal']:,} not\n"
        f"  {totals['tokens']:,} tokens, {text.counted(totals['tool calls'], 'tool call')}\n"
        f"  {totals['cut']:,} were cut ({totals['cuts']:,} cuts), "
        f"{totals['resumed elsewhere']:,} resumed by another worker\n"
        f"  {totals['completed']:,} completed, {totals['truncated']:,} truncated\n"
    )


def _as_json(replayed: Replayed, *, with_steps: bool) -> dict[str, Any]:
    difference = None if replayed.difference is None else asdict(replayed.difference)
    whole: dict[str, Any] = {
        "rollout_id": replayed.rollout_id,
        "equal": difference is None,
        "difference": difference,
    }
    if with_steps:
        whole["steps"] = [asdict(step) for step in replayed.steps]
    return whole


def _write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
