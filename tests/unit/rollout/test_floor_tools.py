"""Rollouts that wait for a tool: a sync leaves them alone, leaving waits or starts them anew."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.rollout.agents.state import CutReason
from consumers.rollout.tools.tool import Tool, tool
from schemas.work import Sampling
from tests.unit.rollout.worker_fakes import EOS, PROMPT, Bench, task

TWO_TURNS = (*PROMPT, *range(10, 17), EOS, 5, EOS)


class Slow:
    """A tool whose calls last until `done`."""

    def __init__(self, **options: Any) -> None:
        self.done = asyncio.Event()
        self.calls = 0

        @tool(**options)
        async def slow() -> str:
            """Wait."""
            self.calls += 1
            await self.done.wait()
            return "here"

        self.tool: Tool = slow

    def task(self, group: int) -> Any:
        return task(group).model_copy(update={"agent": "tool", "tools": ("slow",)})

    def give_to(self, bench: Bench) -> None:
        bench.tools = {"slow": self.tool}


@asynccontextmanager
async def calling(
    tmp_path: Path, slow: Slow, *, returns: int = 0, **options: Any
) -> AsyncIterator[Bench]:
    """A floor whose one rollout waits for the tool."""
    bench = Bench(tmp_path, **options)
    slow.give_to(bench)
    async with bench:
        bench.broker.put("prompts", slow.task(0), returns=returns, returns_total=returns)
        await bench.until(lambda: slow.calls == 1)
        yield bench


async def test_a_sync_does_not_disturb_a_tool_and_the_next_turn_has_the_new_weights(
    tmp_path: Path,
) -> None:
    slow = Slow()
    async with calling(tmp_path, slow) as bench:
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert not bench.broker.log
        slow.done.set()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        (rollout,) = bench.broker.bodies("rollouts")
        assert tuple(rollout.progress.tokens.token_ids) == TWO_TURNS
        assert rollout.progress.tokens.versions == ((-1, 3), (0, 8), (-1, 1), (1, 1))
        assert not rollout.progress.interruptions


async def test_a_turn_that_begins_during_a_swap_waits_at_the_gate(tmp_path: Path) -> None:
    slow = Slow()
    async with calling(tmp_path, slow) as bench:
        num_requests = len(bench.engine.requests)
        bench.floor.gate.close()
        slow.done.set()
        await asyncio.sleep(0.02)
        assert len(bench.engine.requests) == num_requests
        bench.floor.gate.open()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)


async def test_leaving_carries_a_repeatable_call_as_pending(tmp_path: Path) -> None:
    slow = Slow()
    async with calling(tmp_path, slow) as bench:
        bench.broker.giving = False
        await bench.floor.departure.leave()
        (snapshot,) = bench.broker.bodies("cancel_queue")
        assert [call.function.name for call in snapshot.pending_calls] == ["slow"]
        assert bench.broker.headers("cancel_queue")[0].returns == 0, "a turn was gained"
        assert not bench.broker.unacked


async def test_a_call_that_outlasts_the_grace_starts_its_rollout_again_elsewhere(
    tmp_path: Path,
) -> None:
    slow = Slow(repeatable=False)
    async with calling(tmp_path, slow, returns=1, limits={"grace_s": 0.2}) as bench:
        bench.broker.giving = False
        await bench.floor.departure.leave()
        assert bench.broker.bodies("prompts") == [slow.task(0)]
        (headers,) = bench.broker.headers("prompts")
        assert (headers.returns, headers.returns_total) == (2, 2)
        assert not bench.broker.unacked
        assert len(bench.floor.slots) == 0


async def test_a_pinned_rollout_stays_over_swaps_and_leaves_as_its_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(pins=True)
    caplog.set_level(logging.INFO)
    async with calling(tmp_path, slow, limits={"snapshot_interval_s": 0.02}) as bench:
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        await asyncio.sleep(0.05)
        assert not bench.broker.log, "neither a sync nor the interval publishes it"
        assert caplog.text.count("0.0 is pinned to this worker") == 1
        assert "0 cut, 1 stay (1 pinned)" in caplog.text
        assert bench.floor.describe()["counters"]["pinned"] == 1
        bench.broker.giving = False
        await bench.floor.departure.leave()
        assert bench.broker.bodies("prompts") == [slow.task(0)]
        assert bench.floor.describe()["counters"]["pinned"] == 0


async def test_a_pinned_rollout_is_resumed_here_under_the_new_weights(tmp_path: Path) -> None:
    slow = Slow(pins=True)
    async with calling(tmp_path, slow) as bench:
        bench.engine.hold_at = 2
        slow.done.set()
        await bench.until(lambda: bool(bench.engine.running))
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert not bench.engine.interrupted
        bench.engine.release()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        (rollout,) = bench.broker.bodies("rollouts")
        assert not rollout.progress.interruptions
        assert {name for name, _, _ in bench.broker.log} == {"publish", "ack"}
        assert not bench.broker.bodies("cancel_queue")


async def test_sampling_options_pin_a_rollout_from_its_first_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"presence_penalty": 0.5}
    caplog.set_level(logging.INFO)
    async with Bench(
        tmp_path,
        engine="vllm",
        on_sync="in_flight",
        sampling_options=options,
        limits={"snapshot_interval_s": 0.02},
    ) as bench:
        given = task(0).model_copy(update={"sampling": Sampling(options=options)})
        bench.broker.put("prompts", given)
        bench.engine.hold_at = 4
        await bench.until(lambda: bool(bench.engine.running))
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        await asyncio.sleep(0.05)
        assert not bench.broker.log
        assert caplog.text.count("presence_penalty would mean something else after a cut") == 1
        assert bench.engine.requests[0].options == options
        bench.broker.giving = False
        await bench.floor.departure.leave()
        assert bench.broker.bodies("prompts") == [given]


async def test_a_cut_for_which_the_turn_ended_too_early_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The turn ends between the choice of what to cut and the cut itself; its tool then takes
    as long as it likes."""
    slow, bench = Slow(), Bench(tmp_path)
    slow.give_to(bench)
    bench.engine.hold_at = 3
    async with bench:
        bench.broker.put("prompts", slow.task(0))
        await bench.until(lambda: any(held.state for held in bench.floor.slots))
        (held,) = bench.floor.slots
        await bench.until(lambda: held.state.num_new_tokens == 3)
        loop = bench.floor.runner._loop
        cut = loop.cut_all

        async def late(states: Any, reason: CutReason) -> None:
            bench.engine.release()
            await bench.until(lambda: slow.calls == 1)
            await cut(states, reason)

        monkeypatch.setattr(loop, "cut_all", late)
        (settled,) = await bench.floor.runner.cut([held], CutReason.SYNC, version=1)
        assert settled.is_set()
        assert held.state.cut_reason is None
        slow.done.set()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
