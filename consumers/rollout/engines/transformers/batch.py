"""The running batch: sequences join at a step, all advance by a token, and leave."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from consumers.rollout.engines.admission import last_length
from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.transformers.kv_rows import RowCache
from consumers.rollout.engines.transformers.sampling import Sampler

_PREFILL_TOKENS = 8192
_PREFILL_WIDTH = 2048
_PREFILL_LOGITS = 1 << 25


class RunningSequence:
    """A request, the tokens so far, and those not yet handed over."""

    __slots__ = ("last_length", "new_ids", "new_logprobs", "request", "token_ids")

    def __init__(self, request: GenerateRequest, *, max_model_len: int) -> None:
        self.request = request
        self.token_ids = list(request.token_ids)
        self.last_length = last_length(request, max_model_len=max_model_len)
        self.new_ids: list[int] = []
        self.new_logprobs: list[float] = []

    def append(self, token_id: int, logprob: float) -> None:
        """Take a sampled token."""
        self.token_ids.append(token_id)
        self.new_ids.append(token_id)
        self.new_logprobs.append(logprob)

    @property
    def stopped(self) -> bool:
        """Its last token ends the turn."""
        return bool(self.new_ids) and self.new_ids[-1] in self.request.stop_token_ids

    @property
    def exhausted(self) -> bool:
        """Budget or context are used up."""
        return len(self.token_ids) >= self.last_length


class Batch:
    """Runs a Hugging Face causal model on sequences of different lengths. Not thread-safe.

    A sequence with tokens t[0..n-1] has keys and values of t[0..n-2] in its row; a step feeds
    t[n-1] and samples t[n]. All calls need inference mode.

    Args:
        model: With full causal attention in every layer.
        num_rows: Sequences at a time.
        max_model_len: Longest sequence.
    """

    def __init__(self, model: Any, *, num_rows: int, max_model_len: int) -> None:
        self._model = model
        self._device = model.device
        self._num_rows = num_rows
        self._vocab_size = model.get_output_embeddings().weight.shape[0]
        self._cache = RowCache(
            num_layers=model.config.get_text_config().num_hidden_layers,
            num_rows=num_rows,
            max_columns=max_model_len,
        )
        self._sampler: Sampler | None = None
        self.sequences: list[RunningSequence] = []

    @property
    def free_rows(self) -> int:
        """Sequences that may join."""
        return self._num_rows - len(self.sequences)

    def join(self, sequences: Sequence[RunningSequence]) -> None:
        """Prefill new sequences, sample one token of each, and keep them."""
        for group in self._groups(sequences):
            logits = self._prefill(group)
            sampler = Sampler([sequence.request for sequence in group], self._device)
            self._take(group, *sampler.sample(logits, [len(s.token_ids) for s in group]))
            self.sequences.extend(group)
        self._sampler = None

    def step(self) -> None:
        """Sample one token of every sequence."""
        running = self.sequences
        if self._sampler is None:
            self._sampler = Sampler([sequence.request for sequence in running], self._device)
        lengths = [len(sequence.token_ids) for sequence in running]
        longest = max(lengths)
        tokens = torch.tensor([[s.token_ids[-1]] for s in running], device=self._device)
        columns = torch.tensor(lengths, device=self._device) - 1
        self._cache.writes_column(columns, longest)
        seen = torch.arange(longest, device=self._device)[None] <= columns[:, None]
        logits = self._forward(tokens, seen[:, None, None, :], columns[:, None])
        self._take(running, *self._sampler.sample(logits[:, -1], lengths))

    def leave(self, sequence: RunningSequence) -> None:
        """Free a row."""
        row = self.sequences.index(sequence)
        last = self.sequences.pop()
        if last is not sequence:
            self._cache.move(len(self.sequences), row, len(last.token_ids) - 1)
            self.sequences[row] = last
        self._sampler = None

    def empty(self) -> list[RunningSequence]:
        """Let all go, forgetting keys and values; `join` computes them again."""
        gone, self.sequences = self.sequences, []
        self._sampler = None
        return gone

    def _groups(self, sequences: Sequence[RunningSequence]) -> Iterator[list[RunningSequence]]:
        group: list[RunningSequence] = []
        for sequence in sorted(sequences, key=lambda sequence: len(sequence.token_ids)):
            size = len(group) + 1
            padded = size * len(sequence.token_ids) > _PREFILL_TOKENS
            if group and (padded or size * size * self._vocab_size > _PREFILL_LOGITS):
                yield group
                group = []
            group.append(sequence)
        if group:
            yield group

    def _prefill(self, group: Sequence[RunningSequence]) -> torch.Tensor:
        """Logits of every sequence's last token, (rows, vocabulary).

        Rows are padded at the right: causal attention never sees that.
        """
        lengths = [len(sequence.token_ids) for sequence in group]
        longest = max(lengths)
        padded = torch.tensor(
            [s.token_ids + [0] * (longest - len(s.token_ids)) for s in group], device=self._device
        )
        positions = torch.arange(longest, device=self._device)
        found: dict[int, torch.Tensor] = {}
        for begin in range(0, longest, _PREFILL_WIDTH):
            end = min(begin + _PREFILL_WIDTH, longest)
            self._cache.writes_block(len(self.sequences), len(group), begin, end - begin)
            mask = (positions[begin:end, None] >= positions[None, :end])[None, None]
            lasts = sorted({length - 1 for length in lengths if begin < length <= end}) or [begin]
            keep = torch.tensor(lasts, device=self._device) - begin
            places = positions[None, begin:end].expand(len(group), -1)
            logits = self._forward(padded[:, begin:end], mask, places, keep)
            for row, length in enumerate(lengths):
                if begin < length <= end:
                    found[row] = logits[row, lasts.index(length - 1)]
        return torch.stack([found[row] for row in range(len(group))])

    def _forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | int = 1,
    ) -> torch.Tensor:
        """Logits, (rows, kept, vocabulary); a four-dimensional mask is taken as it is."""
        logits: torch.Tensor = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits

    @staticmethod
    def _take(
        sequences: Sequence[RunningSequence], ids: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        for sequence, token_id, logprob in zip(sequences, ids, logprobs, strict=True):
            sequence.append(token_id, logprob)
