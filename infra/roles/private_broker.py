"""The broker of a run: the configured one, or a private node for as long as it is needed."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infra.observe.logs import set_up_logging
from infra.roles.broker_url import BROKER_VARIABLE, configured_url
from infra.roles.errors import ConfigError, ExitCode
from infra.roles.lifecycle import report
from infra.roles.run_folder import write_atomically
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBroker:
    """Where it is, and the processes that are ours."""

    url: str
    private: bool
    pids: tuple[int, ...] = ()


@contextmanager
def broker_for(config: RunConfig, folder: RunFolder) -> Iterator[RunBroker]:
    """The configured broker; else a private node, stopped cleanly at the end.

    Raises:
        BrokerUnreachable: The private node cannot be had or does not start.
    """
    url = configured_url(config)
    if url:
        yield RunBroker(url=url, private=False)
        return
    from infra.amqp.local_broker import LocalBroker

    node = LocalBroker(folder.broker)
    logger.info("starting a private broker")
    url = node.start(_START_TIMEOUT_S)
    try:
        write_atomically(folder.broker_url, url + "\n", mode=0o600)
        yield RunBroker(url=url, private=True, pids=node.pids)
    finally:
        folder.broker_url.unlink(missing_ok=True)
        logger.info("stopping the private broker")
        node.stop()


def run_broker(config: RunConfig) -> int:
    """The `broker` command: a private node until SIGTERM or SIGINT."""
    set_up_logging("broker")
    if configured_url(config):
        raise ConfigError(
            f"a broker is configured already ({BROKER_VARIABLE} or [broker] url)",
            hint="the roles will use it; there is nothing to start",
        )
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    folder = RunFolder.of(config)
    try:
        with broker_for(config, folder) as broker:
            from infra.amqp.url import management_url, mask_url

            logger.info("serving %s for %s", mask_url(broker.url), folder.root)
            logger.info("management %s", mask_url(management_url(broker.url)))
            told.wait()
            logger.info("stopping")
    except Exception as error:
        return report(error)
    return ExitCode.DONE
