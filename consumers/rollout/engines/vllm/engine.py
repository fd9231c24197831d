"""The vLLM engine: AsyncLLM in this process, its engine core in a child.

generate  -> add_request; chunks are cut where vLLM's weight version changes
interrupt -> abort: vLLM's own last output brings every token that had arrived
load      -> check -> pause(keep) -> copy in the workers, or vLLM's own reload where they quantise
             -> name the version -> resume
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from consumers.rollout.engines.admission import GREEDY_BELOW, check_request, last_length
from consumers.rollout.engines.base import (
    EngineFailed,
    Finish,
    GenerateRequest,
    TokenChunk,
)
from consumers.rollout.engines.options import TAKEN
from consumers.rollout.engines.vllm.loading import Loading
from consumers.rollout.engines.vllm.processes import end_all, uninterrupted, watched
from consumers.rollout.engines.vllm.reloading import Reloading
from consumers.rollout.engines.vllm.setup import (
    check_options,
    engine_arguments,
    is_quantised,
    prepare_import,
)
from infra.roles.errors import WarrenError
from infra.weights.prepared import PreparedWeights, ServedWeights

logger = logging.getLogger(__name__)

_REASONS = {"stop": "stop", "length": "length", "abort": "interrupted"}
_MAX_TEMPERATURE = 2.0
_ABORT_S = 2.0
"""Well below what a worker gives to closing, or an engine that hangs would not be ended."""


class _Turn:
    """A request that a consumer holds."""

    def __init__(self) -> None:
        self.internal_id: str | None = None
        self.state: Any = None
        """vLLM's own, of its outputs; None when it ended already."""
        self.interrupted = False

    @property
    def waits(self) -> bool:
        """Whether vLLM has it, and no token of it has come."""
        known = self.internal_id is not None and self.state is not None
        return known and not self.state.detokenizer.num_output_tokens()

    def renewed(self, output: Any) -> bool:
        """Whether a last output only says that a swap took the request out, to be added again."""
        return output.outputs[0].finish_reason == "abort" and not self.interrupted


