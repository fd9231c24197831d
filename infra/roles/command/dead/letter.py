"""A dead letter: a `Failure`, what the broker gave up itself, or no message of ours.

Pure: reading never fails, and whatever cannot be read is said.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from infra.amqp.codec import decode, read_headers
from infra.amqp.dead import original_message
from infra.amqp.errors import BadMessage
from infra.amqp.headers import travelling
from infra.amqp.message import Delivery, Envelope
from schemas.headers import Headers, Purpose
from schemas.work import (
    Credit,
    Failure,
    FailureKind,
    OriginalMessage,
    Rollout,
    RolloutTask,
    Snapshot,
    Trajectory,
)

QUEUES: dict[str, tuple[type[BaseModel], str, str]] = {
    "Credit": (Credit, "credits", "credits"),
    "RolloutTask": (RolloutTask, "prompts", "eval_prompts"),
    "Snapshot": (Snapshot, "cancel_queue", "cancel_queue"),
    "Rollout": (Rollout, "rollouts", "rollouts"),
    "Trajectory": (Trajectory, "trajectories", "evaluations"),
}
"""Type -> its model, and its queue for training and for evaluation."""

UNREADABLE = "?"
"""Stage of a failure that does not tell it."""
BROKER = "broker"
"""Stage of what the broker itself gave up."""
STAGES = ("producer", "rollout", "reward", "trainer", BROKER, UNREADABLE)
"""Who gives messages up."""

_BUDGETS: dict[str, tuple[str, ...]] = {
    FailureKind.INFRA: ("returns", "returns_total"),
    FailureKind.DATA: ("data_attempts",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What is known of one."""

    id: str
    """Its message id; of one without, `sha256:` and some of its body's hash."""
    type: str
    size_bytes: int
    at: int
    """Seconds since 1970, by the sender's clock."""
    headers: Headers | None
    """None when they name no member of a group."""
    stage: str
    kind: str
    error: str
    traceback: str = ""
    attempts: int = 0
    worker: str = ""
    original: OriginalMessage | None = None
    """The message that died, as far as it is there."""

    @property
    def rollout_id(self) -> str:
        """Of the member; empty for a credit and for what names none."""
        return "" if self.headers is None else self.headers.rollout_id

    @property
    def names(self) -> frozenset[str]:
        """By which it may be asked for."""
        return frozenset({self.id, self.rollout_id} - {""})


def read_letter(delivery: Delivery) -> Letter:
    """Read what lies in `dead_letters`."""
    envelope = delivery.envelope
    try:
        headers = read_headers(envelope)
    except BadMessage:
        headers = None
    common: dict[str, Any] = {
        "id": envelope.message_id or f"sha256:{hashlib.sha256(delivery.body).hexdigest()[:16]}",
        "type": envelope.type,
        "size_bytes": len(delivery.body),
        "at": envelope.timestamp,
        "headers": headers,
    }
    if envelope.type != Failure.__name__:
        return Letter(
            **common,
            stage=BROKER,
            kind=FailureKind.INFRA,
            error=_brokers_reason(delivery),
            attempts=delivery.delivery_count,
            worker=envelope.app_id,
            original=_as_original(delivery, headers),
        )
    try:
        failure = decode(delivery, delivery.body, Failure)
    except BadMessage as error:
        reason = f"a failure that cannot be read: {error.reason}"
        return Letter(**common, stage=UNREADABLE, kind="?", error=reason, worker=envelope.app_id)
    return Letter(
        **common,
        stage=failure.stage,
        kind=failure.kind,
        error=failure.error,
        traceback=failure.traceback,
        attempts=failure.attempts,
        worker=failure.worker,
        original=failure.original,
    )


def why_not(letter: Letter) -> str:
    """Why it cannot be requeued; empty when it can."""
    original = letter.original
    if letter.headers is None:
        return "its headers name no member of any group"
    if letter.headers.replay:
        return f"it is of replay {letter.headers.replay}: 'run.py replay queue' sends it again"
    if original is None:
        return "it does not hold the message that died"
    if original.truncated:
        return "only the beginning of the message that died was kept"
    try:
        read_original(original)
    except BadMessage as error:
        return f"the message that died cannot be read and would only die again: {error.reason}"
    return ""


def read_original(original: OriginalMessage) -> BaseModel:
    """The message that died.

    Raises:
        BadMessage: It is not whole, or not one of ours.
    """
    if original.type not in QUEUES:
        raise BadMessage(f"its type is {original.type[:80]!r}")
    envelope = Envelope(
        message_id=original.message_id,
        type=original.type,
        correlation_id="",
        app_id="",
        headers=_flat(original),
        content_encoding=original.content_encoding,
        timestamp=0,
    )
    return decode(envelope, body_of(original), QUEUES[original.type][0])


def body_of(original: OriginalMessage) -> bytes:
    """Its bytes.

    Raises:
        BadMessage: They are no base64.
    """
    try:
        return base64.b64decode(original.body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadMessage(f"no base64: {error}") from None


def granted_anew(letter: Letter) -> OriginalMessage:
    """The message that died, with the budget that it had used up reset: of a fault of the
    infrastructure the returns, of its own fault the attempts."""
    assert letter.original is not None
    original, used_up = letter.original, _BUDGETS.get(letter.kind, ())
    headers = {k: v for k, v in travelling(_flat(original)).items() if k not in used_up}
    return original.model_copy(update={"headers": headers})


def _flat(original: OriginalMessage) -> dict[str, str | int]:
    return {k: v for k, v in original.headers.items() if isinstance(v, str | int)}


def _as_original(delivery: Delivery, headers: Headers | None) -> OriginalMessage | None:
    """What the broker gave up is the message itself; where it lay follows from its type."""
    if delivery.envelope.type not in QUEUES:
        return None
    _, train, evaluation = QUEUES[delivery.envelope.type]
    evaluating = headers is not None and headers.purpose is Purpose.EVAL
    queue = evaluation if evaluating else train
    return original_message(delivery).model_copy(update={"queue": queue})


def _brokers_reason(delivery: Delivery) -> str:
    reason = delivery.envelope.headers.get("x-first-death-reason", "")
    if not reason and delivery.envelope.replayed:
        return "a replay sent it here: nobody gave it up"
    after = "after too many deliveries" if reason in ("", "delivery_limit") else f"({reason})"
    return f"the broker gave up a {delivery.envelope.type or 'message without type'} {after}"
