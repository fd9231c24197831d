"""What was heard, kept until it is old: messages in, a `Scene` out. No I/O; time is passed in."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from infra.amqp.admin import QueueRow
from infra.amqp.codec import decode
from infra.amqp.errors import BadMessage
from infra.amqp.listener import Hearing
from infra.amqp.message import Delivery
from infra.amqp.topology import QUEUE_NAMES, RECORDING
from infra.observe.monitor.clean import clean, human_bytes
from infra.observe.monitor.poller import Told
from infra.observe.monitor.scene import (
    SILENT_S,
    BrokerSeen,
    Expected,
    QueueSeen,
    RunSeen,
    Scene,
    WorkerSeen,
)
from infra.roles.heartbeats import LEFT
from schemas.config import RunConfig
from schemas.control import Heartbeat, RunState, WeightsPublished

_MAX_WORKERS = 2048
_RATE_S = 10.0
"""Rates are over the newest so many seconds."""
_LEFT_S = 6.0
_REMEMBERED_S = {"failed": 60.0, "leaving": _LEFT_S}
_FORGOTTEN_S = 120.0
_MAX_COUNTERS = 100
_LARGEST = 2.0**63
"""Of a counter: sums of all workers' stay finite, and can be written as integers."""


@dataclass(slots=True)
class _Worker:
    beat: Heartbeat
    at: float
    past: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    def hear(self, beat: Heartbeat, now: float) -> None:
        if beat.pid != self.beat.pid:
            self.past.clear()
        self.beat, self.at = beat, now
        self.past.append((now, _counters(beat)))
        while self.past and now - self.past[0][0] > _RATE_S:
            self.past.popleft()

    @property
    def counters(self) -> dict[str, float]:
        """The newest."""
        return self.past[-1][1]

    def rates(self) -> dict[str, float]:
        if len(self.past) < 2:
            return {}
        (then, before), (now, after) = self.past[0], self.past[-1]
        if now - then < 1.0:
            return {}
        return {
            name: (value - before[name]) / (now - then)
            for name, value in after.items()
            if name in before
        }


class World:
    """One run.

    Args:
        config: Its recipe.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._workers: dict[str, _Worker] = {}
        self._state: RunState | None = None
        self._state_at = 0.0
        self._version = -1
        self._evaluating_at: float | None = None

    def hear(self, delivery: Delivery, now: float) -> None:
        """Take a message; what cannot be read is nobody's word."""
        kinds = {kind.__name__: kind for kind in (Heartbeat, RunState, WeightsPublished)}
        kind = kinds.get(delivery.envelope.type)
        if kind is None:
            return
        try:
            message = decode(delivery, delivery.body, kind)
        except BadMessage:
            return
        if isinstance(message, Heartbeat):
            self._hear_beat(message, now)
        elif isinstance(message, RunState):
            self._hear_state(message, now)
        elif isinstance(message, WeightsPublished) and self._ours(message.run_id):
            self._version = max(self._version, message.version)

    @property
    def roles(self) -> set[str]:
        """Of which somebody was heard."""
        return {worker.beat.role for worker in self._workers.values()}

    def scene(
        self,
        now: float,
        *,
        hearing: Hearing,
        told: Told,
        depths: dict[str, tuple[int, int]],
    ) -> Scene:
        """What there is to see now."""
        self._forget(now)
        state = self._state
        since_s = max(0.0, now - hearing.since)
        workers = [_seen(worker, now) for worker in self._workers.values()]
        trainer = next((one for one in workers if one.role == "trainer" and one.alive), None)
        counted = trainer.counters if trainer is not None else {}
        step = max(state.step if state else 0, int(counted.get("step", 0)))
        return Scene(
            run=RunSeen(
                name=clean(self._config.run.name),
                run_id=clean(state.run_id) if state else "",
                wanted=state.wanted.value if state else "",
                step=step,
                num_steps=state.num_steps if state else self._config.run.steps,
                version=max(self._version, state.version if state else -1),
                heard_s=now - self._state_at if state else None,
                evaluated_s=self._evaluated_s(now),
            ),
            listened_s=since_s if hearing.connected else 0.0,
            expected=expected_of(self._config),
            broker=BrokerSeen(
                address=clean(hearing.address),
                connected=hearing.connected,
                error=clean(hearing.error),
                missing=hearing.missing,
                since_s=since_s,
                management=clean(told.error),
                alarms=tuple(map(clean, told.alarms)),
            ),
            queues=_queues(told.rows, depths, self._config),
            workers=tuple(sorted(workers, key=lambda one: (_ORDER.get(one.role, 9), one.name))),
        )

    def _hear_beat(self, beat: Heartbeat, now: float) -> None:
        if not self._ours(beat.run_id):
            return
        key = f"{beat.role}/{beat.worker}"
        worker = self._workers.get(key)
        if worker is None:
            if len(self._workers) >= _MAX_WORKERS:
                return
            worker = self._workers[key] = _Worker(beat, now)
        worker.hear(beat, now)

    def _hear_state(self, state: RunState, now: float) -> None:
        """Of two runs of one name the one that speaks is looked at."""
        known = self._state
        if known is not None and known.run_id != state.run_id:
            self._workers = {
                key: worker
                for key, worker in self._workers.items()
                if worker.beat.run_id in ("", state.run_id)
            }
            self._version = -1
        elif known is not None and (state.incarnation, state.number) < (
            known.incarnation,
            known.number,
        ):
            return
        if state.evaluating >= 0 or (known is not None and known.evaluating >= 0):
            self._evaluating_at = now
        self._state, self._state_at = state, now

    def _evaluated_s(self, now: float) -> float | None:
        if self._state is not None and self._state.evaluating >= 0:
            return 0.0
        return None if self._evaluating_at is None else now - self._evaluating_at

    def _ours(self, run_id: str) -> bool:
        return not run_id or self._state is None or run_id == self._state.run_id

    def _forget(self, now: float) -> None:
        over = self._state is not None and self._state.wanted.value == "stopped"
        for key, worker in list(self._workers.items()):
            state = _state(worker.beat, 0.0)
            kept_s = _LEFT_S if over else _REMEMBERED_S.get(state, _FORGOTTEN_S)
            if now - worker.at >= kept_s:
                del self._workers[key]