class VllmEngine:
    """vLLM's continuous batching, paged attention and prefix cache.

    Args:
        model_folder: Config and weights, in Hugging Face layout.
        dtype: Of weights and computation.
        slots: Sequences that run at a time (`max_num_seqs`).
        max_model_len: Context length in tokens.
        options: vLLM's engine arguments, which win over ours; and `kv_cache` of running
            sequences at a swap: `recompute` or `keep`.

    Raises:
        ConfigError: vLLM is missing or too old or new, or an option is not allowed.
    """

    def __init__(
        self,
        *,
        model_folder: Path,
        dtype: str,
        slots: int,
        max_model_len: int,
        options: dict[str, Any],
    ) -> None:
        check_options(options)
        self._options = dict(options)
        self._keep_cache = self._options.pop("kv_cache", "recompute") == "keep"
        self._folder = model_folder
        self._dtype = dtype
        self._slots = slots
        self._max_model_len = max_model_len
        self._engine: Any = None
        self._vocab_size = 0
        quantised = is_quantised(options)
        self._loading = Reloading(self._call, dtype) if quantised else Loading(self._call)
        self._processes: list[int] = []
        self._served = ServedWeights(version=-1, fingerprint="")
        self._salt = 0
        self._turns: dict[str, _Turn] = {}
        self._swap = asyncio.Lock()
        self._failure: EngineFailed | None = None

    async def start(self, weights: PreparedWeights) -> None:
        """Start the engine process; see `Engine.start`."""
        prepare_import()
        try:
            self._engine = await asyncio.to_thread(self._construct)
            self._processes = watched(await self._call("warren_pids"))
            self._vocab_size = self._engine.model_config.get_vocab_size()
            await self._loading.learn(self._folder)
            await self._loading.check(weights)
            await self._load(weights)
        except WarrenError:
            await self.close()
            raise
        except Exception as error:  # the boundary: vLLM raises whatever it meets
            await self.close()
            raise EngineFailed(
                f"vLLM did not start: {type(error).__name__}: {error}",
                hint="the lines above are vLLM's; rollout.engine_options are passed to it",
            ) from error

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """Sample a turn; see `Engine.generate`."""
        engine = self._alive()
        check_request(
            request,
            vocab_size=self._vocab_size,
            max_model_len=self._max_model_len,
            options=TAKEN["vllm"],
        )
        if request.temperature > _MAX_TEMPERATURE:
            raise ValueError(
                f"request {request.request_id} has temperature {request.temperature}, "
                f"vLLM takes at most {_MAX_TEMPERATURE}"
            )
        if request.request_id in self._turns:
            raise ValueError(f"request {request.request_id} is running already")
        turn = self._turns[request.request_id] = _Turn()
        over = False
        try:
            with _translated():
                queue = await self._add(engine, request, turn)
                done = 0
                while not over:
                    output = queue.get_nowait() or await queue.get()
                    if output.finished and turn.renewed(output):
                        queue = await self._add(engine, request, turn)
                        continue
                    over = output.finished
                    for chunk in _chunks(output.outputs[0], turn.state, done):
                        done += len(chunk.token_ids)
                        yield chunk
                    if over:
                        yield _finish(output.outputs[0].finish_reason, output.num_cached_tokens)
        finally:
            del self._turns[request.request_id]
            if not over and not engine.errored:
                known = turn.internal_id is not None
                await engine.abort(turn.internal_id or request.request_id, internal=known)

    async def _add(self, engine: Any, request: GenerateRequest, turn: _Turn) -> Any:
        """Hand a request to vLLM; returns the queue of its outputs."""
        turn.internal_id = None
        salt = self._salt
        queue = await engine.add_request(
            request.request_id,
            _prompt(request, salt=str(salt)),
            _parameters(request, self._max_model_len),
        )
        turn.internal_id = queue.request_id
        turn.state = engine.output_processor.request_states.get(queue.request_id)
        if turn.interrupted or salt != self._salt:
            await engine.abort(queue.request_id, internal=True)
        return queue

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """End streams as interrupted; see `Engine.interrupt`."""
        engine = self._alive()
        wanted = self._turns.keys() if request_ids is None else set(request_ids)
        with _translated():
            await _end(engine, [turn for name, turn in self._turns.items() if name in wanted])

    async def load_weights(self, weights: PreparedWeights) -> None:
        """Swap weights in place; see `Engine.load_weights`."""
        engine = self._alive()
        async with self._swap:
            with _translated():
                await self._loading.check(weights)
                loaded = False
                try:
                    await self._pause(engine)
                    if self._keep_cache:
                        await self._renew(engine)
                    await self._load(weights)
                    loaded = True
                except EngineFailed as error:
                    self._failure = error
                    raise
                finally:
                    if not loaded:
                        await self._give_up(engine)
                await engine.resume_generation()

    async def _call(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        answers: list[Any] = await self._engine.collective_rpc(method, args=args)
        return answers

    async def _pause(self, engine: Any) -> None:
        """As vLLM's `pause_generation`, without its wait for outputs that are on their way: these
        bring their version along."""
        await engine.engine_core.pause_scheduler_async(
            mode="keep", clear_cache=not self._keep_cache
        )

    async def _renew(self, engine: Any) -> None:
        """Leave what is cached to those who have tokens: whoever has none is taken out, and comes
        again under a salt that finds nothing of the old weights."""
        self._salt += 1
        new = [turn for turn in self._turns.values() if not turn.interrupted and turn.waits]
        await engine.abort([turn.internal_id for turn in new], internal=True)

    async def _load(self, weights: PreparedWeights) -> None:
        fingerprint = await self._loading.load(weights)
        await self._engine.update_weight_version(str(weights.version))
        self._served = ServedWeights(version=weights.version, fingerprint=fingerprint)

    async def _give_up(self, engine: Any) -> None:
        """What the workers hold is unknown: end all streams where they are, sample nothing more."""
        self._failure = self._failure or EngineFailed("vLLM was given up while it loaded weights")
        if not engine.errored:
            await _end(engine, list(self._turns.values()))

    def serving(self) -> ServedWeights:
        """What the worker holds; see `Engine.serving`."""
        self._alive()
        return self._served

    def num_unfinished(self) -> int:
        """Requests that vLLM still knows."""
        return int(self._alive().get_num_unfinished_requests())

    async def close(self) -> None:
        """End the engine process; see `Engine.close`."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._turns and not engine.errored:
            with contextlib.suppress(TimeoutError):  # one that hangs is ended all the same
                async with asyncio.timeout(_ABORT_S):
                    await _end(engine, list(self._turns.values()))
        # It holds nothing that is worth its time, and vLLM warns when it ends it.
        logging.getLogger("vllm").setLevel(logging.ERROR)
        processes, self._processes = self._processes, []
        await asyncio.to_thread(end_all, engine, processes)
        # vLLM shuts down once more when the object goes, which fails at the interpreter's end.
        engine.shutdown = _nothing

    def _construct(self) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = engine_arguments(
            self._folder,
            dtype=self._dtype,
            slots=self._slots,
            max_model_len=self._max_model_len,
            options=self._options,
        )
        with uninterrupted():
            return AsyncLLM.from_engine_args(arguments)

    def _alive(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._engine is None:
            raise EngineFailed("the engine is not running")
        if self._engine.errored:
            raise EngineFailed("vLLM's engine process is dead")
        return self._engine


async def _end(engine: Any, turns: list[_Turn]) -> None:
    """Abort requests; one that is still on its way to the engine is aborted when it is there."""
    for turn in turns:
        turn.interrupted = True
    if known := [turn.internal_id for turn in turns if turn.internal_id is not None]:
        await engine.abort(known, internal=True)


def _nothing() -> None:
    pass


@contextmanager
def _translated() -> Iterator[None]:
    """Turn vLLM's errors into ours."""
    from vllm.exceptions import VLLMClientError, VLLMServerError

    try:
        yield
    except VLLMClientError as error:
        raise ValueError(str(error)) from error
    except VLLMServerError as error:
        raise EngineFailed(f"vLLM failed: {type(error).__name__}: {error}") from error


def _prompt(request: GenerateRequest, *, salt: str) -> Any:
    """The prompt as vLLM's own renderer would give it; only one with the same
    salt finds its prefix cached."""
    from vllm.inputs.engine import tokens_input

    return tokens_input(list(request.token_ids), cache_salt=salt)


def _parameters(request: GenerateRequest, max_model_len: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    options = dict(request.options)
    if (guided := options.get("structured_outputs")) is not None:
        options["structured_outputs"] = StructuredOutputsParams(**guided)
    greedy = request.temperature < GREEDY_BELOW
    room = last_length(request, max_model_len=max_model_len) - len(request.token_ids)
    return SamplingParams(
        temperature=0.0 if greedy else request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        min_tokens=min(request.min_tokens, room),
        seed=None if greedy else _generator_seed(request),
        max_tokens=room,
        stop_token_ids=sorted(request.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        **options,
    )


def _generator_seed(request: GenerateRequest) -> int:
    """vLLM draws from a generator of its own for each request, from its beginning: with the seed
    alone, the rest of a turn that was cut would use the same random numbers again."""
    text = f"{request.seed}:{len(request.token_ids)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _chunks(output: Any, state: Any, done: int) -> list[TokenChunk]:
    """Cut new tokens where the weight version changed.

    Args:
        output: vLLM's completion output, a delta.
        state: Of the request, with the starts of its version spans; None when it ended already.
        done: Tokens that came before.
    """
    ids = list(output.token_ids)
    logprobs = [row[token].logprob for row, token in zip(output.logprobs or [], ids, strict=True)]
    if state is not None:
        starts = [(int(version), start) for version, start in state.weight_version_starts]
    else:
        starts = [(int(span[0]), span[1]) for span in output.weight_versions or []]
    chunks = []
    for index, (version, start) in enumerate(starts):
        end = starts[index + 1][1] if index + 1 < len(starts) else done + len(ids)
        span = slice(max(start - done, 0), max(end - done, 0))
        if ids[span]:
            chunks.append(
                TokenChunk(
                    token_ids=tuple(ids[span]),
                    logprobs=tuple(logprobs[span]),
                    policy_version=version,
                )
            )
    return chunks


def _finish(reason: str | None, num_cached_tokens: int | None) -> Finish:
    known = _REASONS.get(reason or "")
    if known is None:
        raise EngineFailed(f"vLLM ended a request with reason {reason!r}")
    return Finish(reason=known, num_cached_tokens=num_cached_tokens or 0)  # type: ignore[arg-type]
