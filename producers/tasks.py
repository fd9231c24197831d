"""A row and a credit become a task: pure, so that every producer makes the same bytes."""

import hashlib
from collections.abc import Sequence

import orjson

from producers.rows import Row
from schemas.chat import ChatMessage
from schemas.config import RunConfig
from schemas.headers import Headers, Purpose, rollout_id_of
from schemas.work import Budgets, Credit, RolloutTask, Sampling


def rollout_id(credit: Credit, index: int) -> str:
    """Id of one member of a credit, whatever its purpose."""
    return rollout_id_of(credit.purpose, credit.group, index)


def message_id(task_id: str, attempt: int) -> str:
    """Of a task's message: the same when the credit is handled twice."""
    return f"RolloutTask:{task_id}:{attempt}:0"


def out_of_range(credit: Credit) -> str | None:
    """Why its members cannot be those of a group, or None."""
    if len(set(credit.indexes)) != len(credit.indexes):
        return "names a member twice"
    if credit.purpose is Purpose.TRAIN and max(credit.indexes, default=0) >= credit.group_size:
        return f"names member {max(credit.indexes)} of a group of {credit.group_size}"
    return None


def prompt_hash(messages: Sequence[ChatMessage]) -> str:
    """sha256 (hex) of the messages as JSON with sorted keys and no spaces."""
    plain = [message.model_dump(mode="json") for message in messages]
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()


def build_task(config: RunConfig, credit: Credit, row: Row, *, row_number: int) -> RolloutTask:
    """The task of the credit's first member; see `for_member` for the others."""
    evaluating = credit.purpose is Purpose.EVAL
    rollout = config.rollout
    index = credit.indexes[0]
    return RolloutTask(
        rollout_id=rollout_id(credit, index),
        group=credit.group,
        index=index,
        purpose=credit.purpose,
        row=row_number,
        agent=rollout.agent,
        messages=row.messages,
        prompt_hash=prompt_hash(row.messages),
        tools=rollout.tools if row.tools is None else row.tools,
        sampling=Sampling(
            temperature=config.eval.temperature if evaluating else rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_p=rollout.min_p,
            stop=rollout.stop,
            options=rollout.sampling_options,
            seed=config.run.seed,
        ),
        budgets=Budgets(
            max_prompt_tokens=rollout.max_prompt_tokens,
            max_response_tokens=rollout.max_response_tokens,
            max_turn_tokens=rollout.max_turn_tokens,
            max_turns=rollout.max_turns,
            min_tokens=rollout.min_tokens,
        ),
        reward_data=row.reward_data,
    )


def for_member(task: RolloutTask, credit: Credit, index: int) -> RolloutTask:
    """The same task for another member of its group."""
    return task.model_copy(update={"rollout_id": rollout_id(credit, index), "index": index})


def task_headers(task: RolloutTask, credit: Credit, *, run_id: str) -> Headers:
    """Headers of a task's message."""
    return Headers(
        run_id=run_id,
        purpose=task.purpose,
        group=task.group,
        index=task.index,
        rollout_id=task.rollout_id,
        attempt=credit.attempt,
        min_version=credit.min_version,
    )
