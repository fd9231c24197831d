"""What a rollout worker tells about what it holds."""

import asyncio
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from consumers.rollout.counters import Counters
from consumers.rollout.slots import Held
from consumers.rollout.sweep import Sweep
from consumers.rollout.tools.running import RunningCalls
from consumers.rollout.updates.sync import WeightSync
from schemas.reports import AGE_EDGES_S, MAX_ROWS, RolloutReport, Suspect, short
from schemas.work import AgentPhase, Snapshot

SUSPECT_FROM = 2
"""Returns without progress from which a rollout is told of."""
_MAX_SUSPECTS = 4
_LEAVE_S = 0.2
_SPACING_S = 1.0


class Suspects:
    """Tells of what came back again and again before it is run: it may take this process down.

    Args:
        beat: Set to have a heartbeat sent at once.
    """

    def __init__(self, beat: asyncio.Event) -> None:
        self._beat = beat
        self._told_at = -_SPACING_S
        self.arriving: list[Held] = []
        """Taken, and not in its slot yet."""

    async def tell(self, held: Held) -> None:
        """Give the heartbeat that names it time to leave. Of many that come together, the first
        one's."""
        now = time.monotonic()
        if now - self._told_at < _SPACING_S:
            return
        self._told_at = now
        self.arriving.append(held)
        self._beat.set()
        try:
            await asyncio.sleep(_LEAVE_S)
        finally:
            self.arriving.remove(held)


def rollout_report(
    held: Iterable[Held],
    *,
    engine: str,
    stall_timeout_s: float,
    tools: RunningCalls,
    sync: WeightSync,
    sweep: Sweep,
    counters: Counters,
) -> RolloutReport:
    """A report of now.

    Args:
        held: All that is in slots.
        engine: Its name.
        stall_timeout_s: After which an engine that gives no token is given up.
        tools: Calls under way.
        sync: Knows how far behind the newest version we are.
        sweep: Knows when the engine gave a token last.
        counters: Of this worker.
    """
    rows = list(held)
    behind_s = 0.0 if sync.behind_since is None else time.monotonic() - sync.behind_since
    states = [one.moving for one in rows]
    return RolloutReport(
        engine=short(engine),
        versions=_versions(rows),
        ages=_ages(rows),
        generating=sum(state is not None and state.request_id is not None for state in states),
        in_tools=sum(
            state is not None and state.phase is AgentPhase.PROCESSING_TOOLS for state in states
        ),
        token_age_s=round(sweep.token_age_s, 1),
        stall_timeout_s=stall_timeout_s,
        tool=tools.longest(),
        behind_s=round(behind_s, 1),
        usual_update_s=round(sync.updates_s / counters.swaps, 2) if counters.swaps else 0.0,
        refusal=short(sync.refusal) if sync.refuses >= 0 else "",
        suspects=suspects_of(rows),
    )


def suspects_of(held: Iterable[Held]) -> tuple[Suspect, ...]:
    """Those that came back most often."""
    found = [one for one in held if one.returns.since_progress >= SUSPECT_FROM]
    found.sort(key=lambda one: (-one.returns.since_progress, one.rollout_id))
    return tuple(
        Suspect(rollout_id=short(one.rollout_id), returns=one.returns.since_progress)
        for one in found[:_MAX_SUSPECTS]
    )


def _versions(held: Iterable[Held]) -> tuple[tuple[int, int], ...]:
    """The oldest ones, if there are too many."""
    counts = Counter(_oldest_version(one) for one in held)
    return tuple(sorted(counts.items())[:MAX_ROWS])


def _oldest_version(held: Held) -> int:
    if held.state is not None:
        found = held.state.oldest_version
    elif isinstance(held.work, Snapshot):
        found = held.work.progress.tokens.oldest_version
    else:
        found = None
    return -1 if found is None else found


def _ages(held: Iterable[Held]) -> tuple[int, ...]:
    counts = [0] * (len(AGE_EDGES_S) + 1)
    for one in held:
        counts[bisect_right(AGE_EDGES_S, one.age_s)] += 1
    return tuple(counts)
