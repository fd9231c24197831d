"""Messages in, token ids out, through the model's own tokenizer and chat template."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from infra.roles.errors import ConfigError
from infra.text.errors import TemplateRefused
from infra.text.template import ANSWER, ChatTemplate
from schemas.chat import ChatMessage, Speaker, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_REMEMBERED = 128
"""Prompts whose tokens are kept: the members of a group have the same."""


class Renderer:
    """Text becomes tokens here, once: a conversation grows by deltas and is never read again.

    Reads `tokenizer.json`, `tokenizer_config.json`, the chat template, and the end-of-sequence
    ids of the model folder. Runs no code from it and needs no torch.
    """

    eos_token_ids: frozenset[int]
    """Tokens that end an assistant turn."""
    vocab_size: int
    """Tokens that the tokenizer knows, added ones included."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", *, eos_token_ids: frozenset[int]
    ) -> None:
        self._backend: Any = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._template = ChatTemplate(tokenizer.apply_chat_template)
        self._prompts: dict[tuple[str, ...], list[int]] = {}
        self.eos_token_ids = eos_token_ids
        self.vocab_size = len(tokenizer)
        control = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]
        self._control = re.compile("|".join(map(re.escape, control)) or "(?!)")

    @classmethod
    def load(cls, model_folder: Path) -> Self:
        """Read a model folder.

        Raises:
            ConfigError: There is none, or it has no tokenizer.json, no chat template, or no
                end-of-sequence token.
        """
        from transformers import PreTrainedTokenizerFast

        if not model_folder.is_dir():
            raise ConfigError(
                f"no model folder {model_folder} (from {Path.cwd()})",
                hint="relative paths start where the command runs; workers need the folder too",
            )
        if not (model_folder / "tokenizer.json").is_file():
            raise ConfigError(
                f"{model_folder} has no tokenizer.json",
                hint="point [model] path at a Hugging Face folder with a fast tokenizer",
            )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(model_folder), local_files_only=True
        )
        if not tokenizer.chat_template:
            raise ConfigError(
                f"{model_folder} has no chat template",
                hint="add chat_template.jinja, or use the instruction-tuned model",
            )
        eos_token_ids = _eos_token_ids(model_folder, tokenizer.eos_token_id)
        if not eos_token_ids:
            raise ConfigError(
                f"{model_folder} names no end-of-sequence token",
                hint="set eos_token in tokenizer_config.json",
            )
        return cls(tokenizer, eos_token_ids=eos_token_ids)

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        """Token ids of the conversation with the opening of an assistant turn.

        Raises:
            TemplateRefused: The template raised on these messages.
        """
        key = tuple(part.model_dump_json() for part in (*messages, *tools))
        token_ids = self._prompts.get(key)
        if token_ids is None:
            token_ids = self._encode(self._template.render(messages, tools))
            self._prompts[key] = token_ids
            while len(self._prompts) > _REMEMBERED:
                del self._prompts[next(iter(self._prompts))]
        return list(token_ids)

    def delta(self, new_messages: Sequence[ChatMessage], *, ended_by: int | None) -> list[int]:
        """Token ids that follow a finished assistant turn.

        First what the template writes at the end of the turn (for ChatML `<|im_end|>` and a
        newline), less its first token if that was sampled; then the messages; then the opening
        of the next turn.

        Args:
            new_messages: Tool results or user messages.
            ended_by: The stop token that was sampled last, or None if none was.

        Raises:
            TemplateRefused: The template raised on these messages.
        """
        token_ids = self._encode(self._template.continuation(new_messages))
        if ended_by is not None and token_ids[:1] == [ended_by]:
            return token_ids[1:]
        return token_ids

    def answer(self, text: str) -> list[int]:
        """Token ids of a whole assistant turn that says `text`, with the token that ends it."""
        end = self.delta([ChatMessage(role=Speaker.USER, content=text)], ended_by=None)[:1]
        ended_by = end[0] if end and end[0] in self.eos_token_ids else min(self.eos_token_ids)
        return [*self._encode(text), ended_by]

    def decode(self, token_ids: Sequence[int], *, skip_special: bool) -> str:
        """Text of the tokens, as they are: no spaces are cleaned up."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special)
        return text

    def plain(self, text: str) -> str:
        """Text from outside with its control tokens broken, so that it cannot end a turn."""
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def check(self, roles: Sequence[Speaker] = (Speaker.TOOL, Speaker.USER)) -> None:
        """Prove that the template is append-only for messages of these roles.

        Three turns are rendered at once and turn by turn; text and tokens must be the same.

        Raises:
            ConfigError: They differ, or the template knows no such role.
        """
        for role in roles:
            try:
                whole = self._template.check(role)
            except TemplateRefused as error:
                raise ConfigError(
                    f"the chat template cannot continue a conversation with {role} messages: "
                    f"{error}",
                    hint="use a model whose template knows them, or the single_turn agent",
                ) from error
            self._check_joins(role, whole)

    def _check_joins(self, role: Speaker, whole: str) -> None:
        """Tokenising the pieces must give the tokens of the whole."""
        pieces: list[int] = []
        for piece in re.split(f"({ANSWER}[0-9])", whole):
            pieces += self._encode(piece)
        if pieces != self._encode(whole):
            raise ConfigError(
                f"the tokenizer joins text across the turns of {role} messages",
                hint="its tokens at a turn's end depend on what follows; use a tokenizer with "
                "special tokens around turns",
            )

    def _encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)


def _eos_token_ids(model_folder: Path, of_tokenizer: int | None) -> frozenset[int]:
    found = set() if of_tokenizer is None else {of_tokenizer}
    for name in ("generation_config.json", "config.json"):
        path = model_folder / name
        if not path.is_file():
            continue
        value: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)
