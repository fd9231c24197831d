"""A scripted engine, small chat tokenizers and tasks, for tests of whatever drives rollouts."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from consumers.rollout.engines.base import Finish, GenerateRequest, TokenChunk
from infra.text.renderer import Renderer
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.chat import ChatMessage, Speaker
from schemas.work import Budgets, RolloutTask, Sampling

CHATML = r"""{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
{{ '\n<tool_response>\n' -}}
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

COMPACT = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}<res>{{ message.content }}</res>"
    "{%- else %}{{ message.content }}{%- endif %}{%- endfor %}"
)


def chatml_folder(folder: Path, *, template: str = CHATML) -> Path:
    """A model folder with a byte-level BPE tokenizer and a ChatML template with tools.

    `<|endoftext|>` is 0, `<|im_start|>` 1, `<|im_end|>` 2 (end of sequence); 256 bytes and a few
    merges follow, so some texts have more than one tokenisation.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the tool call says the sum is user assistant tool_response\n"] * 8,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    return _save(tokenizer, folder, eos="<|im_end|>", pad="<|endoftext|>", template=template)


def compact_folder(folder: Path) -> Path:
    """A model folder with one token per character, tags as tokens, and contents just joined."""
    special = ["<pad>", "<bos>", "<eos>"]
    tags = ["<call>", "</call>", "<res>", "</res>"]
    words = [*special, *"0123456789+-=?>:;", *tags, *"ABCST"]
    tokenizer = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in tags])
    return _save(tokenizer, folder, eos="<eos>", pad="<pad>", template=COMPACT)


def chatml_renderer(folder: Path) -> Renderer:
    """The renderer of `chatml_folder`."""
    return Renderer.load(chatml_folder(folder))


def _save(tokenizer: Tokenizer, folder: Path, *, eos: str, pad: str, template: str) -> Path:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=pad)
    fast.chat_template = template
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return folder


def make_task(rollout_id: str = "3.1", **changes: Any) -> RolloutTask:
    """A small task of the `tool` agent; budgets and sampling by keyword, too."""
    group, _, index = rollout_id.partition(".")
    budgets = {
        "max_prompt_tokens": 1000,
        "max_response_tokens": 2000,
        "max_turn_tokens": 1000,
        "max_turns": 8,
        "min_tokens": 0,
    }
    for name in tuple(changes):
        if name in budgets:
            budgets[name] = changes.pop(name)
    values: dict[str, Any] = {
        "rollout_id": rollout_id,
        "group": int(group.removeprefix("eval")),
        "index": int(index),
        "row": 0,
        "agent": "tool",
        "messages": (ChatMessage(role=Speaker.USER, content="what is 3+4?"),),
        "prompt_hash": "0" * 64,
        "sampling": Sampling(seed=7),
        "budgets": Budgets(**budgets),
    }
    return RolloutTask(**(values | changes))


Script = Callable[[Sequence[int]], int]
"""The next token as a function of all previous ones: a resumed rollout goes on the same way."""


def talk(renderer: Renderer, turns: Sequence[str | Sequence[int]], *, opening: str) -> Script:
    """Says the turns in order, one per opening of an assistant turn; text is tokenised as it is.

    Which turn it is, and how far it has got, is read from the tokens alone.
    """
    start = renderer._encode(opening)
    said = [renderer._encode(turn) if isinstance(turn, str) else list(turn) for turn in turns]

    def next_token(token_ids: Sequence[int]) -> int:
        tokens = list(token_ids)
        num_openings, at, end = 0, -1, 0
        while start[0] in tokens[at + 1 :]:
            at = tokens.index(start[0], at + 1)
            if tokens[at : at + len(start)] == start:
                num_openings, end = num_openings + 1, at + len(start)
        return said[num_openings - 1][len(tokens) - end]

    return next_token


def logprob_of(token_ids: Sequence[int]) -> float:
    """Logprob that the scripted engine reports for the last token: a function of the sequence."""
    digest = hashlib.sha256(",".join(map(str, token_ids)).encode()).digest()
    return -int.from_bytes(digest[:4], "big") / 2**31


class ScriptedEngine:
    """Generates what a script says, and can be made to stand still anywhere.

    Args:
        script: The next token, from all previous ones.
        chunk: Tokens per chunk.
        pause_at: Sequence lengths at which generation stands still until it is interrupted.
        version: Policy version served at first.
        delay_s: Before each chunk.
        num_cached: Tokens of every request that it reports as cached, at most all but the last.
    """

    def __init__(
        self,
        script: Script,
        *,
        chunk: int = 1,
        pause_at: Collection[int] = (),
        version: int = 0,
        delay_s: float = 0.0,
        num_cached: int = 0,
    ) -> None:
        self.script = script
        self.chunk = chunk
        self.pause_at = set(pause_at)
        self.version = version
        self.delay_s = delay_s
        self.num_cached = num_cached
        self.requests: list[GenerateRequest] = []
        self.paused = asyncio.Event()
        self.failure: Exception | None = None
        self._running: dict[str, asyncio.Event] = {}

    async def start(self, weights: PreparedWeights) -> None:
        self.version = weights.version

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        self.requests.append(request)
        assert request.max_tokens > 0
        assert request.request_id not in self._running
        stop = self._running[request.request_id] = asyncio.Event()
        token_ids = list(request.token_ids)
        limit = len(token_ids) + request.max_tokens
        cached = min(self.num_cached, len(token_ids) - 1)
        try:
            while True:
                await asyncio.sleep(self.delay_s)
                if self.failure is not None:
                    raise self.failure
                if len(token_ids) in self.pause_at:
                    self.paused.set()
                    await stop.wait()
                if stop.is_set():
                    yield Finish(reason="interrupted", num_cached_tokens=cached)
                    return
                chunk, ended = self._chunk(token_ids, limit, request.stop_token_ids)
                yield chunk
                if ended:
                    last = token_ids[-1]
                    reason = "stop" if last in request.stop_token_ids else "length"
                    yield Finish(reason=reason, num_cached_tokens=cached)
                    return
        finally:
            del self._running[request.request_id]

    def _chunk(
        self, token_ids: list[int], limit: int, stops: Collection[int]
    ) -> tuple[TokenChunk, bool]:
        start = len(token_ids)
        logprobs: list[float] = []
        ended = False
        while not ended and len(logprobs) < self.chunk:
            token_ids.append(self.script(token_ids))
            logprobs.append(logprob_of(token_ids))
            ended = token_ids[-1] in stops or len(token_ids) == limit
            if len(token_ids) in self.pause_at:
                # An interrupt that meets the last token reports it, and not how the turn ended.
                ended = False
                break
        chunk = TokenChunk(
            token_ids=tuple(token_ids[start:]),
            logprobs=tuple(logprobs),
            policy_version=self.version,
        )
        return chunk, ended

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        for request_id, stop in self._running.items():
            if request_ids is None or request_id in request_ids:
                stop.set()

    async def load_weights(self, weights: PreparedWeights) -> None:
        self.version = weights.version

    def serving(self) -> ServedWeights:
        return ServedWeights(version=self.version, fingerprint=f"scripted-{self.version}")

    async def close(self) -> None:
        await self.interrupt()
