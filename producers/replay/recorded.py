"""A message of the recording, and how it is marked when it is sent again."""

from dataclasses import dataclass, replace

from infra.amqp.headers import short, travelling
from infra.amqp.message import Envelope
from infra.amqp.topology import WORK_KEYS
from schemas.headers import REPLAY, Purpose

QUEUES = {
    "Credit": "credits",
    "RolloutTask": "prompts",
    "Snapshot": "cancel_queue",
    "Rollout": "rollouts",
    "Trajectory": "trajectories",
}
"""Type -> the queue that it came from, unless it is of an evaluation."""
EVALUATING = {"prompts": "eval_prompts", "trajectories": "evaluations"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message as it was published."""

    offset: int
    """In the recording."""
    envelope: Envelope
    body: bytes

    @property
    def group(self) -> str:
        """`7`, or `eval7` for the evaluation of version 7; empty when the headers tell of none."""
        group = self.envelope.headers.get("group")
        evaluating = self.envelope.headers.get("purpose") == Purpose.EVAL
        return "" if group is None else f"eval{group}" if evaluating else str(group)

    @property
    def rollout_id(self) -> str:
        """As the headers tell; empty for a credit."""
        return str(self.envelope.headers.get("rollout_id", ""))

    @property
    def own_queue(self) -> str | None:
        """The work queue that it came from; None for a type that no queue is for."""
        queue = QUEUES.get(self.envelope.type)
        if queue is not None and self.envelope.headers.get("purpose") == Purpose.EVAL:
            return EVALUATING.get(queue, queue)
        return queue

    def marked(self, replay: str) -> Envelope:
        """Its envelope as a replay: no id that is live is used again, nothing else is changed.

        What a stranger sent is cut to what can be sent.
        """
        envelope = self.envelope
        return replace(
            envelope,
            message_id=short(f"{replay}:{self.offset}:{envelope.message_id}"),
            type=short(envelope.type),
            correlation_id=short(envelope.correlation_id),
            app_id=short(envelope.app_id),
            headers={**travelling(envelope.headers), REPLAY: replay},
            content_encoding=short(envelope.content_encoding or "") or None,
        )


assert set(QUEUES.values()) | set(EVALUATING.values()) == set(WORK_KEYS)
