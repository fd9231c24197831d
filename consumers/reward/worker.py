"""The reward role.

rollouts --> decode --> score in the pool --+--> trajectory | evaluation --> confirmed --> ack
               |                            +--> no score --> rollouts --> confirmed --> ack
               |                            |    the last time  --> dead --> confirmed --> ack
               +--> not ours, unreadable ---+

SIGTERM: take nothing more, finish what is being scored, leave
"""

import asyncio
import logging
from dataclasses import asdict, dataclass

from consumers.reward.pool import Scored, ScoringFailed, ScoringPool
from consumers.reward.reading import check_said
from infra.amqp.codec import decode, encode, read_headers
from infra.amqp.dead import give_up
from infra.amqp.errors import BadMessage, MessageTooLarge
from infra.amqp.message import Delivery, Outgoing
from infra.amqp.returned import returned
from infra.roles.context import RoleContext
from infra.roles.handling import handle_each
from infra.roles.lifecycle import run_role, serve
from schemas.config import RunConfig
from schemas.headers import Headers, Purpose
from schemas.reports import MAX_ROWS, RewardReport, short
from schemas.work import Failure, FailureKind, Rollout, Trajectory

logger = logging.getLogger(__name__)

ROLE = "reward"
QUEUES = {Purpose.TRAIN: "trajectories", Purpose.EVAL: "evaluations"}
PREFETCH_PER_PROCESS = 16
"""Enough for a process to find the next rollouts waiting."""
_FAILURE_FIELDS = {"rollout_id", "group", "index", "purpose", "attempt"}


def run(config: RunConfig, *, worker: str | None = None) -> int:
    """Score rollouts until told to stop; returns the exit code."""
    return run_role(serve(ROLE, config, score_rollouts, worker=worker))


def check(config: RunConfig) -> list[str]:
    """Load the reward functions in a process of their own.

    Raises:
        ConfigError: One is unknown, cannot be imported, or has another signature.
    """
    asyncio.run(_load(config))
    names = ", ".join(function.use for function in config.reward.functions)
    return [f"reward functions load: {names}"]


def try_out(config: RunConfig, rollout: Rollout) -> Scored:
    """Score one rollout as the role would.

    Raises:
        ConfigError: A function cannot be loaded.
        ScoringFailed: It gives no score.
    """
    return asyncio.run(_score_one(config, rollout))


async def score_rollouts(context: RoleContext) -> None:
    """The role's body: subscribe, score, publish, acknowledge."""
    pool = ScoringPool(context.config.reward)
    try:
        async with context.waits("the reward functions to load"):
            if not await context.unless_stopped(pool.start()):
                return
        if not await context.unless_stopped(context.run_id()):
            return
        desk = _Desk(context, pool)
        context.heartbeat(desk.describe)
        prefetch = PREFETCH_PER_PROCESS * pool.size
        await handle_each(context, "rollouts", desk.handle, prefetch=prefetch)
    finally:
        await pool.close()


@dataclass(slots=True, kw_only=True)
class RewardCounters:
    """Since the worker started."""

    scored: int = 0
    """Rollouts whose score the broker confirmed."""
    failed: int = 0
    """Rollouts that were given up: no score, or no message of ours."""
    retried: int = 0
    """Rollouts without a score that were given back to be tried again."""

    def as_floats(self) -> dict[str, float]:
        """By name."""
        return {name: float(count) for name, count in asdict(self).items()}


