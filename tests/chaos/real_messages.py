"""One good message for each queue, made of real models."""

from typing import Any

from infra.amqp.codec import encode
from schemas.base import Message
from schemas.headers import Headers, Purpose
from schemas.work import AgentPhase, Credit, Failure, FailureKind, Snapshot
from tests.chaos.hostile_message import Hostile
from tests.factories.rollouts import make_task
from tests.factories.world import trajectory

RUN_ID = "run-of-this-test"
GROUP_SIZE = 4


def model_for(queue: str, group: int = 3, index: int = 1) -> Message:
    """What belongs on a queue."""
    evaluating = queue in ("eval_prompts", "evaluations")
    purpose = Purpose.EVAL if evaluating else Purpose.TRAIN
    name = f"eval{group}.{index}" if evaluating else f"{group}.{index}"
    credit = Credit(
        group=group,
        indexes=tuple(range(GROUP_SIZE)),
        purpose=purpose,
        dataset_fingerprint="f" * 64,
        seed=0,
        group_size=GROUP_SIZE,
    )
    scored = trajectory(credit, index, version=0, reward=1.0)
    task = make_task(name, purpose=purpose)
    snapshot = Snapshot(
        task=task,
        phase=AgentPhase.GENERATING,
        worker="one",
        turn_start=scored.rollout.progress.num_prompt_tokens,
        num_turns=0,
        progress=scored.rollout.progress,
    )
    failure = Failure(
        rollout_id=name,
        group=group,
        index=index,
        stage="reward",
        kind=FailureKind.DATA,
        error="no score",
    )
    models: dict[str, Message] = {
        "credits": credit,
        "prompts": task,
        "eval_prompts": task,
        "cancel_queue": snapshot,
        "rollouts": scored.rollout,
        "trajectories": scored,
        "evaluations": scored,
        "failures": failure,
    }
    return models[queue]


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
