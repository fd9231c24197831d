"""The task: add two numbers of two digits by asking a calculator and repeating what it says.

    prompt          A:37+58=?
    first turn      <call>37+58</call>
    calculator      <res>095</res>
    second turn     095<eos>

One symbol is one token. Adding in its head is beyond so small a model; copying is not.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
CALL, CALL_END, RESULT, RESULT_END = "<call>", "</call>", "<res>", "</res>"
VOCABULARY_SIZE = 64
"""A round number, as engines like it; ids without a symbol are `<unused..>`."""
NUM_EVAL = 500
MAX_RESPONSE_TOKENS = 18
"""Call, result and answer take 16."""

_USED = (
    PAD, BOS, EOS, *"0123456789+-=?>:;", CALL, CALL_END, RESULT, RESULT_END, *"ABCST"
)  # fmt: skip
SYMBOLS: tuple[str, ...] = (
    *_USED,
    *(f"<unused{number}>" for number in range(VOCABULARY_SIZE - len(_USED))),
)
TOKEN_IDS: dict[str, int] = {symbol: token_id for token_id, symbol in enumerate(SYMBOLS)}
UNKNOWN_RESULT = "???"


@dataclass(frozen=True, slots=True)
class Problem:
    """Two numbers of at most two digits."""

    left: int
    right: int

    @property
    def expression(self) -> str:
        """`37+58`"""
        return f"{self.left:02d}+{self.right:02d}"

    @property
    def prompt(self) -> str:
        """`A:37+58=?`, nine tokens for every problem."""
        return f"A:{self.expression}=?"

    @property
    def answer(self) -> str:
        """`095`"""
        return f"{self.left + self.right:03d}"


def encode(symbols: Iterable[str]) -> list[int]:
    """Token ids of symbols; a text of plain characters is a sequence of symbols."""
    return [TOKEN_IDS[symbol] for symbol in symbols]


def calculate(expression: str) -> str:
    """The sum in three digits, or `???` for anything but two short numbers around a plus."""
    left, plus, right = expression.partition("+")
    numbers = (left, right)
    if not plus or any(not (0 < len(n) <= 2 and n.isascii() and n.isdigit()) for n in numbers):
        return UNKNOWN_RESULT
    return f"{int(left) + int(right):03d}"


def is_solved(response: Sequence[int], answer: str) -> bool:
    """Whether what follows the last `</res>`, or all of it, is the answer and `<eos>`.

    Args:
        response: Every token after the prompt, the calculator's included.
        answer: Three digits.
    """
    tokens = list(response)
    end = TOKEN_IDS[RESULT_END]
    if end in tokens:
        tokens = tokens[len(tokens) - tokens[::-1].index(end) :]
    return tokens == encode([*answer, EOS])


def split() -> tuple[list[Problem], list[Problem]]:
    """All 10,000 problems as (train, held out): the 500 prompts of lowest sha256 are held out."""
    problems = [Problem(left, right) for left in range(100) for right in range(100)]
    problems.sort(key=lambda problem: hashlib.sha256(problem.prompt.encode()).digest())
    return problems[NUM_EVAL:], problems[:NUM_EVAL]
