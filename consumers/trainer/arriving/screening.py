"""Is a delivery what the journal may take? Pure: a record, a reason to give it up, or nothing."""

import time
from dataclasses import dataclass

from consumers.trainer.batch.groups import why_no_reward, why_unusable
from infra.amqp.codec import decode, read_headers
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery, Envelope
from schemas.headers import Headers, Purpose, rollout_id_of
from schemas.journal import Arrived, Requeued
from schemas.work import Failure, OriginalMessage, Requeue, Trajectory

MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class Screened:
    """A delivery in order: what to journal, and the trajectory that it holds, if any."""

    record: Arrived
    trajectory: Trajectory | None = None


def screen_trajectory(
    delivery: Delivery, *, run_id: str, newest_version: int, vocab_size: int
) -> Screened:
    """Decode and check a trajectory.

    Raises:
        BadMessage: It must be given up, with the reason.
    """
    envelope = delivery.envelope
    headers = read_headers(envelope)
    if headers.run_id != run_id:
        raise BadMessage(f"belongs to run {headers.run_id!r}, this is run {run_id!r}")
    trajectory = decode(envelope, delivery.body, Trajectory)
    rollout = trajectory.rollout
    said = (headers.group, headers.index, headers.rollout_id, headers.purpose)
    if said != (rollout.group, rollout.index, rollout.rollout_id, rollout.purpose):
        raise BadMessage(f"headers name {said[2]!r}, the body is {rollout.rollout_id!r}")
    reason = _unusable(trajectory, newest_version=newest_version, vocab_size=vocab_size)
    if reason is not None:
        raise BadMessage(reason)
    tokens = rollout.progress.tokens
    record = _record(envelope, headers, index=headers.index).model_copy(
        update={
            "reward": trajectory.reward,
            "oldest_version": tokens.oldest_version,
            "newest_version": tokens.newest_version,
            "num_tokens": len(tokens),
        }
    )
    return Screened(record, trajectory)


def screen_failure(delivery: Delivery, *, run_id: str) -> Screened | str:
    """What died, from the headers alone if need be; or why it is none of our business."""
    envelope = delivery.envelope
    try:
        headers = read_headers(envelope)
    except BadMessage as error:
        return error.reason
    if headers.run_id != run_id:
        return f"belongs to run {headers.run_id!r}"
    index = headers.index if headers.rollout_id else -1
    text = _error_text(delivery)[:MAX_ERROR_CHARS]
    return Screened(_record(envelope, headers, index=index).model_copy(update={"error": text}))


def screen_requeue(delivery: Delivery, *, run_id: str) -> tuple[Requeued, OriginalMessage]:
    """Which member an operator wants back.

    Raises:
        BadMessage: It must be given up, with the reason.
    """
    headers = read_headers(delivery.envelope)
    if headers.run_id != run_id:
        raise BadMessage(f"belongs to run {headers.run_id!r}, this is run {run_id!r}")
    requeue = decode(delivery.envelope, delivery.body, Requeue)
    index = headers.index if headers.rollout_id else -1
    record = Requeued(
        rollout_id=headers.rollout_id or f"every dead member of group {headers.group}",
        group=headers.group,
        index=index,
        purpose=headers.purpose,
        letter=requeue.letter,
        by=requeue.by,
        at=time.time(),
    )
    return record, requeue.original


def _unusable(trajectory: Trajectory, *, newest_version: int, vocab_size: int) -> str | None:
    if trajectory.rollout.purpose is Purpose.TRAIN:
        return why_unusable(trajectory, newest_version=newest_version, vocab_size=vocab_size)
    rollout = trajectory.rollout
    expected = rollout_id_of(Purpose.EVAL, rollout.group, rollout.index)
    if rollout.rollout_id != expected:
        return f"rollout_id is {rollout.rollout_id!r}, group and index say {expected!r}"
    newest = rollout.progress.tokens.newest_version
    if newest is not None and newest > newest_version:
        return f"tokens claim version {newest}, the newest published is {newest_version}"
    return why_no_reward(trajectory.reward)


def _record(envelope: Envelope, headers: Headers, *, index: int) -> Arrived:
    return Arrived(
        type=envelope.type,
        message_id=envelope.message_id,
        rollout_id=headers.rollout_id,
        group=headers.group,
        index=index,
        attempt=headers.attempt,
        purpose=headers.purpose,
        content_encoding=envelope.content_encoding,
        headers=envelope.headers,
    )


def _error_text(delivery: Delivery) -> str:
    if delivery.envelope.type != Failure.__name__:
        return f"the broker gave up a {delivery.envelope.type} after too many deliveries"
    try:
        failure = decode(delivery.envelope, delivery.body, Failure)
    except BadMessage as error:
        return f"a failure that cannot be read: {error.reason}"
    return f"{failure.stage}: {failure.error}".splitlines()[0]
