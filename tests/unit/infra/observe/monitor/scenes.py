"""Scenes of a small run: healthy, and what makes it otherwise."""

from dataclasses import replace
from typing import Any

from infra.observe.monitor.scene import (
    BrokerSeen,
    Expected,
    QueueSeen,
    RunSeen,
    Scene,
    WorkerSeen,
)
from schemas.reports import RewardReport, RolloutReport, TrainerReport

QUEUES = ("credits", "prompts", "cancel_queue", "rollouts", "trajectories", "dead_letters")


def trainer(**changes: Any) -> WorkerSeen:
    """A trainer that waits half of its time."""
    report = {
        "num_steps": 100,
        "rewards": (0.1, 0.4, 0.5),
        "forecast": (2, 2),
        "outstanding": 16,
        "barren": 3,
        "barren_s": 1.0,
        "version_bytes": 1_000_000,
    }
    report |= {name: changes.pop(name) for name in tuple(changes) if name in MODELS["trainer"]}
    worker = WorkerSeen(
        role="trainer",
        name="trainer",
        host="here",
        waiting_for="batch of step 11: 1/2 groups ready",
        waiting_s=1.0,
        counters={"issued": 40, "trained": 20, "filtered": 16, "open": 4, "balanced": 1},
        rates={"wait_s": 0.5, "train_s": 0.3, "publish_s": 0.1},
        trainer=TrainerReport.model_validate(report),
    )
    return replace(worker, **changes)


def rollout(number: int = 1, **changes: Any) -> WorkerSeen:
    """A rollout worker with half of its slots used."""
    report: dict[str, Any] = {
        "engine": "simulated",
        "versions": ((9, 2), (10, 2)),
        "ages": (3, 1, 0, 0, 0),
        "generating": 4,
        "stall_timeout_s": 600.0,
        "usual_update_s": 0.5,
    }
    report |= {name: changes.pop(name) for name in tuple(changes) if name in MODELS["rollout"]}
    worker = WorkerSeen(
        role="rollout",
        name=f"rollout-{number}",
        host="here",
        pid=4000 + number,
        version=10,
        slots=8,
        slots_used=4,
        counters={"tokens_generated": 900.0, "interruptions": 5.0, "disk_free_bytes": 1e12},
        rates={"tokens_generated": 250.0},
        rollout=RolloutReport.model_validate(report),
    )
    return replace(worker, **changes)


def reward(**changes: Any) -> WorkerSeen:
    """A reward worker with nothing to do."""
    report: dict[str, Any] = {
        "processes": 2,
        "queued": 0,
        "scoring": 0,
        "usual_s": 0.01,
        "timeout_s": 30.0,
        "functions": ("exact",),
    }
    report |= {name: changes.pop(name) for name in tuple(changes) if name in MODELS["reward"]}
    worker = WorkerSeen(
        role="reward", name="reward-1", host="here", reward=RewardReport.model_validate(report)
    )
    return replace(worker, **changes)


def producer(**changes: Any) -> WorkerSeen:
    """A producer."""
    return replace(WorkerSeen(role="producer", name="producer-1", host="here"), **changes)


def scene(*workers: WorkerSeen, ready: dict[str, int] | None = None, **changes: Any) -> Scene:
    """A run at step 10. Workers given take the place of those of their role."""
    roles = {worker.role for worker in workers}
    others = [trainer(), producer(), rollout(1), rollout(2), reward()]
    whole = Scene(
        run=RunSeen(
            name="run", run_id="a", wanted="running", step=10, num_steps=100, version=10, heard_s=1
        ),
        listened_s=60.0,
        expected=Expected(rollout_workers=2, reward_workers=1, group_size=4, groups_per_step=2),
        broker=BrokerSeen(address="127.0.0.1:5672"),
        queues=tuple(queue(name, (ready or {}).get(name, 0)) for name in QUEUES),
        workers=(*[one for one in others if one.role not in roles], *workers),
    )
    return replace(whole, **changes)


def queue(name: str, ready: int) -> QueueSeen:
    """A queue as the management API tells it."""
    return QueueSeen(
        name=name,
        ready=ready,
        unacknowledged=0,
        consumers=1,
        in_per_s=1.0,
        out_per_s=1.0,
        bytes=100 * ready,
        limit="16",
    )


def without(role: str, **changes: Any) -> Scene:
    """A scene in which nobody of a role was heard."""
    whole = scene(**changes)
    return replace(whole, workers=tuple(one for one in whole.workers if one.role != role))


MODELS = {
    "trainer": TrainerReport.model_fields,
    "rollout": RolloutReport.model_fields,
    "reward": RewardReport.model_fields,
}
