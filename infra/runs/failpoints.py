"""Fail points: places at which a test lets the trainer die, to prove that it resumes the same.

    WARREN_FAILPOINT="step.done:3"   the process kills itself (SIGKILL) the third time it gets there

A testing hook: without the variable, reaching one costs a comparison.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from enum import StrEnum

from infra.roles.errors import ConfigError

VARIABLE = "WARREN_FAILPOINT"


class FailPoint(StrEnum):
    """Every place, in the order in which a run first gets there."""

    INCARNATION_CLAIMED = "incarnation.claimed"
    """The number is taken, nothing is written under it."""
    JOURNAL_SEGMENT = "journal.segment"
    """A segment exists and is empty."""
    JOURNAL_TORN = "journal.torn"
    """Half of a record is in the file."""
    JOURNAL_WRITTEN = "journal.written"
    """A record is in the file, not yet forced to disk."""
    JOURNAL_SYNC = "journal.sync"
    """Before an fsync."""
    JOURNAL_SYNCED = "journal.synced"
    """After it; nobody knows yet."""
    WEIGHTS_WRITE = "weights.write"
    """Before the first byte of a version."""
    WEIGHTS_WRITTEN = "weights.written"
    """Its files are complete, in a folder without its final name."""
    WEIGHTS_NAMED = "weights.named"
    """The folder has its name, no manifest names it."""
    MANIFEST_TORN = "manifest.torn"
    """Half of a manifest is in a file without its final name."""
    MANIFEST_WRITTEN = "manifest.written"
    """The manifest is complete, without its final name."""
    MANIFEST_LINKED = "manifest.linked"
    """The version exists; the journal does not know."""
    PUBLISHED_JOURNALED = "published.journaled"
    """The journal knows of the version; nobody was told."""
    BROADCAST_CONFIRMED = "broadcast.confirmed"
    """The broker took the broadcast."""
    STORE_PRUNED = "store.pruned"
    """Old versions are gone."""
    CREDITS_JOURNALED = "credits.journaled"
    """Credits are issued, none is published."""
    CREDITS_SENT = "credits.sent"
    """The broker took one credit, perhaps not its siblings."""
    CREDITS_CONFIRMED = "credits.confirmed"
    """The broker took all of them; the journal does not know."""
    ARRIVALS_TAKEN = "arrivals.taken"
    """Deliveries are in the journal, not yet forced to disk."""
    ACK = "ack"
    """Before a delivery is acknowledged; it is durable."""
    ACKED = "acked"
    """The acknowledgement is on its way."""
    EVALUATION_WRITTEN = "evaluation.written"
    """An evaluation's line is in the metrics, its end not in the journal."""
    BATCH_DECIDED = "batch.decided"
    """The batch is journaled; its step is not taken."""
    STEP_TAKEN = "step.taken"
    """The weights in memory are new; the journal does not know."""
    STEP_JOURNALED = "step.journaled"
    """The step is known to be done; its weights are nowhere."""
    METRICS_TORN = "metrics.torn"
    """Half of a line is in the metrics."""
    CHECKPOINT_BEGUN = "checkpoint.begun"
    """Before the first byte."""
    CHECKPOINT_TORN = "checkpoint.torn"
    """Half of the state is in a folder without its final name."""
    CHECKPOINT_WRITTEN = "checkpoint.written"
    """Complete, without its final name."""
    CHECKPOINT_NAMED = "checkpoint.named"
    """It exists; older ones are not pruned."""
    CHECKPOINT_PRUNED = "checkpoint.pruned"
    """Older ones are gone; the journal goes on in the same segment."""
    JOURNAL_ROTATED = "journal.rotated"
    """A new segment was begun; old ones are not removed."""
    JOURNAL_TRIMMED = "journal.trimmed"
    """One old segment is removed, perhaps not all that can be."""
    ENDED = "ended"
    """Everything is saved; nobody was told that the run is over."""
    STEP_REPEATED = "step.repeated"
    """While resuming: a journaled step was taken again."""
    RECOVERED = "recovered"
    """While resuming: everything is read, nothing is written."""


RESUMING = frozenset({FailPoint.STEP_REPEATED, FailPoint.RECOVERED})
"""Reached only by a trainer that resumes."""

Listener = Callable[[FailPoint], None]


class Killer:
    """A listener that kills this process when a point is reached for the `count`-th time."""

    def __init__(self, point: FailPoint, count: int = 1) -> None:
        self._point = point
        self._left = count
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> "Killer":
        """From `name:count`, or a name alone.

        Raises:
            ConfigError: There is no such point, or the count is no positive number.
        """
        name, _, count = text.partition(":")
        if name not in set(FailPoint) or not (count or "1").isdigit() or int(count or "1") < 1:
            raise ConfigError(
                f"{VARIABLE}={text!r} names no fail point",
                hint="a testing hook, as in step.taken:2; unset it for a real run",
            )
        return cls(FailPoint(name), int(count or "1"))

    def __call__(self, point: FailPoint) -> None:
        """Count, and die."""
        if point is not self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.die()

    def die(self) -> None:
        """SIGKILL: no handler, no flush, no farewell."""
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal may take a moment; nothing more may happen here


_listener: Listener | None = (
    Killer.parse(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
)


def reach(point: FailPoint) -> None:
    """This thread is at a fail point."""
    if _listener is not None:
        _listener(point)


def halves(point: FailPoint, data: bytes) -> Iterable[bytes]:
    """What to write one after the other: all at once, or in two parts with a fail point between."""
    return (data,) if _listener is None else _two_parts(point, data)


def listen(listener: Listener | None) -> None:
    """Tests: call this at every point from now on, instead of what the variable says."""
    global _listener
    _listener = listener


def _two_parts(point: FailPoint, data: bytes) -> Iterable[bytes]:
    middle = len(data) // 2
    yield data[:middle]
    reach(point)
    yield data[middle:]
