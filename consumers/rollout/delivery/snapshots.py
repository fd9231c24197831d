"""What a rollout came to, as the message that is published for it.

Rollout      -> `rollouts`
Snapshot     -> `cancel_queue`, not below the versions it has seen
RolloutTask  -> `prompts` or `eval_prompts`, as it came
"""

from consumers.rollout.agents.state import CutReason
from consumers.rollout.delivery.poison import Returns
from consumers.rollout.slots import Held
from infra.amqp.codec import CHECKSUM, encode
from infra.amqp.headers import travelling
from infra.amqp.message import Outgoing
from schemas.headers import HEADER_NAMES, Headers, Purpose
from schemas.work import Rollout, RolloutTask, Snapshot

_DEFINED = HEADER_NAMES | {CHECKSUM}


def outgoing(held: Held, outcome: Rollout | Snapshot | RolloutTask, *, app_id: str) -> Outgoing:
    """The one message that goes out for a rollout.

    Its id is a function of its content, so that copies are recognised and different ones are not
    taken for copies.
    """
    if isinstance(outcome, Rollout):
        headers = held.headers.model_copy(update={"data_attempts": 0})  # scoring counts its own
    else:
        headers = given_back_headers(held, outcome)
    return _message(held, outcome, headers, app_id=app_id)


def given_back_headers(held: Held, outcome: Snapshot | RolloutTask) -> Headers:
    """Headers of a rollout that returns to the queue.

    `min_version` keeps versions from decreasing within the rollout: it is at least that of its
    newest token, and after a sync the version that it was cut for.
    """
    snapshot = outcome if isinstance(outcome, Snapshot) else None
    returns = returns_of(held, outcome)
    newest = snapshot.progress.tokens.newest_version if snapshot else None
    return held.headers.model_copy(
        update={
            "min_version": max(held.headers.min_version, newest or 0, held.cut_version or 0),
            "returns": returns.since_progress,
            "returns_total": returns.total,
        }
    )


def returns_of(held: Held, outcome: Snapshot | RolloutTask) -> Returns:
    """How often it will have come back once this is in a queue."""
    reason = held.state.cut_reason if held.state is not None else None
    progressed = held.progressed and isinstance(outcome, Snapshot)
    if reason is CutReason.STALL:
        return held.returns.stalled(progressed=progressed)
    return held.returns.given_back(
        progressed=progressed and not held.suspected, excused=reason is CutReason.SYNC
    )


def to_try_again(held: Held, *, app_id: str) -> Outgoing:
    """The plain task of a rollout that failed again and again from where it was taken up."""
    task = held.work.task if isinstance(held.work, Snapshot) else held.work
    headers = failed_headers(held)
    return _message(held, task, headers, app_id=app_id)


def uncounted_headers(held: Held) -> Headers:
    """Headers of a rollout that goes back without having been run."""
    returns = held.returns
    return held.headers.model_copy(
        update={"returns": returns.since_progress, "returns_total": returns.total}
    )


def failed_headers(held: Held) -> Headers:
    """Headers of a rollout that is tried again because it failed by itself."""
    number = held.headers.data_attempts + 1
    return uncounted_headers(held).model_copy(update={"data_attempts": number})


def marks_of(headers: dict[str, str | int]) -> dict[str, str | int]:
    """Headers that neither we nor the broker define."""
    if all(name in _DEFINED or name.startswith("x-") for name in headers):
        return {}
    return {name: value for name, value in travelling(headers).items() if name not in _DEFINED}


def _message(
    held: Held, content: Rollout | Snapshot | RolloutTask, headers: Headers, *, app_id: str
) -> Outgoing:
    envelope, body = encode(
        content,
        app_id=app_id,
        correlation_id=held.rollout_id,
        headers={**held.marks, **headers.to_amqp()},
        message_id=_message_id(content, headers),
    )
    return Outgoing.to_queue(_queue(content, headers), envelope, body)


def _queue(outcome: Rollout | Snapshot | RolloutTask, headers: Headers) -> str:
    if isinstance(outcome, Rollout):
        return "rollouts"
    if isinstance(outcome, Snapshot):
        return "cancel_queue"
    return "eval_prompts" if headers.purpose is Purpose.EVAL else "prompts"


def _message_id(outcome: Rollout | Snapshot | RolloutTask, headers: Headers) -> str:
    parts = [type(outcome).__name__, headers.name, str(headers.attempt)]
    if isinstance(outcome, Snapshot):
        progress = outcome.progress
        parts += [str(len(progress.tokens)), str(len(progress.interruptions))]
    if not isinstance(outcome, Rollout):
        parts += [str(headers.returns_total), str(headers.min_version)]
        parts += [str(headers.data_attempts)] if headers.data_attempts else []
    return ":".join(parts)
