"""The broker of a run: the configured one, or a private node for as long as it is needed."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from infra.observe.logs import set_up_logging
from infra.roles.broker_url import BROKER_VARIABLE, configured_url
from infra.roles.errors import BrokerUnreachable, ConfigError, ExitCode
from infra.roles.fleet.restarts import Restarts
from infra.roles.fleet.run_folder import write_atomically
from infra.runs.folder import RunFolder
from schemas.config import RunConfig, SuperviseSection

if TYPE_CHECKING:
    from infra.amqp.local_broker import LocalBroker

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 90.0
_WATCH_S = 0.5


class RunBroker:
    """Where a run's broker is.

    Args:
        url: AMQP URL.
        node: The node, if it is ours.
        supervise: How often it may end. It is started again at once: everybody waits for it.
    """

    def __init__(
        self,
        url: str,
        node: LocalBroker | None = None,
        supervise: SuperviseSection | None = None,
    ) -> None:
        self.url = url
        self._node = node
        self._restarts = Restarts(supervise or SuperviseSection())

    @property
    def private(self) -> bool:
        """Whether the node is ours."""
        return self._node is not None

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of our node."""
        return () if self._node is None else self._node.pids

    def look_after(self) -> None:
        """Start our node again, on its data and ports, if it has ended. Blocks while it starts.

        Raises:
            BrokerUnreachable: It ends again and again, or lost its ports to somebody else.
        """
        node = self._node
        if node is None or node.running:
            return
        if self._restarts.after_death("broker", time.monotonic()) is None:
            raise BrokerUnreachable(
                "the private broker ends too often",
                hint=f"its logs are in {node.folder / 'log'}; is there enough memory and disk?",
            )
        logger.warning("the private broker has ended; starting it again on its data")
        if node.start(_START_TIMEOUT_S) != self.url:
            raise BrokerUnreachable(
                "the private broker cannot come back: another process took its port",
                hint="go on with --resume",
            )
        logger.info("the private broker serves again")


@contextmanager
def broker_for(config: RunConfig, folder: RunFolder) -> Iterator[RunBroker]:
    """The configured broker; else a private node, stopped cleanly at the end.

    Raises:
        BrokerUnreachable: The private node cannot be had or does not start.
    """
    url = configured_url(config)
    if url:
        yield RunBroker(url)
        return
    from infra.amqp.local_broker import LocalBroker

    node = LocalBroker(folder.broker)
    logger.info("starting a private broker")
    url = node.start(_START_TIMEOUT_S)
    try:
        write_atomically(folder.broker_url, url + "\n", mode=0o600)
        _administer(url, config.run.name, folder)
        yield RunBroker(url, node, config.supervise)
    finally:
        folder.broker_url.unlink(missing_ok=True)
        logger.info("stopping the private broker")
        node.stop()


def _administer(url: str, run: str, folder: RunFolder) -> None:
    """Policies, and a user who looks. A run does without either."""
    from infra.amqp.admin import Management
    from infra.amqp.definitions.export import administration
    from infra.amqp.definitions.users import MonitoringUser
    from infra.amqp.errors import ManagementUnreachable
    from infra.amqp.url import management_url, without_user

    former = ""
    with suppress(OSError, ValueError, LookupError):
        former = str(json.loads(folder.monitoring.read_text(encoding="utf-8"))["password"])
    user, pages = MonitoringUser.of(run, former), management_url(url)
    login = {"url": without_user(pages), "user": user.name, "password": user.password}
    write_atomically(folder.monitoring, json.dumps(login, indent=2) + "\n", mode=0o600)
    try:
        Management(pages).import_definitions(administration(run, vhost="/", monitoring=user))
    except ManagementUnreachable as error:
        logger.warning("no policies, and no user %s: %s", user.name, error)


def await_configured(config: RunConfig, *, patience_s: float = 10.0) -> None:
    """Before anything begins: the configured broker, if there is one, answers and takes us.

    Raises:
        ConfigError: Its URL is malformed.
        BrokerUnreachable: It does not answer in time, or refuses us.
    """
    url = configured_url(config)
    if not url:
        return
    from infra.amqp.probe import probe

    deadline = time.monotonic() + patience_s
    said = False
    while True:
        try:
            probe(url)
        except BrokerUnreachable as error:
            if time.monotonic() >= deadline:
                raise
            if not said:
                logger.info("%s; trying again for %.0f s", error.args[0], patience_s)
            said = True
            time.sleep(1.0)
        else:
            return


def run_broker(config: RunConfig) -> int:
    """The `broker` command: a private node until SIGTERM or SIGINT.

    Raises:
        WarrenError: It does not start, or does not stay.
    """
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
    with broker_for(config, folder) as broker:
        from infra.amqp.url import management_url, mask_url, without_user

        logger.info("serving %s for %s", mask_url(broker.url), folder.root)
        logger.info("its url with the password is in %s", folder.broker_url)
        pages = without_user(management_url(broker.url))
        logger.info("management %s (to look, user and password: %s)", pages, folder.monitoring)
        while not told.wait(_WATCH_S):
            broker.look_after()
        logger.info("stopping")
    return ExitCode.DONE
