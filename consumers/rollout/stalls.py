"""Rollouts that do not move, and an engine that gives nothing to anybody.

at each look: a token, a turn, a tool result since the last one -> its clock starts again
              none for `timeout_s`, and what it waits for is past its own limit -> it stalls: cut
the engine hangs, when it gives no token to anybody while two rollouts stall, at once or one after
the other, or when it does not end a stream that was cut
"""

from collections.abc import Iterable

from consumers.rollout.agents.state import RolloutState
from consumers.rollout.counters import Counters
from consumers.rollout.slots import Held

_TWO = 2
"""One rollout alone may be the reason itself; the second one is a witness."""
_OBEY_S = 30.0
"""For the cut of a rollout that stalls, if that is less than the time after which it does."""


class StallWatch:
    """Clocks of rollouts; the caller says how much time passed.

    Args:
        timeout_s: Without moving for this long, a rollout stalls.
        counters: Of this worker.
    """

    def __init__(self, *, timeout_s: float, counters: Counters) -> None:
        self._timeout_s = timeout_s
        self._counters = counters
        self._num_tokens = 0
        self._witnesses: set[str] = set()
        self._disobeyed = False
        self.token_age_s = 0.0
        """Since anybody was given a token while the engine had something to do."""

    @property
    def engine_hangs(self) -> bool:
        """Whether nobody is given a token any more, or a cut does nothing."""
        return self._disobeyed or len(self._witnesses) >= _TWO

    def look(self, held: Iterable[Held], elapsed_s: float) -> list[Held]:
        """Let time pass, and find the rollouts that stall and have not been cut yet."""
        running = [(one, state) for one in held if (state := one.moving) is not None]
        num_tokens = self._counters.tokens_generated + sum(s.num_new_tokens for _, s in running)
        generates = any(state.request_id is not None for _, state in running)
        self.token_age_s = self.token_age_s + elapsed_s if generates else 0.0
        if num_tokens != self._num_tokens:
            self._num_tokens, self.token_age_s = num_tokens, 0.0
            self._witnesses.clear()
        stalled = []
        for one, state in running:
            if (mark := _mark(state)) != one.mark:
                one.mark, one.still_s = mark, 0.0
                continue
            one.still_s += elapsed_s
            limit_s = self._timeout_s + state.answer_limit_s
            if one.still_s < limit_s:
                continue
            if state.request_id is not None:
                self._witnesses.add(one.rollout_id)
                self._disobeyed |= state.cut_reason is not None
            if state.cut_reason is None:
                one.still_s = limit_s - min(_OBEY_S, self._timeout_s)
                stalled.append(one)
        return stalled


def _mark(state: RolloutState) -> tuple[int, ...]:
    return (
        len(state.token_ids),
        state.num_turns,
        len(state.results),
        len(state.tool_results),
    )
