"""Swaps must not starve rollouts: who has to gain a token first, and who may be cut at all."""

from collections import OrderedDict
from collections.abc import Iterable

from consumers.rollout.agents.state import CutReason
from consumers.rollout.slots import Held
from schemas.headers import Purpose
from schemas.work import AgentPhase

_REMEMBERED = 512
"""Of one that has been elsewhere for longer, the count begins again."""


def waiting_for_progress(held: Iterable[Held], *, min_progress: int) -> list[Held]:
    """Rollouts resumed since the last swap that have not gained `min_progress` tokens yet.

    One that waits for a tool or a user gains none, and no swap disturbs it.
    """
    return [
        one
        for one in held
        if one.resumed
        and (state := one.interruptible) is not None
        and state.phase is AgentPhase.GENERATING
        and state.num_new_tokens < min_progress
    ]


class FruitlessCuts:
    """Cuts by a sync in a row that found no new token.

    A snapshot carries its own history, wherever it was cut. Rollouts without a first token go back
    as their plain task, so their cuts are remembered here.
    """

    def __init__(self) -> None:
        self._tokenless: OrderedDict[str, int] = OrderedDict()

    def note_tokenless(self, rollout_id: str) -> None:
        """It was cut by a sync before its first token."""
        self._tokenless[rollout_id] = self._tokenless.pop(rollout_id, 0) + 1
        while len(self._tokenless) > _REMEMBERED:
            self._tokenless.popitem(last=False)

    def count(self, held: Held) -> int:
        """Of a rollout that runs here."""
        state = held.state
        if state is None or state.num_new_tokens or state.num_new_turns:
            return 0
        count = self._tokenless.get(held.rollout_id, 0)
        for cut in reversed(state.interruptions):
            if cut.reason != "sync" or cut.at_token != len(state.token_ids):
                break
            count += 1
        return count


def to_cut(
    held: Iterable[Held], fruitless: FruitlessCuts, *, max_fruitless_cuts: int
) -> list[Held]:
    """Training rollouts that a sync takes out of the engine; all others cross it in place."""
    return [
        one
        for one in held
        if one.headers.purpose is Purpose.TRAIN
        and (state := one.interruptible) is not None
        and state.interruptible(CutReason.SYNC)
        and fruitless.count(one) < max_fruitless_cuts
    ]
