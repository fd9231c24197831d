"""A record beside what was generated anew, turn by turn."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from consumers.rollout.replay.compare import token_difference
from consumers.rollout.replay.text import counted
from infra.observe.harmless import harmless
from schemas.work import Rollout, Turn

Decode = Callable[[Sequence[int]], str]

_ROOM = 84


def side_by_side(recorded: Rollout, fresh: Rollout, decode: Decode) -> str:
    """Turns of equal number below each other, parted where their tokens do."""
    lines = []
    turns = zip_longest(recorded.progress.turns, fresh.progress.turns)
    for number, (one, other) in enumerate(turns):
        lines += _turn(number, _Side(recorded, one, decode), _Side(fresh, other, decode))
    return "\n".join([*lines, "", *_ends(recorded, fresh, decode)]) + "\n"


def first_differing(recorded: Rollout, fresh: Rollout) -> int | None:
    """The first token in which they differ, or where one ends; None where they are equal."""
    ours, theirs = recorded.progress.tokens.token_ids, fresh.progress.tokens.token_ids
    both = min(len(ours), len(theirs))
    unequal = np.flatnonzero(ours[:both] != theirs[:both])
    if unequal.size:
        return int(unequal[0])
    return None if len(ours) == len(theirs) else both


class _Side:
    """One of the two, in one turn; empty where it has no such turn."""

    def __init__(self, rollout: Rollout, turn: Turn | None, decode: Decode) -> None:
        tokens = rollout.progress.tokens
        start, stop = (turn.start, turn.stop) if turn else (0, 0)
        self.kind = turn.kind.value if turn else ""
        self.ids = tokens.token_ids[start:stop].tolist()
        sampled = sorted({int(v) for v in tokens.version_array[start:stop] if v >= 0})
        self.versions = " ".join(f"v{version}" for version in sampled)
        self.decode = decode

    def text(self, begin: int, stop: int | None = None) -> str:
        return harmless(repr(self.decode(self.ids[begin:stop])), limit=_ROOM)


def _turn(number: int, ours: _Side, theirs: _Side) -> list[str]:
    pairs = zip(ours.ids, theirs.ids, strict=False)
    both = min(len(ours.ids), len(theirs.ids))
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), both)
    kinds = dict.fromkeys(filter(None, (ours.kind, theirs.kind)))
    head = f"turn {number} · {' / '.join(kinds)} · "
    if ours.ids == theirs.ids:
        return [f"{head}equal, {counted(same, 'token')}", f"  both      {ours.text(0)}"]
    lines = [f"{head}{same} of {len(ours.ids)} and {len(theirs.ids)} tokens are the same"]
    lines += [f"  both      {ours.text(0, same)}"] if same else []
    for name, side in (("recorded", ours), ("fresh", theirs)):
        rest = side.text(same) if side.ids[same:] else "ends here" if side.kind else "no such turn"
        lines.append(f"  {name:<8} >{rest}{'  ' + side.versions if side.versions else ''}")
    return lines


def _ends(recorded: Rollout, fresh: Rollout, decode: Decode) -> list[str]:
    at, gap = first_differing(recorded, fresh), logprob_gap(recorded, fresh)
    if at is None:
        lines = ["every token is the same"]
    else:
        found = token_difference(recorded, fresh.progress.tokens.token_ids.tolist(), decode)
        lines = [
            f"first differing token: {found.where}",
            f"  recorded  {harmless(found.recorded)}",
            f"  fresh     {harmless(found.replayed)}",
        ]
    if gap is not None:
        where = "" if at is None else " before it"
        lines.append(f"log-probabilities of the sampled tokens{where} differ by at most {gap:.2g}")
    return lines


def logprob_gap(recorded: Rollout, fresh: Rollout) -> float | None:
    """Largest difference over the sampled tokens that both have before they part."""
    ours, theirs = recorded.progress.tokens, fresh.progress.tokens
    stop = first_differing(recorded, fresh)
    sampled = ours.mask_array[:stop] == 1
    if not sampled.any():
        return None
    return float(np.abs(ours.logprobs[:stop] - theirs.logprobs[:stop])[sampled].max())
