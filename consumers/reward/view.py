"""What a reward function sees of a rollout. Plain Python, so that scoring starts fast."""

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any


class RolloutView:
    """One complete rollout, read-only.

    Args:
        raw: The JSON of `schemas.work.Rollout`, decoded.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._progress: Mapping[str, Any] = raw["progress"]
        self._tokens: Mapping[str, Any] = self._progress["tokens"]

    @property
    def rollout_id(self) -> str:
        """`<group>.<index>`"""
        return str(self._raw["rollout_id"])

    @property
    def purpose(self) -> str:
        """`train` or `eval`."""
        return str(self._raw["purpose"])

    @property
    def status(self) -> str:
        """`completed`, or `truncated` by a budget."""
        return str(self._raw["status"])

    @property
    def finish_reason(self) -> str:
        """`stop`, `length`, `max_turns`, ..."""
        return str(self._raw["finish_reason"])

    @property
    def data_source(self) -> str:
        """Of the dataset row."""
        return str(self._raw["reward_data"]["data_source"])

    @property
    def ground_truth(self) -> Any:
        """Of the dataset row."""
        return self._raw["reward_data"]["ground_truth"]

    @property
    def extra_info(self) -> dict[str, Any]:
        """Of the dataset row."""
        return dict(self._raw["reward_data"]["extra_info"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation, in the OpenAI shape."""
        return list(self._progress["messages"])

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """Finished calls: `call`, `content`, `ok`, `duration_s`."""
        return list(self._progress["tool_results"])

    @property
    def turns(self) -> list[dict[str, Any]]:
        """Spans of `token_ids`: `kind` (prompt, assistant, tool, user), `start`, `stop`."""
        return list(self._progress["turns"])

    @property
    def num_interruptions(self) -> int:
        """How often it was cut and continued."""
        return len(self._progress["interruptions"])

    @cached_property
    def response_messages(self) -> list[dict[str, Any]]:
        """What follows the prompt: assistant turns, tool results, an interaction's replies."""
        messages = self.messages
        left = sum(turn["kind"] == "assistant" for turn in self._progress["turns"])
        for position in range(len(messages) - 1, -1, -1):
            left -= messages[position]["role"] == "assistant"
            if left <= 0:
                return messages[position:]
        return messages

    @property
    def assistant_texts(self) -> list[str]:
        """What the policy wrote, turn by turn, without special tokens."""
        return [m["content"] for m in self.response_messages if m["role"] == "assistant"]

    @property
    def final_text(self) -> str:
        """The last assistant turn."""
        texts = self.assistant_texts
        return texts[-1] if texts else ""

    @property
    def response(self) -> str:
        """All that follows the prompt as text, messages joined by line ends."""
        return "\n".join(message["content"] for message in self.response_messages)

    @cached_property
    def token_ids(self) -> list[int]:
        """Prompt, sampled, tool and user tokens, `T` in all."""
        return _numbers("i", self._tokens["token_ids"])

    @property
    def prompt_ids(self) -> list[int]:
        """Tokens of the prompt."""
        return self.token_ids[: self._progress["num_prompt_tokens"]]

    @property
    def response_ids(self) -> list[int]:
        """Tokens after the prompt, those of tools included."""
        return self.token_ids[self._progress["num_prompt_tokens"] :]

    @cached_property
    def mask(self) -> list[int]:
        """Of each token: 1 where the policy sampled it."""
        return _expand(self._tokens["mask"])

    @cached_property
    def versions(self) -> list[int]:
        """Of each token: the policy version that sampled it, else -1."""
        return _expand(self._tokens["versions"])

    @cached_property
    def logprobs(self) -> list[float]:
        """Of each token under the distribution it was sampled from, else 0.0."""
        return _numbers("f", self._tokens["logprobs"])


def _numbers(kind: str, text: str) -> list[Any]:
    numbers = array(kind, base64.b64decode(text))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _expand(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [value for value, count in runs for _ in range(count)]
