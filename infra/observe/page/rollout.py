"""One rollout with everything that is known of it, as JSON values."""

import math
from typing import Any

import numpy as np

from infra.amqp.codec import decode
from infra.amqp.message import Envelope
from infra.observe.page.facts import Group, Row
from infra.observe.page.runs import Run
from infra.roles.errors import WarrenError
from infra.roles.registry import resolve
from schemas.journal import Arrived, Stepped
from schemas.work import Failure, Trajectory


def rollout_values(run: Run, rollout_id: str) -> dict[str, Any] | None:
    """A rollout by its id; None when nothing arrived under it."""
    index = run.index
    rows = list(index.by_id.get(rollout_id, ()))
    if not rows:
        return None
    counted = index.counted(rollout_id)
    group = index.groups[rows[0].group]
    values: dict[str, Any] = {
        "id": rollout_id,
        "group": group.key,
        "end": group.end,
        "reason": group.reason,
        "failures": [_failure(run, row) for row in rows if row.reward is None],
        "copies": len([row for row in rows if row.reward is not None]),
        "members": members(run, group),
        "problem": "",
        "trajectory": None,
    }
    if counted is None:
        return values
    values["row"] = {"step": counted.step, "staleness": counted.staleness,
                     "attempt": counted.attempt, "arrival": counted.number}  # fmt: skip
    if counted.step is not None and counted.step in index.steps:
        values["row"]["version"] = index.steps[counted.step].version
    try:
        values["trajectory"] = _trajectory(run, index.body(counted)[1])
        values["trained_logprobs"] = trained_logprobs(run, counted)
    except (WarrenError, OSError) as error:
        values["problem"] = str(error)
    return values


def members(run: Run, group: Group) -> list[dict[str, Any]]:
    """A group's rollouts by index, with the advantages that the trainer gave them."""
    rows = [run.index.rows[number] for number in group.rows]
    advantages = advantages_of(run, group)
    shown = []
    for row in sorted(rows, key=lambda row: (row.index, row.number)):
        if row.reward is not None and run.index.counted(row.rollout_id) is not row:
            continue
        shown.append({
            "id": row.rollout_id, "index": row.index, "reward": row.reward, "error": row.error,
            "tokens": row.num_tokens, "staleness": row.staleness,
            "advantage": advantages.get(row.rollout_id),
        })  # fmt: skip
    return shown


def advantages_of(run: Run, group: Group) -> dict[str, float]:
    """Advantage of each member that was trained on; empty for a group that was not.

    By the run's own estimator if it comes with Warren: code that a run folder names is not run.
    """
    config = run.config
    if group.step is None or config is None or ":" in config.algorithm.advantages:
        return {}
    rows = [run.index.rows[number] for number in group.rows]
    trained = sorted(
        (row for row in rows if row.step is not None and row.reward is not None),
        key=lambda row: row.index,
    )
    try:
        estimator = resolve("advantages", config.algorithm.advantages)
    except WarrenError:
        return {}
    values = estimator(np.array([row.reward for row in trained], dtype=np.float64))
    return {row.rollout_id: float(value) for row, value in zip(trained, values, strict=True)}


def trained_logprobs(run: Run, row: Row) -> list[float] | None:
    """Logprobs of a rollout's sampled tokens under the weights that its step began with; None for
    one that was not trained on.

    Raises:
        WarrenError, OSError: The journal is damaged, or the segment is gone.
    """
    step = run.index.steps.get(-1 if row.step is None else row.step)
    if step is None or step.logprobs is None:
        return None
    entry = run.index.reader.entry(step.logprobs)
    assert isinstance(entry.record, Stepped)
    start = 0
    for rollout_id, count in entry.record.logprobs:
        if rollout_id == row.rollout_id:
            found = np.frombuffer(entry.body, dtype="<f2", count=count, offset=2 * start)
            return [round(float(value), 4) for value in found]
        start += count
    return None


def _trajectory(run: Run, trajectory: Trajectory) -> dict[str, Any]:
    rollout, progress = trajectory.rollout, trajectory.rollout.progress
    token_ids = progress.tokens.token_ids.tolist()
    described = rollout.model_dump(
        mode="json", include={"row", "status", "finish_reason", "worker", "agent", "reward_data"}
    )
    counted = progress.model_dump(mode="json", exclude={"tokens"})
    return {
        **described,
        **counted,
        "reward": trajectory.reward,
        "rewards": trajectory.rewards,
        "reward_s": trajectory.reward_s,
        "tokens": {
            "ids": token_ids,
            "texts": run.pieces.texts(token_ids),
            "mask": progress.tokens.mask,
            "versions": progress.tokens.versions,
            "logprobs": [round(value, 4) for value in progress.tokens.logprobs.tolist()],
        },
        "texts_problem": run.pieces.problem,
    }


def _failure(run: Run, row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {"error": row.error, "attempt": row.attempt, "arrival": row.number}
    try:
        entry = run.index.reader.entry(row.position)
        if isinstance(entry.record, Arrived) and entry.record.type == Failure.__name__:
            failure = decode(_envelope(entry.record), entry.body, Failure)
            values |= failure.model_dump(
                mode="json", include={"stage", "kind", "error", "traceback", "worker", "attempts"}
            )
    except (WarrenError, OSError) as error:
        values["problem"] = str(error)
    return values


def _envelope(record: Arrived) -> Envelope:
    return Envelope(
        message_id=record.message_id,
        type=record.type,
        correlation_id="",
        app_id="",
        headers=record.headers,
        content_encoding=record.content_encoding,
        timestamp=0,
    )


def spread(rewards: list[float]) -> dict[str, float | None]:
    """Mean, deviation (of the population), least and greatest; None without rewards.

    Sums and squares are of rewards by a power of two, which is exact: so none of them overflows.
    """
    if not rewards:
        return {"mean": None, "std": None, "min": None, "max": None}
    scale = 2.0 ** (math.frexp(max(map(abs, rewards)))[1] - 1)
    scaled = [reward / scale for reward in rewards]
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((reward - mean) * (reward - mean) for reward in scaled) / len(scaled)
    return {
        "mean": mean * scale,
        "std": math.sqrt(variance) * scale,
        "min": min(rewards),
        "max": max(rewards),
    }