_ORDER = {"trainer": 0, "producer": 1, "rollout": 2, "reward": 3, "evaluator": 4}


def expected_of(config: RunConfig) -> Expected:
    """Sizes in a recipe."""
    return Expected(
        rollout_workers=config.rollout.workers,
        reward_workers=config.reward.workers,
        group_size=config.algorithm.group_size,
        groups_per_step=config.algorithm.groups_per_step,
        max_staleness=config.algorithm.max_staleness,
        max_version_lag=config.algorithm.max_version_lag,
    )


def _seen(worker: _Worker, now: float) -> WorkerSeen:
    beat = worker.beat
    silent_s = max(0.0, now - worker.at)
    return WorkerSeen(
        role=clean(beat.role, 20),
        name=clean(beat.worker, 80),
        host=clean(beat.host, 80),
        pid=beat.pid,
        state=_state(beat, silent_s),
        heard_s=silent_s,
        waiting_for=clean(beat.waiting_for),
        waiting_s=max(0.0, beat.waiting_s),
        version=beat.version,
        slots=beat.slots,
        slots_used=len(beat.rollout_ids),
        refuses=beat.refuses,
        error=clean(beat.error),
        before=clean(beat.before),
        counters=worker.counters,
        rates=worker.rates(),
        rollout=beat.rollout,
        reward=beat.reward,
        trainer=beat.trainer,
    )


def _counters(beat: Heartbeat) -> dict[str, float]:
    return {
        clean(name, 40): max(-_LARGEST, min(value, _LARGEST))
        for name, value in islice(beat.counters.items(), _MAX_COUNTERS)
    }


def _state(beat: Heartbeat, silent_s: float) -> str:
    """A last word with a reason is a failure; who left without one is only gone."""
    if beat.state == LEFT:
        return "failed" if beat.error else "leaving"
    return clean(beat.state, 20) if silent_s < SILENT_S else "silent"


def _queues(
    rows: Iterable[QueueRow], depths: dict[str, tuple[int, int]], config: RunConfig
) -> tuple[QueueSeen, ...]:
    """In the order in which work passes; the exact counts of the broker itself win."""
    known = {row.name: row for row in rows}
    seen = []
    for name in QUEUE_NAMES:
        row, depth = known.get(name), depths.get(name)
        if row is None and depth is None:
            continue
        stream = name == RECORDING.name
        seen.append(
            QueueSeen(
                name=name,
                ready=depth[0] if depth else row.num_ready if row else None,
                unacknowledged=row.num_unacked if row else None,
                consumers=row.num_consumers if row else depth[1] if depth else None,
                in_per_s=row.publish_rate if row else None,
                out_per_s=row.deliver_rate if row else None,
                bytes=(row.total_bytes if stream else row.ready_bytes) if row else None,
                limit=_limit(name, row, config),
            )
        )
    return tuple(seen)


def _limit(name: str, row: QueueRow | None, config: RunConfig) -> str:
    """An argument or policy if there is one; else what the credits can have out at a time."""
    if row is not None and row.max_messages is not None:
        return str(row.max_messages)
    if row is not None and row.max_bytes is not None:
        return human_bytes(row.max_bytes)
    groups = math.ceil((1 + config.algorithm.max_staleness) * config.algorithm.groups_per_step)
    if name == "credits":
        return str(groups)
    if name in ("prompts", "cancel_queue", "rollouts", "trajectories"):
        return str(groups * config.algorithm.group_size)
    return ""
