"""Random places to cut a conversation at, and what they came to."""

import random
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from consumers.rollout.agents.state import CutReason
from schemas.work import AgentPhase, Rollout, RolloutTask, Snapshot, Turn, TurnKind
from tests.factories.cuts.conversations import OPENS
from tests.factories.cuts.cutting import Cut, Played
from tests.factories.models import tokenizer

_OPENERS = frozenset(tokenizer().convert_tokens_to_ids(list(OPENS)))
_ANYWHERE = tuple(CutReason)
_NO_SYNC = (CutReason.LEAVE, CutReason.INTERVAL, CutReason.STALL)


def random_cuts(
    whole: Rollout, drawn: random.Random, *, most: int = 5, live: bool = True
) -> list[Cut]:
    """One to `most` cuts in the order in which the conversation comes to them.

    Args:
        whole: The uncut conversation.
        drawn: Decides.
        most: Cuts at most.
        live: Some cuts may interrupt a running request, so that where they take effect is open.
    """
    turns = [turn for turn in whole.progress.turns if turn.kind is TurnKind.ASSISTANT]
    cuts = [_random_cut(whole, turns, drawn, live) for _ in range(drawn.randint(1, most))]
    return sorted(cuts, key=lambda cut: (cut.length, cut.call is not None))


def _random_cut(whole: Rollout, turns: list[Turn], drawn: random.Random, live: bool) -> Cut:
    turn = drawn.choice(turns)
    kind = drawn.choice(("first", "start", "any", "any", "any", "call", "call", "end", "answer"))
    if kind == "answer" and turn is not turns[-1]:
        return Cut(length=turn.stop, call=drawn.randrange(3), reason=drawn.choice(_NO_SYNC))
    opened = _opened_at(whole, turn)
    if kind == "first":
        length = turns[0].start
    elif kind == "start":
        length = turn.start
    elif kind == "end":
        length = turn.stop
    elif kind == "call" and opened is not None:
        length = drawn.randint(opened, turn.stop)
    else:
        length = drawn.randint(turn.start, turn.stop)
    return Cut(length=length, live=live and drawn.random() < 0.3, reason=drawn.choice(_ANYWHERE))


def _opened_at(whole: Rollout, turn: Turn) -> int | None:
    token_ids = whole.progress.tokens.token_ids
    return next((n + 1 for n in range(turn.start, turn.stop) if token_ids[n] in _OPENERS), None)


def place_of(work: Snapshot | RolloutTask) -> str:
    """In words, where something was cut that was handed over."""
    if isinstance(work, RolloutTask):
        return "before the first token"
    if work.phase is AgentPhase.PROCESSING_TOOLS:
        return "while tools ran"
    if work.phase is AgentPhase.INTERACTING:
        return "while a partner was asked"
    said = work.progress.tokens.token_ids[work.turn_start :].tolist()
    if not said:
        return "before a later turn"
    return "inside a call" if _OPENERS & set(said) else "inside a turn"


def summary(what: str, played: Iterable[Played], *, redrawn: int = 0) -> str:
    """One line: cases, cuts by place, handovers."""
    played = list(played)
    places = Counter(place_of(work) for one in played for work in one.handed)
    handovers = sum(left != taken for one in played for left, taken in pairwise(one.workers))
    tokens = sum(one.rollout.progress.tokens.num_sampled for one in played)
    num_cut = sum(bool(one.handed) for one in played)
    calls = sum(len(one.rollout.progress.tool_results) for one in played)
    shown = ", ".join(f"{count} {place}" for place, count in places.most_common())
    return (
        f"{what}: {len(played)} cases ({redrawn} drawn anew for ties), {tokens} tokens, "
        f"{calls} tool calls · {places.total()} cuts in {num_cut} of them: {shown} · "
        f"{handovers} handovers"
    )
