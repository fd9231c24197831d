"""One good message for each queue, to be harmed."""

from typing import Any

from infra.amqp.codec import encode
from schemas.headers import Headers, Purpose
from tests.chaos.hostile_message import Hostile
from tests.factories.messages import model_for

RUN_ID = "run-of-this-test"


def real_message(queue: str, *, run_id: str = RUN_ID, **ids: Any) -> Hostile:
    """A good message for a queue, not harmed yet."""
    model = model_for(queue, **ids)
    evaluating = queue in ("eval_prompts", "evaluations")
    group, index = ids.get("group", 3), ids.get("index", 1)
    headers = Headers(
        run_id=run_id,
        purpose=Purpose.EVAL if evaluating else Purpose.TRAIN,
        group=group,
        index=0 if queue == "credits" else index,
        rollout_id="" if queue == "credits" else getattr(_of(model), "rollout_id", ""),
    )
    envelope, body = encode(
        model,
        app_id="test/0",
        correlation_id=headers.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"real-{queue}",
    )
    return Hostile.of(queue, envelope, body)


def _of(model: Any) -> Any:
    """The part of a model that has the member's id."""
    return getattr(model, "rollout", getattr(model, "task", model))
