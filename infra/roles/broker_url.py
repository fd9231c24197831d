"""Which broker a role talks to."""

import os

from infra.roles.errors import BrokerUnreachable
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

BROKER_VARIABLE = "WARREN_BROKER_URL"


def configured_url(config: RunConfig) -> str:
    """The existing broker that the user named: the environment wins; empty when none is."""
    return os.environ.get(BROKER_VARIABLE, "") or config.broker.url


def find_url(config: RunConfig, folder: RunFolder) -> str:
    """The configured broker, else the private node that runs for this run folder.

    Raises:
        BrokerUnreachable: Neither is there, or the file that tells of the private one cannot be
            read.
    """
    url = configured_url(config)
    if url:
        return url
    try:
        return folder.broker_url.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        if folder.summary.exists():
            raise BrokerUnreachable(
                f"the run in {folder.root} is over, and its private broker with it",
                hint="'run.py ledger', 'view' and 'replay' read its folder; 'run.py broker RUN' "
                "brings the broker back, 'run.py up RECIPE --resume' the run",
            ) from None
        raise BrokerUnreachable(
            f"no broker: {BROKER_VARIABLE} and [broker] url are empty, and no private node runs "
            f"for {folder.root}",
            hint=f"start one with 'run.py broker RECIPE', everything with 'run.py up RECIPE', or "
            f"set {BROKER_VARIABLE}=amqp://user:password@host:5672/vhost",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerUnreachable(
            f"{folder.broker_url}, which tells where the private broker is, cannot be read: "
            f"{error}",
            hint="only the user who runs the broker may read it: be that user, or set "
            f"{BROKER_VARIABLE}; 'run.py broker RUN' writes it anew",
        ) from None
