"""Which run a tool looks at: a run folder, or a recipe on a machine that has no such folder."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from infra.roles.errors import ConfigError
from infra.roles.settings import load_config
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

LATEST = "runs/latest"


@dataclass(frozen=True, slots=True)
class Target:
    """A run: its recipe, and where its folder is or would be."""

    config: RunConfig
    folder: RunFolder


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add `[RUN] [a.b=c ...]`, for a command that takes nothing else by position."""
    parser.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help=_HELP)
    parser.add_argument("overrides", metavar="a.b=c", nargs="*", help="override one key")


def add_run_option(parser: argparse.ArgumentParser) -> None:
    """Add `--run RUN [--set a.b=c]`, for a command with words of its own."""
    parser.add_argument("--run", metavar="RUN", default=LATEST, help=_HELP)
    parser.add_argument(
        "--set", metavar="a.b=c", action="append", default=[], dest="overrides",
        help="override one key of its recipe",
    )  # fmt: skip


def target(options: argparse.Namespace) -> Target:
    """The run that the command line names. A folder may be a copy: it is taken where it is.

    Raises:
        ConfigError: There is no such run, or its recipe is wrong.
    """
    words = [options.run, *options.overrides]
    run = LATEST if "=" in words[0] else words.pop(0)
    if run == LATEST and not Path(run).exists():
        raise ConfigError(
            f"no run yet: there is no {LATEST} in {Path.cwd()}",
            hint="'make demo' or 'run.py up RECIPE' begins one; or name a run folder or a recipe",
        )
    config = load_config(run, words)
    path = Path(run)
    folder = RunFolder(path.resolve()) if path.is_dir() else RunFolder.of(config)
    return Target(config, folder)


_HELP = f"a run folder or a recipe (default {LATEST})"
