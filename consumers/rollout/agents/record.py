"""A rollout's state as the messages that leave the worker, and back again."""

import copy
import sys

from consumers.rollout.agents.base import Agent
from consumers.rollout.agents.state import CutReason, RolloutFailed, RolloutState
from infra.roles.errors import ConfigError
from infra.roles.registry import resolve
from schemas.arrays import to_runs
from schemas.work import (
    AgentPhase,
    FailureKind,
    Interruption,
    Progress,
    Rollout,
    RolloutTask,
    Snapshot,
    ToolResult,
)


def check_loaded(task: RolloutTask) -> None:
    """Refuse an agent of a module that the recipe did not make us import: a message imports none.

    Raises:
        RolloutFailed: It is such a one.
    """
    module, colon, _ = task.agent.partition(":")
    if colon and module not in sys.modules:
        raise RolloutFailed(f"agent {task.agent!r} is none of the recipe's", final=True)


def new_state(task: RolloutTask) -> RolloutState:
    """A rollout that has not begun.

    Raises:
        RolloutFailed: Its agent does not exist.
    """
    try:
        kind = resolve("agent", task.agent)
    except ConfigError as error:
        raise RolloutFailed(f"agent {task.agent!r} cannot be had: {error}", final=True) from error
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise RolloutFailed(
            f"agent {task.agent!r} is no Agent",
            hint="subclass consumers.rollout.agents.base.Agent",
            final=True,
        )
    return RolloutState(task=task, agent=kind(task))


def to_progress(state: RolloutState) -> Progress:
    """The conversation so far; finished calls of the running turn included, in call order."""
    return Progress.model_validate(
        {
            "num_prompt_tokens": state.num_prompt_tokens,
            "interruptions": state.interruptions,
            "num_prefilled": state.num_prefilled,
            "num_cached": state.num_cached,
            "num_reprefilled": state.num_reprefilled,
            "num_resumed_elsewhere": state.num_resumed_elsewhere,
            "timings": {
                "generating_s": state.generating_s,
                "tools_s": state.tools_s,
                "waiting_s": state.waiting_s,
            },
            "tool_results": [*state.tool_results, *results_in_order(state)],
            "turns": state.turns,
            "messages": state.messages,
            # as values: a Tokens would be checked once when it is made and once more here
            "tokens": {
                "mask": to_runs(state.mask),
                "versions": to_runs(state.versions),
                "token_ids": state.token_ids,
                "logprobs": state.logprobs,
            },
        }
    )


def results_in_order(state: RolloutState) -> list[ToolResult]:
    """Results of the last turn's calls, in the order in which they were written."""
    return [state.results[call.id] for call in state.calls if call.id in state.results]


def num_computed(state: RolloutState) -> int:
    """Tokens before the last sampled one: to sample it, an engine had computed them all."""
    return next((i for i in range(len(state.mask) - 1, -1, -1) if state.mask[i]), 0)


def to_snapshot(state: RolloutState, *, worker: str, reason: CutReason) -> Snapshot:
    """An unfinished rollout that has sampled at least one token; records the interruption."""
    state.interruptions.append(
        Interruption(
            at_token=len(state.token_ids),
            version=state.newest_version or 0,
            worker=worker,
            reason=reason.value,
        )
    )
    saved = {"agent": state.agent.save(), "interaction": state.interaction_saved}
    return Snapshot(
        task=state.task,
        phase=state.phase,
        worker=worker,
        turn_start=state.turn_start,
        num_turns=state.num_turns,
        pending_calls=tuple(call for call in state.calls if call.id not in state.results),
        agent_state={key: copy.deepcopy(value) for key, value in saved.items() if value},
        progress=to_progress(state),
    )


