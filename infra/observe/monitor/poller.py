"""The management API, asked in a thread: it may be slow, or not be there."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from infra.amqp.admin import Management, QueueRow
from infra.amqp.url import management_url, parse_url
from infra.roles.errors import WarrenError

_PERIOD_S = 5.0
"""RabbitMQ counts anew so often: who asks more often makes it work for the same answer."""
_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What it said last."""

    rows: tuple[QueueRow, ...] = ()
    alarms: tuple[str, ...] = ()
    error: str = "not asked yet"
    """Why it cannot be asked; empty when it can."""


class Poller:
    """Asks until stopped.

    Args:
        find_url: Of the broker; asked again each time.
        run: Name of the run.
    """

    def __init__(self, find_url: Callable[[], str], *, run: str) -> None:
        self._find_url = find_url
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="poller", daemon=True)
        self.told = Told()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _live(self) -> None:
        while not self._stop.is_set():
            try:
                self.told = self._ask()
            except WarrenError as error:
                self.told = Told(error=str(error).partition("\n")[0])
            self._stop.wait(_PERIOD_S)

    def _ask(self) -> Told:
        url = self._find_url()
        vhost = unquote(parse_url(url).path[1:]) or "/"
        management = Management(management_url(url), vhost=vhost, timeout_s=_TIMEOUT_S)
        return Told(
            rows=tuple(management.queues(self._run)), alarms=tuple(management.alarms()), error=""
        )
