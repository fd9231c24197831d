"""The simulated engine: the protocol, its timing and its versions, without a model.

One timer moves all sequences, so that hundreds of slots cost next to nothing; needs no torch.

submit -> waiting --free slot--> running --tick: tokens that are due--> stream
                                    |  stop, budget, interrupt -> Finish
          load_weights: the clock stands still, then the next version writes
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any

from consumers.rollout.engines.admission import check_request, last_length
from consumers.rollout.engines.base import (
    EngineFailed,
    Finish,
    GenerateRequest,
    TokenChunk,
    WeightsRefused,
)
from consumers.rollout.engines.simulated.profile import Course, read_profile
from infra.roles.errors import ConfigError
from infra.weights.described import DescribedTensor
from infra.weights.fingerprint import TIED_HEAD, entry_of, of_entries
from infra.weights.prepared import PreparedWeights, ServedWeights

_MAX_CATCH_UP_S = 0.5
"""A process that was frozen has generated nothing meanwhile."""


class _Sequence:
    """A request on its way."""

    __slots__ = (
        "course",
        "ids",
        "items",
        "last_length",
        "length",
        "logprobs",
        "may_end_at",
        "next_at",
        "request",
    )

    def __init__(self, request: GenerateRequest, course: Course, *, max_model_len: int) -> None:
        self.request = request
        self.course = course
        self.length = len(request.token_ids)
        self.may_end_at = self.length + request.min_tokens
        self.last_length = last_length(request, max_model_len=max_model_len)
        self.next_at = 0.0
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.items: asyncio.Queue[TokenChunk | Finish] = asyncio.Queue()


class SimulatedEngine:
    """Writes tokens that are a function of seed, position and version, at a given pace.

    Args:
        model_folder: Its `config.json` tells the vocabulary; nothing else is read.
        slots: Sequences that run at a time; more are queued.
        max_model_len: Context length in tokens.
        options: A `Profile`.

    Raises:
        ConfigError: An unknown option or a value out of range, or no vocabulary size.
    """

    def __init__(
        self, *, model_folder: Path, slots: int, max_model_len: int, options: dict[str, Any]
    ) -> None:
        self._profile = read_profile(options)
        self._vocab_size = _vocab_size(model_folder)
        self._slots = slots
        self._max_model_len = max_model_len
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._layout: dict[str, str] = {}
        self._served: ServedWeights | None = None
        self._closed = False
        self._swap = asyncio.Lock()
        self._loading = False
        self._timer: asyncio.TimerHandle | None = None
        self._now = 0.0
        self._looked = 0.0

    async def start(self, weights: PreparedWeights) -> None:
        """Take the first weights; see `Engine.start`."""
        if self._served is not None:
            raise EngineFailed("the engine was started before")
        entries = _entries(weights)
        self._layout = {name: _layout(entry) for name, entry in entries.items()}
        self._served = ServedWeights(version=weights.version, fingerprint=of_entries(entries))

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """Write a turn; see `Engine.generate`."""
        self._check_alive()
        check_request(request, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id} is running already")
        course = Course(
            self._profile,
            seed=request.seed,
            stops=request.stop_token_ids,
            vocab_size=self._vocab_size,
        )
        sequence = _Sequence(request, course, max_model_len=self._max_model_len)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        self._look()
        over = False
        try:
            while not over:
                item = await sequence.items.get()
                over = isinstance(item, Finish)
                yield item
        finally:
            del self._sequences[request.request_id]
            self._forget(sequence)

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """End streams as interrupted; see `Engine.interrupt`."""
        self._check_alive()
        self._look()
        self._interrupt(None if request_ids is None else frozenset(request_ids))

    async def load_weights(self, weights: PreparedWeights) -> None:
        """Swap weights; see `Engine.load_weights`."""
        self._check_alive()
        async with self._swap:
            fingerprint = self._checked(weights)
            self._look()
            self._loading = True
            try:
                await asyncio.sleep(self._profile.load_s)
            finally:
                self._loading = False
                self._looked = asyncio.get_running_loop().time()
                self._look()
            self._served = ServedWeights(version=weights.version, fingerprint=fingerprint)
            for sequence in self._running:  # the cache is computed again
                sequence.next_at = max(sequence.next_at, self._now + self._prefill_s(sequence))

    def serving(self) -> ServedWeights:
        """What was loaded last; see `Engine.serving`."""
        if self._served is None:
            raise EngineFailed("the engine was not started")
        return self._served

    async def close(self) -> None:
        """End every stream; see `Engine.close`."""
        self._closed = True
        self._interrupt(None)
        if self._timer is not None:
            self._timer.cancel()

    def num_unfinished(self) -> int:
        """Requests that it still knows."""
        return len(self._sequences) + len(self._waiting) + len(self._running)

    # -- inside

    def _check_alive(self) -> None:
        if self._served is None or self._closed:
            raise EngineFailed("the engine is closed" if self._closed else "it was not started")

    def _look(self) -> None:
        """Let the clock run up to now, write what is due, admit, and set the timer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._loading:
            self._now += min(now - self._looked, _MAX_CATCH_UP_S)
            self._looked = now
            for sequence in list(self._running):
                self._advance(sequence)
        while self._waiting and len(self._running) < self._slots:
            sequence = self._waiting.popleft()
            sequence.next_at = self._now + self._prefill_s(sequence)
            self._running.append(sequence)
        if self._running and self._timer is None and not self._loading:
            self._timer = loop.call_later(self._profile.tick_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._look()

    def _prefill_s(self, sequence: _Sequence) -> float:
        return self._profile.prefill_s + self._profile.prefill_token_s * sequence.length

    def _advance(self, sequence: _Sequence) -> None:
        version = self.serving().version
        course, stops = sequence.course, sequence.request.stop_token_ids
        while sequence.next_at <= self._now:
            position = sequence.length
            token_id = course.token(position, version, may_end=position >= sequence.may_end_at)
            sequence.ids.append(token_id)
            sequence.logprobs.append(course.logprob(position, version))
            sequence.length = position + 1
            sequence.next_at += course.latency_s(position + 1)
            if token_id in stops or sequence.length >= sequence.last_length:
                self._end(sequence, Finish(reason="stop" if token_id in stops else "length"))
                return
        self._flush(sequence)

    def _flush(self, sequence: _Sequence) -> None:
        if sequence.ids:
            chunk = TokenChunk(
                token_ids=tuple(sequence.ids),
                logprobs=tuple(sequence.logprobs),
                policy_version=self.serving().version,
            )
            sequence.ids, sequence.logprobs = [], []
            sequence.items.put_nowait(chunk)

    def _interrupt(self, wanted: frozenset[str] | None) -> None:
        for sequence in [*self._running, *self._waiting]:
            if wanted is None or sequence.request.request_id in wanted:
                self._end(sequence, Finish(reason="interrupted"))

    def _end(self, sequence: _Sequence, finish: Finish) -> None:
        self._flush(sequence)
        self._forget(sequence)
        sequence.items.put_nowait(finish)

    def _forget(self, sequence: _Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _checked(self, weights: PreparedWeights) -> str:
        """The fingerprint of what is given, if it fits what was given first."""
        entries = _entries(weights)
        if TIED_HEAD not in self._layout and TIED_HEAD in entries:
            head = entries.pop(TIED_HEAD)
            if head not in entries.values():
                entries[TIED_HEAD] = head
        given = {name: _layout(entry) for name, entry in entries.items()}
        problems = [f"{name} is unknown to the model" for name in given.keys() - self._layout]
        problems += [f"{name} is missing" for name in self._layout.keys() - given]
        problems += [
            f"{name} is {given[name]}, the model has {self._layout[name]}"
            for name in given.keys() & self._layout
            if given[name] != self._layout[name]
        ]
        measured = of_entries(entries)
        if not problems and measured != weights.fingerprint:
            problems = [f"the fingerprint is {measured}, not {weights.fingerprint}"]
        if problems:
            raise WeightsRefused(
                f"version {weights.version} does not fit the model: {min(problems)}",
                hint="trainer and engines must use the same [model] path and dtype",
            )
        return measured


def _vocab_size(model_folder: Path) -> int:
    path = model_folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} tells no vocab_size: {error}",
            hint="point [model] path at a Hugging Face model folder",
        ) from error


def _entries(weights: PreparedWeights) -> dict[str, str]:
    tensors: Mapping[str, Any] = weights.tensors
    return {
        name: tensor.entry if isinstance(tensor, DescribedTensor) else entry_of(tensor)
        for name, tensor in tensors.items()
    }


def _layout(entry: str) -> str:
    """Dtype and shape, without the checksum."""
    return entry.rpartition(" ")[0]
