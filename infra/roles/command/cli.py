"""The command line: which command, which recipe, which overrides. Imports nothing heavy."""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra.roles.errors import ConfigError, ExitCode, WarrenError

if TYPE_CHECKING:
    from schemas.config import RunConfig

ABOUT = "Fully-asynchronous RL post-training on RabbitMQ."
COMMANDS = {
    "up": "start the broker and every role, and watch over them",
    "check": "try everything a run needs, one line each; --dry-run: only the recipe",
    "broker": "start the private broker alone (when no URL is configured)",
    "producer": "start one prompt producer",
    "rollout": "start one rollout worker",
    "reward": "start one reward worker",
    "trainer": "start the trainer",
    "monitor": "watch a run: queues, workers, what is wrong and what to do; changes nothing",
    "ledger": "print what became of every group, of a live or a stopped run",
    "replay": "what a run has recorded: send it again, or run it again and compare",
    "control": "pause, resume, drain or stop a run, and say who has not answered",
    "dead": "list, show, requeue or drop what was given up",
    "view": "serve a page of a run's charts, steps, groups and rollouts, live or afterwards",
    "queues": "write down what a run has at its broker, for who administers it",
    "storm": "do to a run what production does, and check that it stood",
    "config": "list every section and key that a recipe may have, with default and meaning",
}
OURS = ("schemas", "infra", "producers", "consumers")
USAGE = "run.py COMMAND RECIPE [section.key=value ...] [options]"
EPILOG = """exit codes: 0 done, 1 failed, 2 usage or configuration, 3 broker unreachable,
4 a role died, 5 a deadline passed, 6 the books do not balance, 7 left without handing over,
8 the same step failed twice, 130 interrupted"""


