"""What the role waits for, by name: the broker, its confirms, or rollouts."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import NoReturn

from infra.observe.waits import Waits

_PERIOD_S = 1.0


class Vigil:
    """Looks once a second whether something is missing.

    Args:
        waits: Of the role.
        connected: Whether the broker is there.
        deadline_s: Without anything for this long, it is past its deadline.
    """

    def __init__(self, waits: Waits, *, connected: Callable[[], bool], deadline_s: float) -> None:
        self._waits = waits
        self._connected = connected
        self._deadline_s = deadline_s
        self._unconfirmed: dict[int, float] = {}
        self._next = 0
        self.num_busy = 0
        """Rollouts that are held."""
        self.at_rest = False
        """Nothing is expected: the run is paused or draining."""

    @contextmanager
    def confirm(self) -> Iterator[None]:
        """While the broker is to confirm a message."""
        key, self._next = self._next, self._next + 1
        self._unconfirmed[key] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._unconfirmed[key]

    async def keep(self) -> NoReturn:
        """Name what is missing, until cancelled.

        Raises:
            DeadlinePassed: It was missing for too long, and `on_deadline` is `stop`.
        """
        async with AsyncExitStack() as waiting:
            named = ""
            while True:
                if (missing := self._missing()) != named:
                    await waiting.aclose()
                    if missing:
                        what = self._confirms if missing == "confirms" else missing
                        await waiting.enter_async_context(
                            self._waits(what, deadline_s=self._deadline_s)
                        )
                    named = missing
                await asyncio.sleep(_PERIOD_S)

    def _missing(self) -> str:
        if not self._connected():
            return "the broker to come back"
        now = asyncio.get_running_loop().time()
        oldest = next(iter(self._unconfirmed.values()), now)
        if now - oldest > _PERIOD_S:
            return "confirms"
        return "" if self.num_busy or self.at_rest else "rollouts: the queue is empty"

    def _confirms(self) -> str:
        return f"the broker to confirm {len(self._unconfirmed)} messages"
