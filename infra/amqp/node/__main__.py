"""`python -m infra.amqp.node VERSION [--into DIR]`: fetch a RabbitMQ with its Erlang.

Prints the prefix folder, so that anything that starts a private broker can be run on it:

    WARREN_RABBITMQ_PREFIX=$(python -m infra.amqp.node 4.3) make test
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.amqp.node.install import PREFIX_VARIABLE
from infra.amqp.node.versions import SUITES, fetch_version
from infra.roles.errors import WarrenError


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, print the prefix; an error's exit code otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.amqp.node",
        description="Fetch a RabbitMQ with its Erlang from Debian's mirror that apt is configured "
        "with. Needs no root, installs nothing, keeps what it has. Prints the prefix folder: put "
        f"it into {PREFIX_VARIABLE}.",
    )
    parser.add_argument("version", choices=tuple(SUITES), help="major.minor")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="prefix folder (default: below ~/.cache/warren)"
    )
    chosen = parser.parse_args(argv)
    try:
        install = fetch_version(chosen.version, chosen.into)
    except WarrenError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{install.prefix}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