def to_rollout(
    state: RolloutState, *, worker: str, stop_token_ids: frozenset[int] = frozenset()
) -> Rollout:
    """A finished rollout, sampled with these stop tokens."""
    task = state.task
    return Rollout(
        rollout_id=task.rollout_id,
        group=task.group,
        index=task.index,
        purpose=task.purpose,
        row=task.row,
        status=state.status,
        finish_reason=state.finish_reason,
        worker=worker,
        agent=task.agent,
        prompt_hash=task.prompt_hash,
        reward_data=task.reward_data,
        stop_token_ids=tuple(sorted(stop_token_ids)) if task.budgets.min_tokens else (),
        tools=task.tools,
        sampling=task.sampling,
        budgets=task.budgets,
        progress=to_progress(state),
    )


def from_snapshot(snapshot: Snapshot, *, worker: str) -> RolloutState:
    """The state in which a snapshot was taken.

    Raises:
        RolloutFailed: It contradicts itself, or its agent does not exist.
    """
    state = new_state(snapshot.task)
    progress = snapshot.progress
    tokens = progress.tokens
    if problem := _contradiction(snapshot):
        raise RolloutFailed(f"snapshot of {state.rollout_id}: {problem}", kind=FailureKind.INFRA)
    state.phase = snapshot.phase
    state.token_ids = tokens.token_ids.tolist()
    state.mask = tokens.mask_array.tolist()
    state.logprobs = tokens.logprobs.tolist()
    state.versions = tokens.version_array.tolist()
    state.num_prompt_tokens = progress.num_prompt_tokens
    state.turn_start = snapshot.turn_start
    state.num_turns = snapshot.num_turns
    state.turns = list(progress.turns)
    state.messages = list(progress.messages)
    state.interruptions = list(progress.interruptions)
    state.num_prefilled = progress.num_prefilled
    state.num_cached = progress.num_cached
    state.num_reprefilled = progress.num_reprefilled
    state.num_before_cut = num_computed(state)
    state.num_resumed_elsewhere = progress.num_resumed_elsewhere + (snapshot.worker != worker)
    state.generating_s = progress.timings.generating_s
    state.tools_s = progress.timings.tools_s
    state.waiting_s = progress.timings.waiting_s
    state.agent.restore(copy.deepcopy(snapshot.agent_state.get("agent", {})))
    state.interaction_saved = copy.deepcopy(snapshot.agent_state.get("interaction", {}))
    _restore_calls(state, snapshot)
    return state


def _restore_calls(state: RolloutState, snapshot: Snapshot) -> None:
    """Tell the running turn's calls and results from those of earlier turns, by their ids."""
    state.tool_results = list(snapshot.progress.tool_results)
    if snapshot.phase is not AgentPhase.PROCESSING_TOOLS:
        return
    this_turn = f"{state.rollout_id}:{state.num_turns - 1}:"
    done = [r for r in state.tool_results if r.call.id.startswith(this_turn)]
    state.tool_results = state.tool_results[: len(state.tool_results) - len(done)]
    state.results = {result.call.id: result for result in done}
    calls = {call.id: call for call in state.messages[-1].tool_calls}
    calls |= {result.call.id: result.call for result in done}
    state.calls = sorted(calls.values(), key=lambda call: int(call.id.rpartition(":")[2]))


def _contradiction(snapshot: Snapshot) -> str:
    """What is wrong with a snapshot, or nothing."""
    progress = snapshot.progress
    length = len(progress.tokens)
    if snapshot.phase in (AgentPhase.PENDING, AgentPhase.TERMINATED):
        return f"nothing to continue in phase {snapshot.phase}"
    if not progress.turns or progress.turns[-1].stop != snapshot.turn_start:
        return f"turn_start {snapshot.turn_start} does not continue the last turn"
    if snapshot.turn_start > length or not progress.tokens.mask_array[snapshot.turn_start :].all():
        return f"unsampled tokens in the unfinished turn [{snapshot.turn_start}, {length})"
    if snapshot.phase is not AgentPhase.GENERATING and snapshot.turn_start != length:
        return f"an unfinished turn in phase {snapshot.phase}"
    if not progress.messages:
        return "no messages"
    if snapshot.phase is AgentPhase.PROCESSING_TOOLS:
        written = {call.id for call in progress.messages[-1].tool_calls}
        if not {call.id for call in snapshot.pending_calls} <= written:
            return "pending calls that the last turn did not write"
    return ""
