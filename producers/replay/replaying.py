"""One replay under way: what was looked at, what was sent, and how to say so."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from infra.observe.harmless import harmless
from producers.replay.pace import Pace
from producers.replay.recorded import Recorded
from producers.replay.selection import Selection
from producers.replay.targets import Target

BATCH = 256
BATCH_BYTES = 8 * 1024**2
_PROGRESS_S = 5.0
_TYPE_CHARS = 80
_NEVER_S = 0.001
"""Not worth a wait."""


class Replaying:
    """Sends what is chosen.

    Args:
        replay: Its name.
        chosen: What is meant.
        target: Where to; None only counts.
        pace: When.
    """

    def __init__(self, replay: str, chosen: Selection, target: Target | None, pace: Pace) -> None:
        self._replay = replay
        self._chosen = chosen
        self._target = target
        self._pace = pace
        self._batch: list[Recorded] = []
        self._num_bytes = 0
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._read = 0
        self._sent = 0
        self._offsets: tuple[int, int] | None = None
        self._due_at = 0.0
        self._began = time.monotonic()
        self.last = -1
        """Offset up to which the recording is read; -1 when nobody knows."""

    async def run(self, messages: AsyncGenerator[Recorded]) -> None:
        """Read to the end, and send.

        Raises:
            WarrenError: Of the source or the target.
        """
        telling = asyncio.create_task(self._tell())
        try:
            async with aclosing(messages):
                async for message in messages:
                    self._read += 1
                    if self._chosen.takes(message):
                        await self._take(message)
                    if self._num_chosen == self._chosen.count:
                        break
            await self._flush()
        finally:
            telling.cancel()
        if self._target is not None:
            self._target.finish()

    def summary(self) -> str:
        """Lines for people."""
        verb = "would be replayed" if self._target is None else f"sent to {self._target.name}"
        lines = [f"replay {self._replay}: {self._num_chosen} of {self._read} messages {verb}"]
        if self._offsets is not None:
            first, last = self._offsets
            lines.append(f"  offsets {first} to {last}")
        for kind, count in sorted(self._counts.items()):
            lines.append(f"  {count:>7} {harmless(kind, limit=_TYPE_CHARS)}")
        lines += [f"  {count:>7} left out: {why}" for why, count in sorted(self._skipped.items())]
        return "\n".join(lines) + "\n"

    @property
    def _num_chosen(self) -> int:
        return self._counts.total()

    async def _take(self, message: Recorded) -> None:
        reason = None if self._target is None else self._target.refuses(message)
        if reason is not None:
            self._skipped[reason] += 1
            return
        wait_s = 0.0 if self._target is None else self._pace.wait_s(message.envelope.timestamp)
        if wait_s > _NEVER_S:
            await self._flush()
            self._due_at = time.monotonic() + wait_s
            await asyncio.sleep(wait_s)
        self._counts[message.envelope.type or "no type"] += 1
        first = message.offset if self._offsets is None else self._offsets[0]
        self._offsets = (first, message.offset)
        if self._target is not None:
            self._batch.append(message)
            self._num_bytes += len(message.body)
            if len(self._batch) >= BATCH or self._num_bytes >= BATCH_BYTES:
                await self._flush()

    async def _flush(self) -> None:
        if self._batch and self._target is not None:
            await self._target.send(self._batch)
        self._sent += len(self._batch)
        self._batch, self._num_bytes = [], 0

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            of = f" of {self.last + 1}" if self.last >= 0 else ""
            due_s = self._due_at - time.monotonic()
            waits = f" · the next in {due_s:.0f} s" if due_s > 0 else ""
            sys.stderr.write(
                f"replay {self._replay}: {self._read}{of} messages read, {self._sent} sent · "
                f"{time.monotonic() - self._began:.0f} s{waits}\n"
            )
