"""One message for each work queue, made of real models."""

from schemas.base import Message
from schemas.headers import Purpose
from schemas.work import AgentPhase, Credit, Snapshot
from tests.factories.rollouts import make_task
from tests.factories.world import failure, trajectory

GROUP_SIZE = 4


def model_for(queue: str, group: int = 3, index: int = 1) -> Message:
    """What belongs on a queue."""
    evaluating = queue in ("eval_prompts", "evaluations")
    purpose = Purpose.EVAL if evaluating else Purpose.TRAIN
    credit = Credit(
        group=group,
        indexes=tuple(range(GROUP_SIZE)),
        purpose=purpose,
        dataset_fingerprint="f" * 64,
        seed=0,
        group_size=GROUP_SIZE,
    )
    scored = trajectory(credit, index, version=0, reward=1.0)
    task = make_task(scored.rollout.rollout_id, purpose=purpose)
    snapshot = Snapshot(
        task=task,
        phase=AgentPhase.GENERATING,
        worker="one",
        turn_start=scored.rollout.progress.num_prompt_tokens,
        num_turns=0,
        progress=scored.rollout.progress,
    )
    models: dict[str, Message] = {
        "credits": credit,
        "prompts": task,
        "eval_prompts": task,
        "cancel_queue": snapshot,
        "rollouts": scored.rollout,
        "trajectories": scored,
        "evaluations": scored,
        "failures": failure(credit, index, error="no score"),
    }
    return models[queue]
