"""The task played in one process: what the warm-up measures itself with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infra.recipes.demo.task import (
    CALL,
    CALL_END,
    EOS,
    MAX_RESPONSE_TOKENS,
    RESULT,
    RESULT_END,
    SYMBOLS,
    TOKEN_IDS,
    Problem,
    calculate,
    encode,
    is_solved,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One conversation."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    """Every token after the prompt."""
    sampled: tuple[bool, ...]
    """Of each response token: whether the model wrote it."""
    logprobs: tuple[float, ...]
    """0.0 where it did not."""
    solved: bool

    @property
    def called(self) -> bool:
        """Whether the calculator was asked."""
        return not all(self.sampled)


class _Row:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.response: list[int] = []
        self.sampled: list[bool] = []
        self.logprobs: list[float] = []
        self.forced: list[int] = []
        self.called = False
        self.done = False

    def take(self, token: int, logprob: float) -> int:
        """Append the forced token if there is one, else the sampled one."""
        if self.done:
            return TOKEN_IDS[EOS]
        own = not self.forced
        token = token if own else self.forced.pop(0)
        self.response.append(token)
        self.sampled.append(own)
        self.logprobs.append(logprob if own else 0.0)
        if own and token in (TOKEN_IDS[EOS], TOKEN_IDS[CALL_END]):
            self._end_turn(token)
        return token

    def _end_turn(self, token: int) -> None:
        """The first call is answered; whatever else ends a turn ends the conversation."""
        text = "".join(SYMBOLS[token] for token in self.response[:-1])
        _, opened, expression = text.partition(CALL)
        if token == TOKEN_IDS[CALL_END] and opened and not self.called:
            self.called = True
            self.forced = encode([RESULT, *calculate(expression), RESULT_END])
        else:
            self.done = True


@torch.inference_mode()
def play(model: Any, problems: Sequence[Problem], generator: torch.Generator) -> list[Played]:
    """Let the model solve problems at temperature 1, all of them in step.

    Args:
        model: A causal language model of `transformers`, on the CPU.
        problems: One conversation each.
        generator: Source of the sampling noise.
    """
    rows = [_Row(problem) for problem in problems]
    ids = torch.tensor([encode(problem.prompt) for problem in problems])
    cache = None
    for _ in range(MAX_RESPONSE_TOKENS):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        logprobs = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
        chosen = logprobs.gather(1, drawn)[:, 0].tolist()
        tokens = [
            row.take(token, logprob)
            for row, token, logprob in zip(rows, drawn[:, 0].tolist(), chosen, strict=True)
        ]
        if all(row.done for row in rows):
            break
        ids = torch.tensor(tokens)[:, None]
    return [
        Played(
            prompt=tuple(encode(row.problem.prompt)),
            response=tuple(row.response),
            sampled=tuple(row.sampled),
            logprobs=tuple(row.logprobs),
            solved=is_solved(row.response, row.problem.answer),
        )
        for row in rows
    ]
