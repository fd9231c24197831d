#!/usr/bin/env python3
"""Warren's front door: `run.py up RECIPE` starts everything, `run.py --help` lists the rest."""

import atexit
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from infra.roles.command.cli import main

ROLES = {
    "producer": "producers.prompts",
    "rollout": "consumers.rollout.worker",
    "reward": "consumers.reward.worker",
    "trainer": "consumers.trainer.worker",
}
"""Role -> the module that offers `run(config)` and `check(config)`; imported when it is started."""

TOOLS = {
    "ledger": "consumers.trainer.telling.command",
    "monitor": "infra.observe.monitor.command",
    "queues export": "infra.roles.command.queues",
    "replay queue": "producers.replay.command",
    "replay step": "consumers.trainer.replay.command",
    "control": "infra.roles.command.control",
    "dead list": "infra.roles.command.dead.list",
    "dead show": "infra.roles.command.dead.show",
    "dead requeue": "infra.roles.command.dead.requeue",
    "dead drop": "infra.roles.command.dead.drop",
    "view": "infra.observe.page.command",
    "replay rollout": "consumers.rollout.replay.command",
    "replay rollout --fresh": "consumers.rollout.replay.fresh_command",
    "replay rollout --rescore": "consumers.reward.rescore.command",
}
"""Command that looks at a run -> the module that offers `add_arguments(parser)`, `run(options)`.
One that ends in an option takes over where that option is given: rooms do not import each other."""


def cli() -> int:
    """Run the command line; the exit code."""
    return main(sys.argv[1:], roles=ROLES, tools=TOOLS, entry=Path(__file__).resolve())


def leave(code: int) -> None:
    """End this process. Taking the interpreter apart costs seconds once torch is loaded."""
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(cli())
