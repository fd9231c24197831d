"""Random syncs, lost connections, alarms and refused confirms: nothing is lost, all is the same."""

import asyncio
import random
from pathlib import Path

import pytest

from consumers.rollout.agents.state import CutReason
from tests.unit.rollout.worker_fakes import EOS, PROMPT, Bench, task

LENGTH = 30
WHOLE = (*PROMPT, *range(10, 10 + LENGTH - 1), EOS)
NUM_TASKS = 40


def strike(bench: Bench, dice: random.Random, version: int) -> int:
    """One piece of bad luck; returns the newest version."""
    match dice.randrange(7):
        case 0 | 1:
            bench.publish(version + 1)
            return version + 1
        case 2:
            bench.broker.lose_deliveries()
        case 3:
            bench.broker.confirming.clear()
        case 4:
            bench.broker.blocked = not bench.broker.blocked
        case 5:
            bench.engine.release(dice.choice([None, 3, 12, 25]))
        case 6:
            bench.broker.confirming.set()
    return version


def calm(bench: Bench) -> None:
    bench.broker.confirming.set()
    bench.broker.blocked = False
    bench.engine.release()


@pytest.mark.parametrize("on_sync", ["republish", "in_flight", "drain"])
@pytest.mark.parametrize("seed", range(6))
async def test_every_task_ends_as_the_same_rollout_whatever_happens(
    tmp_path: Path, seed: int, on_sync: str
) -> None:
    dice = random.Random(seed)
    limits = {
        "grace_s": 0.02,
        "confirm_patience_s": 0.02,
        "max_swap_delay_s": 0.02,
        "readopt_s": 0.1,
        "snapshot_interval_s": 0.3,
    }
    async with Bench(tmp_path, slots=5, limits=limits, on_sync=on_sync) as bench:
        bench.engine.length = LENGTH
        version = 0
        for group in range(NUM_TASKS):
            bench.broker.put("prompts", task(group), min_version=version if group % 7 else 0)
            version = strike(bench, dice, version)
            if dice.random() < 0.1:
                await bench.floor.runner.cut(bench.floor.slots, CutReason.INTERVAL)
            await asyncio.sleep(dice.choice([0.0, 0.001, 0.005]))
        calm(bench)
        await bench.until(
            lambda: (
                not (
                    bench.broker.unacked
                    or bench.broker.queues["prompts"]
                    or bench.broker.queues["cancel_queue"]
                    or len(bench.floor.slots)
                )
            ),
            "everything done",
        )
        rollouts = bench.broker.bodies("rollouts")
        assert {one.rollout_id for one in rollouts} == {f"{group}.0" for group in range(NUM_TASKS)}
        assert {tuple(one.progress.tokens.token_ids) for one in rollouts} == {WHOLE}
        assert not bench.broker.dead
        assert bench.broker.most_unacked <= 5
        assert bench.floor.swap.version == version
