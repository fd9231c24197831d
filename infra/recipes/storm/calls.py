"""A parser that takes any turn that ends with `</call>` for a call: random text calls tools too."""

import json
from collections.abc import Sequence

from consumers.rollout.parsers.base import ParsedTurn
from infra.recipes.demo.calls import CompactCalls
from infra.recipes.demo.task import CALL_END
from schemas.chat import FunctionCall


class AnyCall(CompactCalls):
    """The calculator's answer has the same number of tokens whatever it was asked, so that the
    length of a rollout says nothing about its content."""

    def parse(self, text: str, token_ids: Sequence[int]) -> ParsedTurn:
        """One call when the turn ends with the closing tag, with all before it."""
        if not text.endswith(CALL_END):
            return ParsedTurn(content=text)
        arguments = json.dumps({"expression": text.removesuffix(CALL_END)})
        return ParsedTurn(content="", calls=(FunctionCall(name="add", arguments=arguments),))
