"""`run.py view RUN`: serve the page until it is interrupted."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from infra.observe.page.runs import Runs, is_run
from infra.observe.page.server import PageServer
from infra.roles.command.target import LATEST
from infra.roles.errors import ConfigError, ExitCode
from infra.roles.settings import load_config
from infra.runs.folder import RunFolder

DEFAULT_PORT = 8484


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=LATEST,
        help=f"a run folder or a copy, a folder of runs, or a recipe (default {LATEST})",
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"default {DEFAULT_PORT}; 0: any free one"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: this machine only)"
    )


def run(options: Namespace) -> int:
    """Serve until interrupted.

    Raises:
        ConfigError: There is no run, or the address cannot be had.
    """
    folder = find_runs(options.run)
    with PageServer(Runs(folder), host=options.host, port=options.port) as server:
        sys.stdout.write(f"{folder}: {server.url}  (Ctrl-C ends it)\n")
        if not server.is_local:
            sys.stdout.write("whoever reaches this address can read every rollout\n")
        sys.stdout.flush()
        server.serve_forever()
    return ExitCode.DONE


def find_runs(name: str) -> Path:
    """The folder that the command line means: of one run, or of several.

    Raises:
        ConfigError: There is none.
    """
    path = Path(name)
    if path.is_dir():
        path = path.resolve()
        if is_run(path) or any(is_run(child) for child in path.iterdir() if child.is_dir()):
            return path
        raise ConfigError(
            f"{path} is no run folder, and holds none",
            hint="a run folder has config.json, metrics.jsonl and journal/",
        )
    root = RunFolder.of(load_config(name)).root
    if not is_run(root):
        raise ConfigError(
            f"{root}: this recipe has not been run yet",
            hint="start it with 'run.py up', or name a run folder",
        )
    return root