class _Desk:
    def __init__(self, context: RoleContext, pool: ScoringPool) -> None:
        self._context, self._broker, self._pool = context, context.broker, pool
        self._held: set[str] = set()
        self._attempts = context.config.rollout.data_attempts
        self._counters = RewardCounters()

    def describe(self) -> dict[str, object]:
        """For the heartbeat."""
        return {
            "rollout_ids": tuple(sorted(self._held)),
            "counters": self._counters.as_floats(),
            "reward": RewardReport(
                processes=self._pool.size,
                queued=max(0, len(self._held) - self._pool.num_scoring),
                scoring=self._pool.num_scoring,
                longest_s=round(self._pool.longest_s, 1),
                usual_s=round(self._pool.usual_s, 4),
                timeout_s=self._context.config.reward.timeout,
                functions=tuple(map(short, self._pool.names[:MAX_ROWS])),
            ),
        }

    async def handle(self, delivery: Delivery) -> None:
        """One rollout, from delivery to acknowledgement."""
        headers = None
        try:
            headers = read_headers(delivery)
            reason = self._context.foreign(headers)
            if reason is not None:
                raise BadMessage(reason)
            rollout = decode(delivery, delivery.body, Rollout)
            check_said(headers, rollout)
        except BadMessage as error:
            await self._give_up(delivery, headers, ScoringFailed(error.reason))
            return
        self._held.add(headers.name)
        try:
            await self._score(delivery, headers, rollout)
        finally:
            self._held.discard(headers.name)

    async def _score(self, delivery: Delivery, headers: Headers, rollout: Rollout) -> None:
        plain = not delivery.envelope.content_encoding
        body = delivery.body if plain else rollout.model_dump_json().encode()
        try:
            scored = await self._pool.score(body)
            message = _trajectory_message(rollout, body, scored, headers, self._context.app_id)
            await self._broker.publish(message)
        except ScoringFailed as error:
            await self._try_again(delivery, headers, error)
            return
        except MessageTooLarge as error:
            await self._give_up(delivery, _failed_once_more(headers), ScoringFailed(str(error)))
            return
        self._broker.ack(delivery)
        self._counters.scored += 1

    async def _try_again(self, delivery: Delivery, headers: Headers, error: ScoringFailed) -> None:
        """To the end of the queue, so that others come first; the last time, to `dead`."""
        headers = _failed_once_more(headers)
        if headers.data_attempts >= self._attempts:
            await self._give_up(delivery, headers, error)
            return
        logger.warning(
            "no score for %s, attempt %d of %d: %s",
            headers.rollout_id,
            headers.data_attempts,
            self._attempts,
            error,
        )
        await self._broker.publish(returned(delivery, headers, app_id=self._context.app_id))
        self._broker.ack(delivery)
        self._counters.retried += 1

    async def _give_up(
        self, delivery: Delivery, headers: Headers | None, error: ScoringFailed
    ) -> None:
        name = headers.rollout_id if headers else delivery.envelope.message_id
        logger.warning("no score for %s: %s", name, error)
        ids = headers.model_dump(include=_FAILURE_FIELDS) if headers else {}
        data_attempts = headers.data_attempts if headers else 0
        failure = Failure(
            stage=ROLE,
            kind=FailureKind.DATA,
            error=str(error),
            traceback=error.trace,
            attempts=max(1, data_attempts) + delivery.delivery_count,
            returns=delivery.delivery_count,
            data_attempts=data_attempts,
            worker=self._context.worker,
            **ids,
        )
        await give_up(self._broker, delivery, failure)
        self._counters.failed += 1


def _failed_once_more(headers: Headers) -> Headers:
    return headers.model_copy(update={"data_attempts": headers.data_attempts + 1})


def _trajectory_message(
    rollout: Rollout, body: bytes, scored: Scored, headers: Headers, app_id: str
) -> Outgoing:
    trajectory = Trajectory(
        reward=scored.reward,
        rewards=dict(scored.rewards),
        reward_s=scored.seconds,
        rollout=rollout,
    )
    envelope, body = encode(
        trajectory,
        known={"rollout": body},
        app_id=app_id,
        correlation_id=rollout.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"Trajectory:{headers.name}:{headers.attempt}:{headers.returns_total}",
    )
    return Outgoing.to_queue(QUEUES[headers.purpose], envelope, body)


async def _load(config: RunConfig) -> None:
    pool = ScoringPool(config.reward, size=1)
    try:
        await pool.start()
    finally:
        await pool.close()


async def _score_one(config: RunConfig, rollout: Rollout) -> Scored:
    pool = ScoringPool(config.reward, size=1)
    try:
        await pool.start()
        return await pool.score(rollout.model_dump_json().encode())
    finally:
        await pool.close()
