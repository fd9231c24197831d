"""Is a replay its record? The first thing in which it is not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from consumers.rollout.replay.steps import Difference
from schemas.work import Rollout

_ASKED = {"tools", "sampling", "budgets"}
_COMPUTED = {"tokens", "timings", "num_prefilled", "num_cached", "num_reprefilled"}


def first_difference(
    recorded: Rollout, replayed: Rollout, decode: Callable[[Sequence[int]], str]
) -> Difference | None:
    """Compare everything that a replay must repeat; None where all is equal.

    Args:
        recorded: From the journal.
        replayed: As it would be published now.
        decode: Text of tokens, for people.
    """
    return (
        _of_tokens(recorded, replayed, decode)
        or _of_arrays(recorded, replayed)
        or _of_values(_rest(recorded), _rest(replayed), "")
    )


def token_difference(
    rollout: Rollout, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> Difference:
    """The first token in which a sequence is not the recorded one, or where it ends."""
    recorded = rollout.progress.tokens.token_ids.tolist()
    both = min(len(recorded), len(token_ids))
    at = next((n for n in range(both) if recorded[n] != token_ids[n]), both)

    def there(ids: Sequence[int]) -> str:
        return f"{ids[at]} {decode([ids[at]])!r}" if at < len(ids) else f"ends at {len(ids)} tokens"

    where = f"token {at}{_place(rollout, at)}"
    return Difference(where=where, recorded=there(recorded), replayed=there(token_ids))


def _of_tokens(
    recorded: Rollout, replayed: Rollout, decode: Callable[[Sequence[int]], str]
) -> Difference | None:
    ours, theirs = recorded.progress.tokens.token_ids, replayed.progress.tokens.token_ids
    if np.array_equal(ours, theirs):
        return None
    return token_difference(recorded, theirs.tolist(), decode)


def _of_arrays(recorded: Rollout, replayed: Rollout) -> Difference | None:
    ours, theirs = recorded.progress.tokens, replayed.progress.tokens
    pairs = {
        "mask": (ours.mask_array, theirs.mask_array),
        "version": (ours.version_array, theirs.version_array),
        "log-probability": (ours.logprobs, theirs.logprobs),
    }
    for name, (one, other) in pairs.items():
        unequal = np.flatnonzero(one != other)
        if unequal.size:
            at = int(unequal[0])
            where = f"{name} of token {at}{_place(recorded, at)}"
            return Difference(where=where, recorded=str(one[at]), replayed=str(other[at]))
    return None


def _rest(rollout: Rollout) -> dict[str, Any]:
    """Without tokens (compared by themselves), what the task is made from, seconds, and how much
    the engines computed."""
    rest = rollout.model_dump(mode="json", exclude={"progress", *_ASKED})
    return {**rest, **rollout.progress.model_dump(mode="json", exclude=_COMPUTED)}


def _of_values(recorded: Any, replayed: Any, where: str) -> Difference | None:
    """Depth first, in the order in which fields are written."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            path = f"{where}.{name}" if where else str(name)
            found = _of_values(recorded.get(name), replayed.get(name), path)
            if found is not None:
                return found
        return None
    if isinstance(recorded, list) and isinstance(replayed, list):
        for number, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
            found = _of_values(one, other, f"{where}[{number}]")
            if found is not None:
                return found
        recorded, replayed = len(recorded), len(replayed)
        where = f"number of {where}"
    if recorded == replayed:
        return None
    return Difference(where=where, recorded=str(recorded), replayed=str(replayed))


def _place(rollout: Rollout, token: int) -> str:
    """In words: ` (turn 2, tool)`; nothing where no turn has it."""
    for number, turn in enumerate(rollout.progress.turns):
        if turn.start <= token < turn.stop:
            return f" (turn {number}, {turn.kind})"
    return ""
