"""The supervised warm-up: a model that knows how to use the calculator and hardly ever does.

Phase 1 shows correct calls and random answers, half and half, until the skill is there. Phase 2
shows almost only random answers, until the habit of calling is nearly gone. What is left for
reinforcement learning is to find out that calling pays.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infra.recipes.demo.sampling import play
from infra.recipes.demo.task import (
    BOS,
    CALL,
    CALL_END,
    EOS,
    PAD,
    RESULT,
    RESULT_END,
    TOKEN_IDS,
    VOCABULARY_SIZE,
    Problem,
    encode,
)
from infra.roles.errors import WarrenError

logger = logging.getLogger(__name__)

BATCH = 64
SKILL = 0.20
"""Phase 1 ends when this share of problems is solved."""
HABIT = (0.045, 0.07)
"""Phase 2 ends when the share of solved problems is between these."""
MAX_STEPS = 400
"""Of one phase; an order of magnitude more than it takes."""
_IGNORED = -100


class WarmupFailed(WarrenError):
    """The warm-up did not reach its marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """How the warm-up went."""

    skill_steps: int
    habit_steps: int
    solved: float
    """Share of training problems solved at its end, measured on 512."""
    called: float
    """Share of them in which the calculator was asked."""


def build_model(
    seed: int,
    *,
    hidden_size: int = 128,
    intermediate_size: int = 384,
    num_layers: int = 2,
    num_heads: int = 4,
) -> Any:
    """A Llama over the task's tokens with random float32 weights, 443,008 of them by default."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=hidden_size // num_heads,
        vocab_size=VOCABULARY_SIZE,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=TOKEN_IDS[BOS],
        eos_token_id=TOKEN_IDS[EOS],
        pad_token_id=TOKEN_IDS[PAD],
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).float()


class Teacher:
    """Supervised steps on demonstrations of the task."""

    def __init__(self, model: Any, problems: Sequence[Problem], seed: int) -> None:
        self.model, self.problems = model, problems
        self.choice = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.optimizer: Any = None
        self.peak = 0.0
        self.steps = 0

    def begin(self, lr: float) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.peak, self.steps = lr, 0

    def teach(self, num_steps: int, *, direct: float) -> None:
        """Steps on batches in which a share `direct` answers at random without a call."""
        for _ in range(num_steps):
            self.steps += 1
            for group in self.optimizer.param_groups:
                group["lr"] = self.peak * min(1.0, self.steps / 10)
            chosen = self.choice.choices(self.problems, k=BATCH)
            demos = [demonstration(problem, self.choice, direct=direct) for problem in chosen]
            loss = _loss(self.model, demos)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    def measure(self, num_problems: int) -> tuple[float, float]:
        """Shares of sampled problems that are solved, and in which the calculator is asked."""
        played = play(self.model, self.choice.sample(self.problems, num_problems), self.noise)
        solved = sum(game.solved for game in played) / num_problems
        called = sum(game.called for game in played) / num_problems
        logger.info("warm-up step %d: solved %.3f, called %.3f", self.steps, solved, called)
        return solved, called


def warm_up(model: Any, problems: Sequence[Problem], *, seed: int) -> Warmed:
    """Train in place.

    Raises:
        WarmupFailed: A phase did not reach its mark in `MAX_STEPS`.
    """
    teacher = Teacher(model, problems, seed)
    teacher.begin(lr=2e-3)
    solved = 0.0
    while solved < SKILL:
        _check_steps(teacher, f"solved {solved:.3f}, wanted {SKILL}")
        teacher.teach(10, direct=0.5)
        solved, _ = teacher.measure(128)
    skill_steps = teacher.steps

    teacher.begin(lr=5e-4)
    teacher.teach(12, direct=0.9)
    solved, called = teacher.measure(512)
    while not HABIT[0] <= solved <= HABIT[1]:
        _check_steps(teacher, f"solved {solved:.3f}, wanted {HABIT[0]} to {HABIT[1]}")
        teacher.teach(3, direct=0.95 if solved > HABIT[1] else 0.75)
        solved, called = teacher.measure(512)
    return Warmed(skill_steps=skill_steps, habit_steps=teacher.steps, solved=solved, called=called)


def _check_steps(teacher: Teacher, state: str) -> None:
    if teacher.steps >= MAX_STEPS:
        raise WarmupFailed(
            f"the warm-up is stuck after {teacher.steps} steps: {state}", hint="try another seed"
        )


def demonstration(
    problem: Problem, choice: random.Random, *, direct: float
) -> tuple[list[int], list[int]]:
    """One conversation as (tokens, labels); only what the model should write has a label."""
    prompt = encode(problem.prompt)
    if choice.random() < direct:
        turn = encode([*f"{choice.randrange(1000):03d}", EOS])
        return prompt + turn, [_IGNORED] * len(prompt) + turn
    call = encode([CALL, *problem.expression, CALL_END])
    result = encode([RESULT, *problem.answer, RESULT_END])
    answer = encode([*problem.answer, EOS])
    return (
        prompt + call + result + answer,
        [_IGNORED] * len(prompt) + call + [_IGNORED] * len(result) + answer,
    )


def _loss(model: Any, demos: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    longest = max(len(tokens) for tokens, _ in demos)
    ids = torch.tensor([t + [TOKEN_IDS[PAD]] * (longest - len(t)) for t, _ in demos])
    labels = torch.tensor([known + [_IGNORED] * (longest - len(known)) for _, known in demos])
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCABULARY_SIZE), labels[:, 1:].reshape(-1), ignore_index=_IGNORED
    )
