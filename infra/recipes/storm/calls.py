"""A parser that takes any turn that ends with `</call>` for a call: random text calls tools too."""

from infra.recipes.demo.calls import CompactCalls
from infra.recipes.demo.task import CALL_END


class AnyCall(CompactCalls):
    """The calculator's answer has the same number of tokens whatever it was asked, so that the
    length of a rollout says nothing about its content."""

    def find(self, text: str) -> tuple[str, str] | None:
        """One call when the turn ends with the closing tag, with all before it."""
        return ("", text.removesuffix(CALL_END)) if text.endswith(CALL_END) else None
