"""A broker in memory, an engine that samples by rule, and a worker's floor on top of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.engines.base import Finish, GenerateRequest, TokenChunk
from consumers.rollout.floor import Floor, build_floor
from consumers.rollout.limits import Limits
from consumers.rollout.parsers.base import ParsedTurn
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.tool import Tool
from consumers.rollout.updates.gate import Gate
from infra.runs.folder import RunFolder
from infra.weights.errors import WeightsCorrupt
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.chat import ChatMessage, FunctionCall, Speaker
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from schemas.headers import Purpose
from schemas.work import Budgets, RolloutTask, Sampling
from tests.factories.contexts import role_context
from tests.factories.published import NO_WEIGHTS
from tests.unit.rollout.fake_broker import RUN_ID, FakeBroker

EOS = 2
PROMPT = (1, 3, 4)


class RuleEngine:
    """The token at position p is 10 + p, the one at `length` the end. Stops where told.

    `hold_at` is the number of sampled tokens at which requests pause; None lets them run. A deaf
    one hears no interrupt. `lengths` are those of single rollouts; `before_token` is told of each
    rollout and position.
    """

    def __init__(self, *, length: int = 8) -> None:
        self.length = length
        self.hold_at: int | None = None
        self.prompt_length = len(PROMPT)
        self.version, self.fingerprint = -1, ""
        self.refuse: type[Exception] | None = None
        self.loads: list[int] = []
        self.fail: Exception | None = None
        self.requests: list[GenerateRequest] = []
        self.running: dict[str, asyncio.Event] = {}
        self.interrupted: list[str] = []
        self.deaf = False
        self.logprob = -0.5
        self.lengths: dict[str, int] = {}
        self.num_sampled = 0
        self.num_cached = 0
        self.before_token: Callable[[str, int], Awaitable[None]] | None = None
        self._changed = asyncio.Event()

    def release(self, hold_at: int | None = None) -> None:
        self.hold_at = hold_at
        self._changed.set()
        self._changed = asyncio.Event()

    def die(self, error: Exception) -> None:
        self.fail = error
        self.release(self.hold_at)

    async def start(self, weights: PreparedWeights) -> None:
        self.version, self.fingerprint = weights.version, weights.fingerprint

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        cut = self.running[request.request_id] = asyncio.Event()
        self.requests.append(request)
        try:
            position = len(request.token_ids) - self.prompt_length
            rollout_id = request.request_id.partition("#")[0]
            length = self.lengths.get(rollout_id, self.length)
            for _ in range(request.max_tokens):
                if self.before_token is not None:
                    await self.before_token(rollout_id, position)
                await self._pause(position, cut)
                if cut.is_set():
                    yield Finish(reason="interrupted", num_cached_tokens=self.num_cached)
                    return
                token = EOS if position + 1 >= length else 10 + position
                self.num_sampled += 1
                yield TokenChunk(
                    token_ids=(token,), logprobs=(self.logprob,), policy_version=self.version
                )
                if token in request.stop_token_ids:
                    yield Finish(reason="stop", num_cached_tokens=self.num_cached)
                    return
                position += 1
            yield Finish(reason="length", num_cached_tokens=self.num_cached)
        finally:
            del self.running[request.request_id]

    async def _pause(self, position: int, cut: asyncio.Event) -> None:
        await asyncio.sleep(0)
        while self.hold_at is not None and position >= self.hold_at and not cut.is_set():
            waits = [asyncio.ensure_future(e.wait()) for e in (cut, self._changed)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            if self.fail is not None:
                raise self.fail
        if self.fail is not None:
            raise self.fail

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        for request_id in list(self.running) if request_ids is None else request_ids:
            if request_id in self.running:
                self.interrupted.append(request_id)
                self.running[request_id].set()

    async def load_weights(self, weights: PreparedWeights) -> None:
        self.loads.append(weights.version)
        if self.refuse is not None:
            raise self.refuse("does not fit")
        self.version, self.fingerprint = weights.version, weights.fingerprint

    def serving(self) -> ServedWeights:
        return ServedWeights(version=self.version, fingerprint=self.fingerprint)

    async def close(self) -> None:
        self.deaf = False
        await self.interrupt()


class PlainRenderer:
    """Every prompt is `PROMPT`; every reply is one token."""

    eos_token_ids = frozenset({EOS})
    vocab_size = 128

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return list(PROMPT)

    def delta(self, new_messages: Any, *, ended_by: int | None) -> list[int]:
        return [5]

    def decode(self, token_ids: Any, *, skip_special: bool) -> str:
        return " ".join(map(str, token_ids))

    def plain(self, text: str) -> str:
        return text


class FirstTurnCalls:
    """Finds one call of `tool_name` in the turn that follows the prompt, and none later."""

    def __init__(self, tool_name: str = "") -> None:
        self.tool_name = tool_name

    def stop_token_ids(self, renderer: Any) -> frozenset[int]:
        return frozenset()

    def parse(self, text: str, token_ids: Any) -> ParsedTurn:
        first = list(token_ids)[:1] == [10]
        call = FunctionCall(name=self.tool_name, arguments="{}")
        return ParsedTurn(content=text, calls=(call,) if self.tool_name and first else ())


def config(tmp_path: Path, **rollout: Any) -> RunConfig:
    """A recipe with these keys in [rollout]."""
    return RunConfig.model_validate(
        {
            "run": {"name": "test", "dir": str(tmp_path), "steps": 1},
            "model": {"path": str(tmp_path / "model")},
            "data": {"train": [{"path": "x.jsonl"}]},
            "rollout": rollout,
            "reward": {"functions": [{"use": "x"}]},
            "trainer": {"lr": 1e-4},
        }
    )


def task(group: int = 0, index: int = 0, *, purpose: Purpose = Purpose.TRAIN) -> RolloutTask:
    """A rollout to be done."""
    name = f"{group}.{index}" if purpose is Purpose.TRAIN else f"eval{group}.{index}"
    return RolloutTask(
        rollout_id=name,
        group=group,
        index=index,
        purpose=purpose,
        row=0,
        agent="single_turn",
        messages=(ChatMessage(role=Speaker.USER, content="?"),),
        prompt_hash="0" * 64,
        sampling=Sampling(),
        budgets=Budgets(
            max_prompt_tokens=16, max_response_tokens=64, max_turn_tokens=64, max_turns=4
        ),
    )


def manifest(version: int) -> WeightsPublished:
    """A version without files."""
    return WeightsPublished(
        run_id=RUN_ID,
        version=version,
        incarnation=1,
        step=version,
        folder=f"v{version}",
        full=NO_WEIGHTS,
        fingerprint=f"print-{version}",
    )


class Bench:
    """A floor on fakes. `store` is the newest manifest, `older` the one before, `unreadable` names
    damaged versions. It holds weights as `HeldWeights` does; `settled` are the versions that were
    taken, None for one that was discarded, -1 for the end."""

    def __init__(self, tmp_path: Path, *, slots: int = 2, limits: Any = None, **rollout: Any):
        self.broker = FakeBroker()
        self.engine = RuleEngine()
        self.store: WeightsPublished | None = manifest(0)
        self.first_heard: int | None = 0
        self.older: WeightsPublished | None = None
        self.unreadable: set[int] = set()
        self.tools: dict[str, Tool] = {}
        self.preparing: list[int] = []
        self.settled: list[int | None] = []
        self.prepare_gate: Any = None
        self.config = config(tmp_path, slots=slots, **rollout)
        self.context = role_context(
            self.config, self.broker, worker="w", folder=RunFolder(tmp_path), run_id=RUN_ID
        )
        self.limits = Limits(
            **{
                "slots": slots,
                "idle_min_s": 0.001,
                "idle_max_s": 0.002,
                "sweep_s": 0.005,
                "retry_s": 0.005,
                "confirm_patience_s": 0.05,
                "max_swap_delay_s": 0.05,
                "grace_s": 30.0,
                **(limits or {}),
            }
        )
        self.floor: Floor
        self.loops: list[asyncio.Task[None]] = []

    def prepare(self, published: WeightsPublished) -> PreparedWeights:
        self.preparing.append(published.version)
        if self.prepare_gate is not None:
            self.prepare_gate(published.version)
        if published.version in self.unreadable:
            raise WeightsCorrupt(f"version {published.version} is damaged")
        return PreparedWeights(
            version=published.version,
            fingerprint=published.fingerprint,
            model_folder=Path(),
            files=(),
            tensors={},
        )

    def taken(self, version: int) -> None:
        self.settled.append(version)

    def discard(self) -> None:
        self.settled.append(None)

    def close(self) -> None:
        self.settled.append(-1)

    async def newest(self, below: int | None = None) -> WeightsPublished | None:
        return self.store if below is None else self.older

    def loop(self, gate: Any) -> AgentLoop:
        return AgentLoop(
            engine=self.engine,
            renderer=PlainRenderer(),  # type: ignore[arg-type]
            parser=FirstTurnCalls(next(iter(self.tools), "")),
            tools=ToolBox(self.tools),
            worker="w",
            admit=gate.admit,
        )

    async def __aenter__(self) -> "Bench":
        gate = Gate()
        self.floor = build_floor(
            self.context,
            engine=self.engine,
            loop=self.loop(gate),
            gate=gate,
            limits=self.limits,
            newest=self.newest,
            weights=self,
        )
        if self.first_heard is not None:
            self.floor.sync.hear(manifest(self.first_heard))
        first = await self.floor.sync.first()
        await self.floor.swap.start(first)
        await self.floor.sync.settle(first.version, taken=True)
        for run in (self.floor.intake.run, self.floor.sync.run, self.floor.sweep.run):
            self.loops.append(asyncio.create_task(run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in (*self.loops, *self.floor.runner.tasks):
            one.cancel()
        results = await asyncio.gather(*self.loops, return_exceptions=True)
        failures = [r for r in results if r is not None]
        assert all(isinstance(r, asyncio.CancelledError) for r in failures), failures

    async def until(self, reached: Any, what: str = "the condition") -> None:
        """Give the loops time, as little as possible."""
        deadline = asyncio.get_running_loop().time() + 20
        while asyncio.get_running_loop().time() < deadline:
            if reached():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{what} was not reached; log {self.broker.log}")

    def publish(self, version: int) -> None:
        """The trainer has a new version."""
        self.store = manifest(version)
        self.floor.sync.hear(manifest(version))


def position_of(log: list[Any], entry: tuple[str, str, str]) -> int:
    """Where in the log something happened first."""
    return log.index(entry)


async def hold(bench: Bench, *, at: int, rollouts: int) -> None:
    """Wait until so many rollouts stand still at a token of their turn."""
    bench.engine.hold_at = at
    want = at + len(PROMPT)
    await bench.until(
        lambda: (
            sum(
                one.state is not None and len(one.state.token_ids) == want
                for one in bench.floor.slots
            )
            == rollouts
        ),
        "holding",
    )
