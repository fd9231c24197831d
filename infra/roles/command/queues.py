"""`run.py queues export`: what an administrator loads into a broker for a run."""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from urllib.parse import unquote

from infra.roles.broker_url import configured_url
from infra.roles.command.target import add_run_option, target
from infra.roles.errors import ConfigError, ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_run_option(parser)
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="JSON, made anew (default: printed)"
    )
    parser.add_argument(
        "--vhost", metavar="V", help="virtual host (default: that of the configured broker, or /)"
    )


def run(options: Namespace) -> int:
    """Write exchanges, queues, bindings, policies and the monitoring user. Asks no broker.

    Raises:
        ConfigError: There is no such run, or the file cannot be made.
    """
    from infra.amqp.definitions.export import definitions
    from infra.amqp.definitions.users import PASSWORD_VARIABLE, MonitoringUser

    config = target(options).config
    given = os.environ.get(PASSWORD_VARIABLE, "")
    user = MonitoringUser.of(config.run.name, given)
    vhost = options.vhost or _vhost(configured_url(config))
    text = json.dumps(definitions(config.run.name, vhost=vhost, monitoring=user), indent=2) + "\n"
    if options.file is None:
        sys.stdout.write(text)
    else:
        _write(options.file, text)
    whose = f"that of {PASSWORD_VARIABLE}" if given else f"{user.password}   (said only here)"
    sys.stderr.write(
        f"user       {user.name}, who sees everything and changes nothing\n"
        f"password   {whose}\n"
        f"load it    rabbitmqctl import_definitions {options.file or 'FILE'}, or 'Import "
        f"definitions' of the management page\n"
    )
    return ExitCode.DONE


def _vhost(url: str) -> str:
    from infra.amqp.url import parse_url

    return unquote(parse_url(url).path.removeprefix("/")) or "/" if url else "/"


def _write(path: Path, text: str) -> None:
    """It holds a hash of a password: for its owner alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be made: {error.strerror}", hint="name a file that does not exist yet"
        ) from error
