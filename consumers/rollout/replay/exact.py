"""A recorded rollout, driven through the real agent loop once more.

record -> engine, tools and user that repeat it -> AgentLoop -> cut where it was cut
  -> snapshot, encoded, decoded -> AgentLoop of the next worker -> ... -> rollout == record?
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import RolloutState
from consumers.rollout.replay.compare import first_difference
from consumers.rollout.replay.parts import RecordedEngine, RecordedPartner, RecordedTools
from consumers.rollout.replay.record import Record
from consumers.rollout.replay.steps import Difference, Differs, Step
from consumers.rollout.replay.task import open_as_recorded
from infra.amqp.codec import decode, encode
from infra.roles.errors import WarrenError
from infra.text.renderer import Renderer
from schemas.work import Rollout, RolloutTask, Snapshot

logger = logging.getLogger(__name__)

M = TypeVar("M", Rollout, Snapshot)
MakeLoop = Callable[[RecordedEngine, str], AgentLoop]
"""The agent loop of a worker of this name on this engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay came to."""

    rollout_id: str
    steps: tuple[Step, ...]
    difference: Difference | None
    """None: it is its record."""


class Stage:
    """Where rollouts are replayed, one after the other.

    Args:
        renderer: Of the run's model.
        tools: Of the run's recipe; none is run.
        make_loop: Makes the loop of each worker.
    """

    def __init__(self, *, renderer: Renderer, tools: RecordedTools, make_loop: MakeLoop) -> None:
        self._renderer = renderer
        self._tools = tools
        self._make_loop = make_loop

    async def replay(self, rollout: Rollout, task: RolloutTask) -> Replayed:
        """Play a rollout as it was recorded, and compare."""
        record = Record(rollout, self._renderer)
        self._tools.record = record
        difference: Difference | None
        try:
            played = await self._play(record, task)
            difference = first_difference(rollout, played, record.decode)
        except Differs as error:
            difference = error.difference
        except WarrenError as error:
            difference = _failed(record, str(error))
        except Exception as error:
            # boundary: an agent or a parser of the user's that raises ends this replay alone
            logger.debug("the replay of %s failed", rollout.rollout_id, exc_info=True)
            difference = _failed(record, f"{type(error).__name__}: {error}")
        return Replayed(
            rollout_id=rollout.rollout_id, steps=tuple(record.steps), difference=difference
        )

    async def _play(self, record: Record, task: RolloutTask) -> Rollout:
        work: RolloutTask | Snapshot = task
        engine = RecordedEngine(record)
        for worker in record.workers:
            loop = self._make_loop(engine, worker)
            state = loop.restore(work) if isinstance(work, Snapshot) else loop.begin(work)
            record.taken(loop, state, worker)
            self._set_scene(record, state)
            if isinstance(work, Snapshot) and record.cut_before_running():
                await record.fire()
            outcome = await loop.run(state)
            if isinstance(outcome, Rollout):
                record.check_all_cut()
                record.note("ended", detail=f"{outcome.status}: {outcome.finish_reason}")
                return _travelled(outcome, Rollout)[0]
            if isinstance(outcome, RolloutTask):
                raise Differs(
                    Difference(
                        where=f"cut at token {len(state.token_ids)}",
                        recorded="a snapshot",
                        replayed="the plain task: it is pinned, or has sampled nothing",
                    )
                )
            work, num_bytes = _travelled(outcome, Snapshot)
            reason = work.progress.interruptions[-1].reason
            record.note("cut", detail=f"{reason} · snapshot of {num_bytes} bytes")
        raise AssertionError("cut more often than recorded")

    def _set_scene(self, record: Record, state: RolloutState) -> None:
        if state.agent.interaction:
            state.interaction = RecordedPartner(record)
        open_as_recorded(state, record.rollout)
        record.note("taken")


def _travelled(model: M, kind: type[M]) -> tuple[M, int]:
    """What arrives of a message, and its size in bytes."""
    envelope, body = encode(model, app_id="replay", correlation_id="", headers={})
    return decode(envelope, body, kind), len(body)


def _failed(record: Record, error: str) -> Difference:
    at = record.steps[-1].stop if record.steps else 0
    return Difference(where=f"after token {at}", recorded="it went on", replayed=error)
