"""What holds work back: the gate before each engine request, and the reasons to pull nothing."""

import asyncio


class Gate:
    """Awaited before every engine request; closed while weights are swapped."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """Whether requests pass."""
        return self._opened.is_set()

    def close(self) -> None:
        """Hold back whoever comes from now on."""
        self._opened.clear()

    def open(self) -> None:
        """Let everybody pass."""
        self._opened.set()

    async def admit(self) -> None:
        """Return when the gate is open."""
        while not self._opened.is_set():
            await self._opened.wait()


class Holds:
    """Reasons why this worker takes no new work, by who gave them; and the intake's doorbell."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._bell = asyncio.Event()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, name: object) -> bool:
        return name in self._reasons

    def __str__(self) -> str:
        return "; ".join(self._reasons.values())

    def put(self, name: str, reason: str) -> None:
        """Take nothing, for this reason; an empty one lifts it."""
        if reason:
            self._reasons[name] = reason
        elif self._reasons.pop(name, None) is not None:
            self.ring()

    def ring(self) -> None:
        """There may be work."""
        self._bell.set()
        self._changed.set()

    def freed(self) -> None:
        """A slot may be free."""
        self._changed.set()

    async def rung(self, timeout_s: float) -> None:
        """Wait for the bell, or until the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._bell.wait()
        except TimeoutError:
            return
        self._bell.clear()

    async def changed(self) -> None:
        """Wait until a reason is lifted or a slot is free."""
        await self._changed.wait()
        self._changed.clear()
