#!/usr/bin/env python3
"""Warren's front door: `run.py up RECIPE` starts everything, `run.py --help` lists the rest."""

import sys
from pathlib import Path

from infra.roles.cli import main

ROLES = {
    "producer": "producers.prompts",
    "rollout": "consumers.rollout.worker",
    "reward": "consumers.reward.worker",
    "trainer": "consumers.trainer.worker",
}
"""Role -> the module that offers `run(config)` and `check(config)`; imported when it is started."""


def cli() -> int:
    """Run the command line; the exit code."""
    return main(sys.argv[1:], roles=ROLES, entry=Path(__file__).resolve())


if __name__ == "__main__":
    sys.exit(cli())
