"""A tool-call parser of one's own: `<call>37+58</call>` calls `add` with the text between the tags.

Named in the recipe by its import path. A parser says which tokens complete a call, and reads
finished turns; that is all.
"""

import json
from collections.abc import Sequence

from consumers.rollout.parsers.base import ParsedTurn
from infra.recipes.demo.task import CALL, CALL_END, TOKEN_IDS
from infra.text.renderer import Renderer
from schemas.chat import FunctionCall


class CompactCalls:
    """At most one call, at the end of a turn: the closing tag ends it."""

    def stop_token_ids(self, renderer: Renderer) -> frozenset[int]:
        """`</call>`"""
        return frozenset({TOKEN_IDS[CALL_END]})

    def parse(self, text: str, token_ids: Sequence[int]) -> ParsedTurn:
        """The call behind the first `<call>`, if the turn ends with `</call>`."""
        found = self.find(text)
        if found is None:
            return ParsedTurn(content=text)
        content, expression = found
        arguments = json.dumps({"expression": expression})
        return ParsedTurn(content=content, calls=(FunctionCall(name="add", arguments=arguments),))

    def find(self, text: str) -> tuple[str, str] | None:
        """What stands before the call, and what is asked; None where there is none."""
        content, opened, rest = text.partition(CALL)
        if not opened or not rest.endswith(CALL_END):
            return None
        return content, rest.removesuffix(CALL_END)
