"""What a tool-call parser is: hostile text in, calls and errors out, never an exception."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.text.renderer import Renderer
from schemas.chat import FunctionCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """What an assistant turn says and asks for."""

    content: str
    """The text outside the calls."""
    calls: tuple[FunctionCall, ...] = ()
    """In the order they were written; run concurrently."""
    errors: tuple[str, ...] = ()
    """One text for the model per call that cannot be understood; answered after the calls."""


class ToolParser(Protocol):
    """Finds tool calls in an assistant turn.

    Built without arguments, once per worker; keeps no state between turns.
    """

    def stop_token_ids(self, renderer: Renderer) -> frozenset[int]:
        """Tokens that end a turn because a call is complete; they stay part of the turn."""

    def parse(self, text: str, token_ids: Sequence[int]) -> ParsedTurn:
        """Judge a whole turn, however often it was cut on its way.

        Args:
            text: The decoded turn with special tokens, without the end-of-sequence token that
                ended it; a stop token of this parser is still there.
            token_ids: All sampled tokens of the turn, whatever ended it included.
        """
