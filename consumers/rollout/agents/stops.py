"""What ends an assistant turn, judged on its tokens alone: not on chunks, requests or cuts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"
"""What decoding makes of the bytes of a character whose rest has not come."""
_MARGIN = 4
"""Tokens before, for decoders that treat the first one differently (a leading space, say)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStops:
    """What ends the turns of one rollout; works with any engine.

    Attributes:
        token_ids: Each ends a turn.
        strings: Each ends a turn with the token that completes it, wherever it began.
        min_tokens: No token among the first so many of a turn ends it.
        decode: Text of tokens, special ones included.
    """

    token_ids: frozenset[int]
    strings: tuple[str, ...] = ()
    min_tokens: int = 0
    decode: Decode

    def end(self, token_ids: Sequence[int], *, start: int, begin: int) -> int | None:
        """Length of the sequence with the token that ends its last turn, or None.

        Args:
            token_ids: Of the whole rollout so far.
            start: Where the turn begins.
            begin: First token that may have ended it; those before are known not to.
        """
        begin = max(begin, start + self.min_tokens)
        if begin >= len(token_ids):
            return None
        window = partial(self._text, token_ids, start)
        # a string that is complete after some token is still there after the last one
        there = [one for one in self.strings if one in window(one, begin, len(token_ids))]
        for position in range(begin, len(token_ids)):
            completed = any(_completes(window, one, position) for one in there)
            if completed or token_ids[position] in self.token_ids:
                return position + 1
        return None

    def _text(
        self, token_ids: Sequence[int], start: int, string: str, first: int, stop: int
    ) -> str:
        """Up to `stop`, of every token of the turn that an occurrence ending in token `first` or
        later can touch: each brings at least one byte."""
        reach = len(string.encode()) + _MARGIN
        return self.decode(token_ids[max(start, first - reach) : stop])


def _completes(window: Callable[[str, int, int], str], string: str, position: int) -> bool:
    """Whether an occurrence ends in the text that the token at this position brings."""
    text = window(string, position, position + 1)
    before = window(string, position, position).rstrip(_UNFINISHED)
    at = text.rfind(string)
    return at >= 0 and at + len(string) > len(before)
