"""A rollout that fails by itself is tried again a few times, and counted apart from returns."""

import asyncio
from pathlib import Path

import pytest

from consumers.rollout.agents.base import Agent
from consumers.rollout.agents.state import CutReason
from infra.amqp.errors import MessageTooLarge
from schemas.work import FailureKind, RolloutTask, Snapshot
from tests.unit.rollout.worker_fakes import EOS, PROMPT, Bench, task

HERE = "tests.unit.rollout.test_floor_attempts"
WHOLE = (*PROMPT, *range(10, 17), EOS)


class Brittle(Agent):
    """Raises when its turn has ended, as often as `failures` says."""

    failures = 0

    def next_phase(self, turn):  # type: ignore[no-untyped-def]
        if type(self).failures > 0:
            type(self).failures -= 1
            raise KeyError("a field that is not there")
        return super().next_phase(turn)


@pytest.fixture(autouse=True)
def _sound() -> None:
    Brittle.failures = 0


def brittle(group: int = 0) -> RolloutTask:
    return task(group).model_copy(update={"agent": f"{HERE}:Brittle"})


async def test_an_attempt_that_fails_is_done_again_and_then_counts_no_more(
    tmp_path: Path,
) -> None:
    Brittle.failures = 2
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", brittle(), returns=1, returns_total=4)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        (rollout,) = bench.broker.bodies("rollouts")
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE
        (headers,) = bench.broker.headers("rollouts")
        assert (headers.data_attempts, headers.returns_total) == (0, 4), "scoring counts its own"
        assert bench.floor.counters.data_retries == 2
        assert len(bench.engine.requests) == 3
        assert not bench.broker.dead
        assert not bench.broker.unacked


async def test_both_budgets_are_told_when_the_last_attempt_fails(tmp_path: Path) -> None:
    Brittle.failures = 3
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", brittle(), returns=1, returns_total=4)
        bench.broker.put("prompts", task(1))
        await bench.until(lambda: bool(bench.broker.dead))
        (failure,) = bench.broker.dead
        assert "KeyError: 'a field that is not there'" in failure.error
        assert "in next_phase" in failure.traceback
        assert (failure.returns, failure.data_attempts, failure.attempts) == (4, 3, 7)
        assert (failure.stage, failure.kind) == ("rollout", FailureKind.DATA)
        assert failure.original is not None
        assert failure.original.queue == "prompts"
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert not bench.broker.unacked


async def test_the_last_attempt_begins_anew_from_the_task(tmp_path: Path) -> None:
    Brittle.failures = 2
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 3
        bench.broker.put("prompts", brittle())
        await bench.until(
            lambda: any(h.state and h.state.num_new_tokens == 3 for h in bench.floor.slots)
        )
        bench.broker.giving = False
        await bench.floor.runner.cut(bench.floor.slots, CutReason.LEAVE)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        bench.engine.release()
        bench.engine.requests.clear()
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        starts = [len(request.token_ids) for request in bench.engine.requests]
        assert starts == [6, 6, 3], "twice from the snapshot, then from the prompt"
        assert not bench.broker.unacked


async def test_a_limit_of_one_allows_no_second_attempt(tmp_path: Path) -> None:
    Brittle.failures = 1
    async with Bench(tmp_path, limits={"data_attempts": 1}) as bench:
        bench.broker.put("prompts", brittle())
        await bench.until(lambda: bool(bench.broker.dead))
        assert bench.broker.dead[0].data_attempts == 1
        assert len(bench.engine.requests) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"agent": "no_such_agent"}, "agent 'no_such_agent' cannot be had"),
        ({"agent": "antigravity:fly"}, "agent 'antigravity:fly' is none of the recipe's"),
        ({"agent": "tool", "tools": ("no_such_tool",)}, "this worker has no tool no_such_tool"),
    ],
)
async def test_what_cannot_be_done_is_not_tried_again(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0).model_copy(update=change))
        await bench.until(lambda: bool(bench.broker.dead))
        (failure,) = bench.broker.dead
        assert says in failure.error
        assert (failure.data_attempts, failure.attempts) == (1, 1)
        assert not bench.engine.requests


async def test_a_malformed_result_of_the_engine_is_tried_again(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.logprob = float("nan")
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bench.floor.counters.data_retries == 1)
        bench.engine.logprob = -0.5
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert not bench.broker.dead


async def test_a_snapshot_that_is_too_large_is_a_failure_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path) as bench:
        publish = bench.broker.publish

        async def limited(message, *, timeout_s=None):  # type: ignore[no-untyped-def]
            if message.envelope.type == Snapshot.__name__:
                raise MessageTooLarge("a message of 17.0 MiB exceeds the limit of 16.0 MiB")
            await publish(message, timeout_s=timeout_s)

        monkeypatch.setattr(bench.broker, "publish", limited)
        bench.engine.hold_at = 3
        bench.broker.put("prompts", task(0))
        await bench.until(
            lambda: any(h.state and h.state.num_new_tokens == 3 for h in bench.floor.slots)
        )
        await bench.floor.runner.cut(bench.floor.slots, CutReason.LEAVE)
        await bench.until(lambda: bool(bench.broker.dead))
        (failure,) = bench.broker.dead
        assert "17.0 MiB" in failure.error
        assert (failure.kind, failure.data_attempts) == (FailureKind.DATA, 1)
        await asyncio.sleep(0.01)
        assert not bench.broker.unacked
        assert len(bench.floor.slots) == 0


async def test_a_failure_whose_delivery_was_lost_waits_for_the_next_one(tmp_path: Path) -> None:
    Brittle.failures = 1
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 3
        bench.broker.put("prompts", brittle())
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.broker.lose_deliveries()
        bench.engine.release()
        await bench.until(lambda: any(held.outcome is not None for held in bench.floor.slots))
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert bench.floor.counters.data_retries == 1
        assert bench.floor.counters.readopted == 1