def main(
    argv: Sequence[str],
    *,
    roles: Mapping[str, str],
    tools: Mapping[str, str] | None = None,
    entry: Path,
) -> int:
    """Do what the command line says.

    Args:
        argv: Without the program's name.
        roles: Role -> module offering `run` and `check`.
        tools: Command (`ledger`, `replay step`, `replay rollout --rescore`) -> module offering
            `add_arguments(parser)` and `run(options)`.
        entry: The front door's file, with which `up` starts the roles.

    Returns:
        The process's exit code.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return ExitCode.DONE
    try:
        return _dispatch(argv[0], argv[1:], roles, tools or {}, entry)
    except WarrenError as error:
        from infra.observe.harmless import harmless

        sys.stderr.write(f"{harmless(str(error), lines=True)}\n")
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        sys.stderr.write(
            f"this Python ({sys.executable}) has no package {error.name!r}\n"
            "  -> . .venv/bin/activate (make demo makes it), or install Warren: pip install -e .\n"
        )
        return ExitCode.USAGE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.DONE


def _dispatch(
    command: str,
    rest: Sequence[str],
    roles: Mapping[str, str],
    tools: Mapping[str, str],
    entry: Path,
) -> int:
    if command == "config":
        return _list_keys(rest)
    if command not in COMMANDS:
        raise _unknown_command(command)
    if command in _first_words(tools):
        return _run_tool(command, rest, tools)
    options = _parser(command).parse_intermixed_args(rest)

    from infra.roles.settings import load_config

    config = load_config(options.recipe, options.overrides)
    if options.dry_run:
        from infra.roles.command.toml_text import to_toml

        sys.stdout.write(to_toml(config))
        return ExitCode.DONE
    os.environ.setdefault("TQDM_DISABLE", "1")  # before anybody imports it: logs, not bars
    if command == "check":
        from infra.roles.command.check import check

        return check(config, roles)
    if command == "up":
        from infra.roles.fleet.launch import up

        return up(
            config,
            roles=roles,
            entry=entry,
            resume=options.resume,
            purge=options.purge,
            skip_step=options.skip_step,
        )
    if command == "storm":
        from infra.storm.command import run as storm

        return storm(
            config,
            minutes=options.minutes,
            seed=options.seed,
            kinds=options.kinds,
            kills=options.kills,
            purge=options.purge,
            entry=entry,
            again=shlex.join(["run.py", command, *rest]),
        )
    if command == "broker":
        from infra.roles.fleet.private_broker import run_broker

        return run_broker(config)
    return _run_role(roles[command], command, config, options)


def _first_words(tools: Mapping[str, str]) -> set[str]:
    return {name.split()[0] for name in tools}


def _run_tool(command: str, rest: Sequence[str], tools: Mapping[str, str]) -> int:
    """A tool has arguments of its own, and finds its run by `infra.roles.command.target`."""
    words = rest
    if command not in tools:
        kinds = list(dict.fromkeys(w[1] for w in map(str.split, tools) if w[0] == command))
        if not rest or rest[0] not in kinds:
            asked = bool(rest) and rest[0] in ("-h", "--help")
            usage = f"usage: run.py {command} {{{','.join(kinds)}}} ... (each has --help)\n"
            (sys.stdout if asked else sys.stderr).write(usage)
            return ExitCode.DONE if asked else ExitCode.USAGE
        command, words = f"{command} {rest[0]}", rest[1:]
    for flag in words:
        if f"{command} {flag}" in tools:
            command, words = f"{command} {flag}", [word for word in words if word != flag]
            break
    module = importlib.import_module(tools[command])
    parser = argparse.ArgumentParser(
        prog=f"run.py {command}",
        description=COMMANDS[command.split()[0]],
        epilog=EPILOG,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(words)))


def _list_keys(rest: Sequence[str]) -> int:
    from infra.roles.command.describe import describe_config

    if rest and rest[0] not in ("-h", "--help"):
        raise ConfigError(
            f"'run.py config' takes no recipe and no keys, not {rest[0]!r}",
            hint="a recipe with all its values: run.py check RECIPE [a.b=c ...] --dry-run",
        )
    sys.stdout.write(describe_config() + "\n")
    return ExitCode.DONE


def _run_role(module: str, command: str, config: "RunConfig", options: argparse.Namespace) -> int:
    names = ("resume", "purge", "skip_step") if command == "trainer" else ()
    extra = {name: getattr(options, name) for name in names}
    return int(importlib.import_module(module).run(config, worker=options.name, **extra))


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    return (
        f"usage: {USAGE}\n\n{ABOUT}\n\ncommands:\n{lines}\n\n"
        "'run.py COMMAND --help' shows a command's options.\n"
        "A first look:  run.py up demo --dry-run\n\n"
        f"{EPILOG}\n"
    )


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"run.py {command}", description=COMMANDS[command], epilog=EPILOG, allow_abbrev=False
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a .toml file, or the name of a built-in")
    parser.add_argument(
        "overrides", metavar="a.b=c", nargs="*", help="override one key; see 'run.py config'"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved recipe and start nothing"
    )
    if command in ("up", "trainer"):
        fresh = parser.add_mutually_exclusive_group()
        fresh.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
        fresh.add_argument(
            "--purge",
            action="store_true",
            help="start afresh: drop what an earlier run of this name left",
        )
        parser.add_argument(
            "--skip-step",
            type=int,
            metavar="N",
            help="with --resume: give up step N, which failed twice; its groups end as dead",
        )
    if command == "storm":
        _add_storm_options(parser)
    if command not in ("up", "check", "broker", "storm"):
        parser.add_argument("--name", metavar="N", help="worker name, unique in the run")
    return parser


def _add_storm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes", type=float, default=5.0, metavar="N", help="of faults (default 5)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="which fault when (default 0)"
    )
    parser.add_argument("--kinds", default="", metavar="A,B", help="of faults (default all)")
    parser.add_argument(
        "--kills", type=int, metavar="N", help="SIGKILLs among them (default 11 a minute)"
    )
    parser.add_argument(
        "--purge", action="store_true", help="remove what an earlier storm of this name left"
    )


def _unknown_command(command: str) -> ConfigError:
    import difflib

    close = difflib.get_close_matches(command, COMMANDS, n=1)
    return ConfigError(
        f"unknown command {command!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
        hint=f"commands: {', '.join(COMMANDS)}",
    )
