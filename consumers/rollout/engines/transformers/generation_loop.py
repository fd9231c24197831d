"""The generation loop: a thread that decodes, and obeys between two steps.

obey commands -> admit the waiting -> one token for each -> hand over -> ...
      |                                                        |
      +-- idle: sleeps until a command comes                   +-- to the event loop, many
                                                                   streams in one call
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Literal

import torch

from consumers.rollout.engines.base import EngineFailed, Finish, TokenChunk
from consumers.rollout.engines.transformers.batch import Batch, RunningSequence
from consumers.rollout.engines.transformers.hf_model import HfModel
from infra.roles.errors import WarrenError
from infra.weights.prepared import PreparedWeights

logger = logging.getLogger(__name__)

Item = TokenChunk | Finish | EngineFailed
HAND_OVER_S = 0.02
"""Tokens are handed over at least this often, and whenever a stream ends."""
_SWITCH_INTERVAL_S = 0.0005


class Stream:
    """Where the items of one request arrive, on the event loop."""

    def __init__(self, sequence: RunningSequence) -> None:
        self.sequence = sequence
        self.items: asyncio.Queue[Item] = asyncio.Queue()


class _Command:
    """Something to do between two steps, and who waits for it."""

    def __init__(self, act: Callable[[], None], done: "asyncio.Future[None] | None") -> None:
        self.act = act
        self.done = done


class GenerationLoop:
    """Owns model and batch; every other thread only sends commands.

    Args:
        build: Makes the model, in this loop's thread.
        slots: Sequences that run at a time.
        max_model_len: Longest sequence.
        keep_cache: Running sequences keep their keys and values over a swap of weights.
    """

    def __init__(
        self,
        build: Callable[[], HfModel],
        *,
        slots: int,
        max_model_len: int,
        keep_cache: bool = False,
    ) -> None:
        self._build = build
        self._slots = slots
        self._max_model_len = max_model_len
        self._keep_cache = keep_cache
        self._loop = asyncio.get_running_loop()
        self._commands: deque[_Command] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._over = asyncio.Event()
        self._streams: dict[RunningSequence, Stream] = {}
        self._waiting: deque[RunningSequence] = deque()
        self._batch: Batch | None = None
        self._outbox: list[tuple[Stream, Item]] = []
        self._handed_over = 0.0
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self.failure: EngineFailed | None = None
        self.model: HfModel

    async def start(self, weights: PreparedWeights) -> None:
        """Build the model and load the first weights.

        Raises:
            WarrenError: As `HfModel` raises.
        """
        self._thread.start()
        await self._call(lambda: self._start(weights))

    def submit(self, stream: Stream) -> None:
        """Queue a request."""
        self._streams[stream.sequence] = stream
        self._send(_Command(lambda: self._waiting.append(stream.sequence), None))

    def drop(self, stream: Stream) -> None:
        """Free a request whose consumer has gone."""
        self._streams.pop(stream.sequence, None)
        self._send(_Command(lambda: self._forget(stream.sequence), None))

    async def interrupt(self, request_ids: Collection[str] | None) -> None:
        """End streams at the next step boundary; returns when their items have arrived.

        Raises:
            EngineFailed: The loop is dead; the streams have been told.
        """
        wanted = None if request_ids is None else frozenset(request_ids)
        await self._call(lambda: self._interrupt(wanted))

    async def load(self, weights: PreparedWeights) -> None:
        """Swap weights at the next step boundary.

        Raises:
            WeightsRefused: Nothing was touched.
            EngineFailed: The loop is dead.
        """
        await self._call(lambda: self._load(weights))

    async def close(self) -> None:
        """End every stream as interrupted and wait for the thread to say that it ends.

        Nothing is left behind when the caller gives up waiting: a thread that joined one that
        hangs would keep the process from ending.
        """
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            await self._over.wait()

    async def _call(self, act: Callable[[], None]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._send(_Command(act, done))
        await done

    def _send(self, command: _Command) -> None:
        self._commands.append(command)
        self._wake.set()
        if self.failure is not None:
            self._refuse_all(self.failure)

    def _run(self) -> None:
        failure = EngineFailed("the engine is closed")
        # Each torch call gives up the interpreter; beside a busy event loop it would come back
        # only after a whole switch interval, 5 ms by default.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._obey()
                    self._decode()
                self._interrupt(None)
        except Exception as error:  # the boundary: whatever it is, every waiter must hear of it
            logger.exception("generation ended")
            failure = EngineFailed(f"generation ended: {type(error).__name__}: {error}")
            failure.__cause__ = error
        self._batch = None
        self._on_event_loop(lambda: self._refuse_all(failure))

    def _obey(self) -> None:
        """Carry out what was sent; with nothing else to do, wait for it."""
        if not self._has_work():
            self._hand_over()
            self._wake.wait()
        self._wake.clear()
        while self._commands:
            command = self._commands[0]
            error: WarrenError | None = None
            try:
                command.act()
            except EngineFailed:
                raise
            except WarrenError as refused:
                error = refused
            self._commands.popleft()
            self._hand_over()
            self._settle(command, error)

    def _has_work(self) -> bool:
        return bool(self._waiting or (self._batch and self._batch.sequences))

    def _decode(self) -> None:
        """Admit, advance everything by a token, and collect what ended."""
        batch = self._batch
        if batch is None or not self._has_work():
            return
        joining = [self._waiting.popleft() for _ in range(min(batch.free_rows, len(self._waiting)))]
        if joining:
            batch.join(joining)
            self._collect(batch, joining)
        if batch.sequences:
            batch.step()
            self._collect(batch, list(batch.sequences))
        if time.monotonic() - self._handed_over > HAND_OVER_S:
            self._flush(batch.sequences)
            self._hand_over()

    def _collect(self, batch: Batch, sequences: list[RunningSequence]) -> None:
        ended = False
        for sequence in sequences:
            if sequence.stopped or sequence.exhausted:
                batch.leave(sequence)
                self._end(sequence, "stop" if sequence.stopped else "length")
                ended = True
        if ended:
            self._hand_over()

    def _start(self, weights: PreparedWeights) -> None:
        self.model = self._build()
        self.model.load(weights)
        self._batch = Batch(
            self.model.network, num_rows=self._slots, max_model_len=self._max_model_len
        )

    def _load(self, weights: PreparedWeights) -> None:
        batch = self._batch
        self.model.check(weights)
        self._flush(batch.sequences if batch else [])
        self.model.load(weights)
        if batch and self._keep_cache:
            batch.outdate()
        elif batch:
            self._waiting.extendleft(reversed(batch.empty()))

    def _interrupt(self, wanted: frozenset[str] | None) -> None:
        running = self._batch.sequences if self._batch else []
        for sequence in [*reversed(running), *self._waiting]:  # the last row leaves without a copy
            if wanted is None or sequence.request.request_id in wanted:
                self._forget(sequence)
                self._end(sequence, "interrupted")
        self._hand_over()

    def _forget(self, sequence: RunningSequence) -> None:
        if self._batch and sequence in self._batch.sequences:
            self._batch.leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _end(
        self, sequence: RunningSequence, reason: Literal["stop", "length", "interrupted"]
    ) -> None:
        self._flush([sequence])
        stream = self._streams.get(sequence)
        if stream is not None:
            finish = Finish(reason=reason, num_cached_tokens=sequence.num_cached)
            self._outbox.append((stream, finish))

    def _flush(self, sequences: list[RunningSequence]) -> None:
        """Put sampled tokens into the outbox, under the version that sampled them."""
        for sequence in sequences:
            if not sequence.new_ids:
                continue
            chunk = TokenChunk(
                token_ids=tuple(sequence.new_ids),
                logprobs=tuple(sequence.new_logprobs),
                policy_version=self.model.served.version,
            )
            sequence.new_ids, sequence.new_logprobs = [], []
            stream = self._streams.get(sequence)
            if stream is not None:
                self._outbox.append((stream, chunk))

    def _hand_over(self) -> None:
        self._handed_over = time.monotonic()
        if self._outbox:
            parcel, self._outbox = self._outbox, []
            self._on_event_loop(lambda: self._deliver(parcel))

    def _deliver(self, parcel: list[tuple[Stream, Item]]) -> None:
        for stream, item in parcel:
            stream.items.put_nowait(item)
            if isinstance(item, Finish):
                self._streams.pop(stream.sequence, None)

    def _settle(self, command: _Command, error: WarrenError | None) -> None:
        done = command.done
        if done is None:
            return

        def settle() -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._on_event_loop(settle)

    def _refuse_all(self, failure: EngineFailed) -> None:
        """On the event loop, once the thread is over: every stream and waiter hears of it."""
        self.failure = failure
        self._over.set()
        for stream in self._streams.values():
            stream.items.put_nowait(failure)
        self._streams.clear()
        while self._commands:
            done = self._commands.popleft().done
            if done is not None and not done.done():
                done.set_exception(failure)

    def _on_event_loop(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            logger.debug("the event loop has gone")
