"""A row and a credit become a task: pure, so that every producer makes the same bytes."""

from infra.runs.asked import budgets_of, prompt_hash, sampling_of
from producers.rows import Row
from schemas.config import RunConfig
from schemas.headers import Headers, Purpose, rollout_id_of
from schemas.work import Credit, RolloutTask


def rollout_id(credit: Credit, index: int) -> str:
    """Id of one member of a credit, whatever its purpose."""
    return rollout_id_of(credit.purpose, credit.group, index)


def message_id(headers: Headers) -> str:
    """Of a task's message: the same when the credit is handled twice."""
    return f"RolloutTask:{headers.name}:{headers.attempt}:0"


def out_of_range(credit: Credit) -> str | None:
    """Why its members cannot be those of a group, or None."""
    if len(set(credit.indexes)) != len(credit.indexes):
        return "names a member twice"
    if credit.purpose is Purpose.TRAIN and max(credit.indexes, default=0) >= credit.group_size:
        return f"names member {max(credit.indexes)} of a group of {credit.group_size}"
    return None


def build_task(config: RunConfig, credit: Credit, row: Row, *, row_number: int) -> RolloutTask:
    """The task of the credit's first member; see `for_member` for the others."""
    index = credit.indexes[0]
    return RolloutTask(
        rollout_id=rollout_id(credit, index),
        group=credit.group,
        index=index,
        purpose=credit.purpose,
        row=row_number,
        agent=config.rollout.agent,
        messages=row.messages,
        prompt_hash=prompt_hash(row.messages),
        tools=config.rollout.tools if row.tools is None else row.tools,
        sampling=sampling_of(config, credit.purpose),
        budgets=budgets_of(config),
        reward_data=row.reward_data,
    )


def for_member(task: RolloutTask, credit: Credit, index: int) -> RolloutTask:
    """The same task for another member of its group."""
    return task.model_copy(update={"rollout_id": rollout_id(credit, index), "index": index})


def task_headers(task: RolloutTask, credit: Credit, *, run_id: str, replay: str = "") -> Headers:
    """Headers of a task's message."""
    headers = Headers(
        run_id=run_id,
        purpose=task.purpose,
        group=task.group,
        index=task.index,
        rollout_id=task.rollout_id,
        attempt=credit.attempt,
        min_version=credit.min_version,
    )
    return headers.model_copy(update={"replay": replay}) if replay else headers
