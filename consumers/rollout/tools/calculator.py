"""Arithmetic without evaluation: a parser of its own, bounded in every direction."""

import math
import operator
import re
from collections.abc import Callable

from consumers.rollout.tools.errors import ToolError
from consumers.rollout.tools.tool import tool
from infra.roles.registry import register

MAX_CHARS = 500
MAX_DEPTH = 40
MAX_BITS = 2048
"""Of an integer: some 600 digits."""

Number = int | float

_TOKEN = re.compile(
    r"\s*(?:([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)|(\*\*|//|[-+*/%^()]))"
)
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})  # noqa: RUF001
_SUMS: dict[str, Callable[[Number, Number], Number]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[Number, Number], Number]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


@register("tool", "calculator")
@tool
def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, for example "(3 + 4) * 12".
    """
    return _show(calculate(expression))


def calculate(expression: str) -> Number:
    """Value of an expression; integers stay exact.

    Raises:
        ToolError: It is no arithmetic, too long, too deep, or its value is too large.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression is longer than {MAX_CHARS} characters")
    parser = _Parser(_tokens(expression.translate(_SPELLINGS)))
    try:
        value = parser.sum(0)
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except OverflowError as error:
        raise ToolError("the value is too large") from error
    if parser.next is not None:
        raise ToolError(f"unexpected {parser.next!r} in the expression")
    return value


def _tokens(expression: str) -> list[str]:
    found: list[str] = []
    position = 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ToolError(f"unexpected {text[position:].strip()[:20]!r} in the expression")
        found.append(match[1] or match[2])
        position = match.end()
    return found


class _Parser:
    """Recursive descent: sum > product > sign > power > atom, as in Python."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        token = self.next
        if token is None:
            raise ToolError("the expression ends too early")
        self._at += 1
        return token

    def sum(self, depth: int) -> Number:
        return self._left_to_right(_SUMS, lambda: self._product(depth))

    def _product(self, depth: int) -> Number:
        return self._left_to_right(_PRODUCTS, lambda: self._sign(depth))

    def _left_to_right(
        self,
        operators: dict[str, Callable[[Number, Number], Number]],
        operand: Callable[[], Number],
    ) -> Number:
        value = operand()
        while self.next in operators:
            apply = operators[self._take()]
            value = _bounded(apply(value, operand()))
        return value

    def _sign(self, depth: int) -> Number:
        _check_depth(depth)
        if self.next in ("+", "-"):
            sign = self._take()
            value = self._sign(depth + 1)
            return -value if sign == "-" else value
        return self._power(depth)

    def _power(self, depth: int) -> Number:
        base = self._atom(depth)
        if self.next not in ("**", "^"):
            return base
        self._take()
        return _power(base, self._sign(depth + 1))

    def _atom(self, depth: int) -> Number:
        token = self._take()
        if token == "(":
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ToolError("a parenthesis is not closed")
            return value
        if not token[0].isdigit() and token[0] != ".":
            raise ToolError(f"unexpected {token!r} in the expression")
        return _bounded(int(token) if token.isdigit() else float(token))


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ToolError(f"the expression is nested deeper than {MAX_DEPTH}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if base.bit_length() * exponent > 2 * MAX_BITS and abs(base) > 1:
            raise ToolError("the value is too large")
        return _bounded(base**exponent)
    value = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise ToolError("a negative number has no real root")
    return _bounded(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ToolError("the value is too large")
    elif not math.isfinite(value):
        raise ToolError("the value is too large")
    return value


def _show(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return f"{value:.12g}"
