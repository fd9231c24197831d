"""The running batch: sequences join at a step, all advance by a token, and leave."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from consumers.rollout.engines.admission import last_length
from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.transformers.kv_rows import RowCache
from consumers.rollout.engines.transformers.prefixes import Prefixes
from consumers.rollout.engines.transformers.sampling import Sampler

_PREFILL_TOKENS = 8192
_PREFILL_WIDTH = 2048
_PADDING_TOKENS = 256
"""In a forward pass; more costs more than another pass."""
_PREFILL_LOGITS = 1 << 25
_WORTH_SHARING = 32
"""Tokens: computing fewer beside others costs less than to copy them, or to wait for them."""


class RunningSequence:
    """A request, the tokens so far, and those not yet handed over."""

    __slots__ = (
        "last_length",
        "new_ids",
        "new_logprobs",
        "num_cached",
        "num_ready",
        "of_older_weights",
        "request",
        "token_ids",
    )

    def __init__(self, request: GenerateRequest, *, max_model_len: int) -> None:
        self.request = request
        self.token_ids = list(request.token_ids)
        self.last_length = last_length(request, max_model_len=max_model_len)
        self.new_ids: list[int] = []
        self.new_logprobs: list[float] = []
        self.num_ready = 0
        """Tokens whose keys and values were in its row when it joined."""
        self.num_cached = 0
        """The same, when it joined for the first time: of the request's own tokens."""
        self.of_older_weights = False
        """Some of its keys and values are of weights that serve no longer."""

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
    t[n-1] and samples t[n]. What a sequence that joins has in common with one that runs, or has
    left a row that is still free, is not computed again. All calls need inference mode.

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
        self._prefixes = Prefixes(num_rows, max_model_len)
        self._last_column = max_model_len - 1
        self._sampler: Sampler | None = None
        self.sequences: list[RunningSequence] = []

    @property
    def free_rows(self) -> int:
        """Sequences that may join."""
        return self._num_rows - len(self.sequences)

    def join(self, sequences: Sequence[RunningSequence]) -> None:
        """Prefill new sequences, sample one token of each, and keep them.

        One that shares more with another of them than with any row joins after that one.
        """
        later = sorted(sequences, key=self._num_missing)
        while later:
            joining, later = self._place(later)
            for group in _groups(joining, self._vocab_size):
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
        columns = torch.tensor(lengths, device=self._device)[:, None] - 1
        logits = self._forward(tokens, 0, columns, longest)
        self._take(running, *self._sampler.sample(logits[:, -1], lengths))

    def leave(self, sequence: RunningSequence) -> None:
        """Free a row; what it holds stays until the row is needed."""
        row, freed = self.sequences.index(sequence), len(self.sequences) - 1
        last = self.sequences.pop()
        held = len(sequence.token_ids) - 1
        if held < _WORTH_SHARING or sequence.of_older_weights:
            held = 0
        self._prefixes.hold(row, sequence.token_ids[:held])
        if last is not sequence:
            length = len(last.token_ids) - 1
            if held:
                self._cache.exchange(row, freed, max(held, length))
            else:
                self._cache.copy(freed, row, length)
            self._prefixes.exchange(row, freed)
            self.sequences[row] = last
        self._sampler = None

    def outdate(self) -> None:
        """Other weights serve: of what is there, only those that run now make use."""
        self._prefixes.forget()
        for sequence in self.sequences:
            sequence.of_older_weights = True

    def empty(self) -> list[RunningSequence]:
        """Let all go, forgetting keys and values; `join` computes them again."""
        self._prefixes.forget()
        gone, self.sequences = self.sequences, []
        self._sampler = None
        return gone

    def _num_missing(self, sequence: RunningSequence) -> int:
        return len(sequence.token_ids) - int(self._prefixes.shared(sequence.token_ids).max())

    def _place(
        self, sequences: Sequence[RunningSequence]
    ) -> tuple[list[RunningSequence], list[RunningSequence]]:
        """Give each a row, with what some row has of it already.

        Returns:
            Those that have a row, in the order of the rows; those that had better wait for them.
        """
        placed: list[RunningSequence] = []
        later: list[RunningSequence] = []
        first = len(self.sequences)
        for sequence in sequences:
            row = first + len(placed)
            shared = self._prefixes.shared(sequence.token_ids)
            beside = int(shared[first:row].max(initial=0))
            shared[first:row] = 0
            source = int(shared.argmax())
            if beside >= int(shared[source]) + _WORTH_SHARING:
                later.append(sequence)
                continue
            sequence.num_ready = self._fill(row, source, int(shared[source]))
            if not sequence.new_ids and len(sequence.token_ids) == len(sequence.request.token_ids):
                sequence.num_cached = sequence.num_ready
            self._prefixes.hold(row, sequence.token_ids)
            placed.append(sequence)
        return placed, later

    def _fill(self, row: int, source: int, length: int) -> int:
        """Bring the first `length` tokens of row `source` to a free row; how many are there then.

        A free row that holds nothing else is taken over, so a conversation that goes on needs no
        row beside its own. Else the oldest free row is given up.
        """
        whole = source >= row and length == self._prefixes.lengths[source]
        if not whole and length < _WORTH_SHARING:
            length = 0
        victim = source if whole else self._prefixes.oldest(row)
        if victim != row:
            longest = max(self._prefixes.lengths[victim], self._prefixes.lengths[row])
            self._cache.exchange(victim, row, longest)
            self._prefixes.exchange(victim, row)
            source = {victim: row, row: victim}.get(source, source)
        if source != row and length:
            self._cache.copy(source, row, length)
            self._prefixes.use(source)
        return length

    def _prefill(self, group: Sequence[RunningSequence]) -> torch.Tensor:
        """Logits of every sequence's last token, (rows, vocabulary).

        Rows are padded at the right: causal attention never sees that.
        """
        missing = [len(sequence.token_ids) - sequence.num_ready for sequence in group]
        width = max(missing)
        padded = torch.tensor(
            [
                s.token_ids[s.num_ready :] + [0] * (width - m)
                for s, m in zip(group, missing, strict=True)
            ],
            device=self._device,
        )
        starts = [sequence.num_ready for sequence in group]
        firsts = torch.tensor(starts, device=self._device)[:, None]
        found: dict[int, torch.Tensor] = {}
        for begin in range(0, width, _PREFILL_WIDTH):
            end = min(begin + _PREFILL_WIDTH, width)
            columns = firsts + torch.arange(begin, end, device=self._device)
            columns = columns.clamp(max=self._last_column)  # beyond it is padding only
            longest = min(max(starts) + end, self._last_column + 1)
            lasts = sorted({count - 1 for count in missing if begin < count <= end}) or [begin]
            keep = torch.tensor(lasts, device=self._device) - begin
            tokens = padded[:, begin:end]
            logits = self._forward(tokens, len(self.sequences), columns, longest, keep)
            for row, count in enumerate(missing):
                if begin < count <= end:
                    found[row] = logits[row, lasts.index(count - 1)]
        return torch.stack([found[row] for row in range(len(group))])

    def _forward(
        self,
        tokens: torch.Tensor,
        first_row: int,
        columns: torch.Tensor,
        longest: int,
        keep: torch.Tensor | int = 1,
    ) -> torch.Tensor:
        """Logits, (rows, kept, vocabulary), of tokens whose keys go into these columns."""
        self._cache.writes(first_row, columns, longest)
        seen = torch.arange(longest, device=self._device) <= columns[:, :, None]
        logits: torch.Tensor = self._model(
            input_ids=tokens,
            attention_mask=seen[:, None],  # four-dimensional: taken as it is
            position_ids=columns,
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


def _groups(
    sequences: Sequence[RunningSequence], vocab_size: int
) -> Iterator[list[RunningSequence]]:
    """Cut into runs whose forward pass is little padding, and fits memory with its logits."""
    group: list[RunningSequence] = []
    width = total = 0
    for sequence in sequences:
        missing = len(sequence.token_ids) - sequence.num_ready
        width, total = max(width, missing), total + missing
        size = len(group) + 1
        padded = size * width > min(_PREFILL_TOKENS, total + _PADDING_TOKENS)
        if group and (padded or size * size * vocab_size > _PREFILL_LOGITS):
            yield group
            group, width, total = [], missing, missing
        group.append(sequence)
    if group:
        yield group
