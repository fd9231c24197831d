"""Random conversations: an untrained model talks, calls tools and is answered, over many turns.

What a character means is a function of its code, so that a model that knows nothing calls tools
all the time: some open a call, some end the turn with its calls, some end it without any.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from consumers.rollout.agents.base import Agent
from consumers.rollout.interactions.base import Interaction
from consumers.rollout.parsers.base import ParsedTurn
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.errors import ToolError
from consumers.rollout.tools.tool import tool
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, FunctionCall, Speaker
from schemas.work import AgentPhase, Budgets, RolloutTask, Sampling
from tests.factories import models

PRINTABLE = [chr(code) for code in range(32, 127)]
OPENS = {letter: name for name, k in (("ask", 0), ("once", 1)) for letter in PRINTABLE[k::16]}
OPENS |= dict.fromkeys(PRINTABLE[5::48], "nobody")
CLOSES = frozenset(PRINTABLE[2::11])
ENDS = frozenset(PRINTABLE[3::31])
TOOLS = ("ask", "once")
_MOST_CALLS = 3
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,"

Hook = Callable[[str], Awaitable[None]]


def model_folder(folder: Path, *, seed: int = 0, dtype: str = "float32") -> Any:
    """A tiny random model; returns it, as the oracle."""
    return models.build(folder, tied=False, seed=seed, dtype=dtype)


class EveryTurnCalls:
    """`talk(first(second]` calls the tools that the openers stand for; the last closes them."""

    def stop_token_ids(self, renderer: Renderer) -> frozenset[int]:
        """One token per character that ends a turn."""
        return frozenset(renderer._encode("".join(sorted(CLOSES | ENDS))))

    def parse(self, text: str, token_ids: Sequence[int]) -> ParsedTurn:
        """Calls where the turn was closed; one that opens none cannot be read."""
        if text[-1:] not in CLOSES:
            return ParsedTurn(content=text)
        opened = [place for place, letter in enumerate(text) if letter in OPENS][:_MOST_CALLS]
        if not opened:
            return ParsedTurn(content=text, errors=("Error: no call was opened",))
        calls = [
            FunctionCall(
                name=OPENS[text[place]], arguments=json.dumps({"text": text[place + 1 : end]})
            )
            for place, end in zip(opened, [*opened[1:], len(text) - 1], strict=True)
        ]
        return ParsedTurn(content=text[: opened[0]], calls=tuple(calls))


class Talker(Agent):
    """Uses tools, is answered, and ends by itself at a turn that it counts to."""

    uses_tools = True
    interaction = "tests.factories.cuts.conversations:Partner"

    def __init__(self, task: RolloutTask) -> None:
        super().__init__(task)
        self._seen = 0

    def next_phase(self, turn: ParsedTurn) -> AgentPhase:
        self._seen += 1
        if not turn.calls and self._seen % 4 == 0:
            return AgentPhase.TERMINATED
        return super().next_phase(turn)

    def save(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def restore(self, saved: dict[str, Any]) -> None:
        self._seen = saved["seen"]


class Partner(Interaction):
    """Says something that depends on the last turn and on how often it has spoken."""

    hook: Hook | None = None
    """Awaited before each reply."""

    def __init__(self, task: RolloutTask) -> None:
        super().__init__(task)
        self._spoken = 0

    async def reply(self, messages: Sequence[ChatMessage]) -> str | None:
        if Partner.hook is not None:
            await Partner.hook(self.task.rollout_id)
        self._spoken += 1
        if self._spoken > 3:
            return None
        return f"{self._spoken}{words(messages[-1].content, 9)}"

    def save(self) -> dict[str, Any]:
        return {"spoken": self._spoken}

    def restore(self, saved: dict[str, Any]) -> None:
        self._spoken = saved["spoken"]


def words(text: str, longest: int) -> str:
    """At most so many characters, a function of the text."""
    drawn = random.Random(hashlib.sha256(text.encode()).digest())
    return "".join(drawn.choices(_LETTERS, k=drawn.randrange(longest + 1)))


def toolbox(started: Hook) -> ToolBox:
    """Two tools whose answer, failure and duration depend on what they are asked.

    Args:
        started: Awaited with the id of each call that is run.
    """

    async def answer(text: str, call_id: str) -> str:
        await started(call_id)
        drawn = random.Random(hashlib.sha256(f"{text}!".encode()).digest())
        await asyncio.sleep(drawn.choice((0.0, 0.0, 0.001, 0.004)))
        if drawn.random() < 0.1:
            raise ToolError(f"no answer to {len(text)} characters")
        return words(text, 8)

    @tool
    async def ask(text: str, call_id: str) -> str:
        """May be asked again."""
        return await answer(text, call_id)

    @tool(repeatable=False)
    async def once(text: str, call_id: str) -> str:
        """Must not be asked again."""
        return await answer(text, call_id)

    return ToolBox({"ask": ask, "once": once}, timeout_s=30)


def task(
    number: int, *, sampled: bool = False, both: bool = True, longest: int = 180
) -> RolloutTask:
    """The conversation of this number: its prompt, budgets and sampling.

    Args:
        number: Everything is a function of it.
        sampled: Else greedy.
        both: Some of the sampled have top-k and top-p; else at most one of them.
        longest: Response in tokens.
    """
    drawn = random.Random(f"conversation {number}")
    said = "".join(drawn.choices(PRINTABLE, k=drawn.randint(1, 40)))
    sampling = Sampling(temperature=0.0, seed=drawn.getrandbits(32))
    if sampled:
        temperature, top_p = drawn.choice((0.7, 1.0, 1.3)), drawn.choice((1.0, 0.9))
        top_k = drawn.choice((0, 40)) if both or top_p == 1 else 0
        seed = drawn.getrandbits(32)
        sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    return RolloutTask(
        rollout_id=f"{number}.0",
        group=number,
        index=0,
        row=number,
        agent="tests.factories.cuts.conversations:Talker",
        messages=(ChatMessage(role=Speaker.USER, content=said),),
        prompt_hash="0" * 64,
        tools=TOOLS,
        sampling=sampling,
        budgets=Budgets(
            max_prompt_tokens=64,
            max_response_tokens=drawn.randint(longest // 3, longest),
            max_turn_tokens=drawn.randint(16, 64),
            max_turns=drawn.randint(2, 12),
        ),
    )
