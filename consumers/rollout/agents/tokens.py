"""How a rollout's token record grows: checked, and only at its end."""

import math
from collections.abc import Sequence

from consumers.rollout.agents.state import RolloutFailed, RolloutState
from consumers.rollout.agents.stops import TurnStops
from consumers.rollout.engines.base import EngineFailed, TokenChunk
from schemas.chat import FunctionCall, ToolCall
from schemas.work import AgentPhase, FailureKind, RolloutStatus, ToolResult, Turn, TurnKind


def room(state: RolloutState) -> tuple[int, int]:
    """Tokens that may still be sampled: in this turn, and in the response."""
    budgets = state.task.budgets
    return (
        budgets.max_turn_tokens - (len(state.token_ids) - state.turn_start),
        budgets.max_response_tokens - state.num_response_tokens,
    )


def append_sampled(state: RolloutState, chunk: TokenChunk, *, stops: TurnStops) -> bool:
    """Take tokens from the engine, up to the one that ends the turn.

    Returns:
        Whether a stop string has ended it, which the engine cannot know. What the engine sampled
        after it is dropped.

    Raises:
        EngineFailed: The engine broke its protocol.
        RolloutFailed: A logprob is not finite, or the policy version went back.
    """
    count = len(chunk.token_ids)
    if count != len(chunk.logprobs) or count > min(room(state)):
        raise EngineFailed(
            f"the engine gave {count} tokens with {len(chunk.logprobs)} logprobs where "
            f"{min(room(state))} tokens had room"
        )
    start, begin = state.turn_start, len(state.token_ids)
    before = state.token_ids[-1:] if begin > start else []
    if any(token_id in stops.token_ids for token_id in [*before, *chunk.token_ids][:-1]):
        raise EngineFailed(f"the engine went on after a stop token: {chunk.token_ids}")
    if stops.token_ids.intersection(chunk.token_ids[: max(start + stops.min_tokens - begin, 0)]):
        raise EngineFailed(
            f"the engine ended a turn after {begin + count - start} tokens, min_tokens is "
            f"{stops.min_tokens}"
        )
    if not all(math.isfinite(logprob) for logprob in chunk.logprobs):
        raise RolloutFailed(
            f"the engine sampled {state.rollout_id} with a non-finite logprob",
            kind=FailureKind.INFRA,
        )
    if chunk.policy_version < (state.newest_version or 0):
        raise RolloutFailed(
            f"{state.rollout_id} was sampled by version {state.newest_version} and cannot go "
            f"on with {chunk.policy_version}",
            kind=FailureKind.INFRA,
        )
    state.token_ids += chunk.token_ids
    end = stops.end(state.token_ids, start=start, begin=begin)
    if end is not None:
        del state.token_ids[end:]
    count = len(state.token_ids) - begin
    state.mask += [1] * count
    state.logprobs += chunk.logprobs[:count]
    state.versions += [chunk.policy_version] * count
    state.num_new_tokens += count
    return end is not None and state.token_ids[-1] not in stops.token_ids


def count_prefill(state: RolloutState, num_tokens: int, num_cached: int) -> None:
    """Count a request's own tokens, once it has sampled something: what it computed, what it found.

    Of a request that a stop string ended the engine never said what it had found: nothing, then.
    """
    state.num_prefilled += num_tokens - num_cached
    state.num_cached += num_cached
    state.num_reprefilled += max(state.num_before_cut - num_cached, 0)
    state.num_before_cut = 0


def append_unsampled(state: RolloutState, token_ids: Sequence[int], kind: TurnKind) -> None:
    """Append a whole turn that the policy did not write."""
    start = len(state.token_ids)
    state.token_ids += token_ids
    state.mask += [0] * len(token_ids)
    state.logprobs += [0.0] * len(token_ids)
    state.versions += [-1] * len(token_ids)
    state.turn_start = len(state.token_ids)
    state.turns.append(Turn(kind=kind, start=start, stop=state.turn_start))


def terminate(state: RolloutState, status: RolloutStatus, reason: str) -> None:
    """End the rollout."""
    state.phase = AgentPhase.TERMINATED
    state.status = status
    state.finish_reason = reason


def unreadable(call_id: str, error: str) -> ToolResult:
    """The answer to a call that could not be parsed: there is nothing to run."""
    call = ToolCall(id=call_id, function=FunctionCall(name="", arguments=""))
    return ToolResult(call=call, content=error, ok=False)
