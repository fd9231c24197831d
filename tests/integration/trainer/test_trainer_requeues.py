"""Dead members that are wanted back, through the journal of a real trainer."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from infra.amqp.codec import decode, encode, read_headers
from infra.amqp.dead import original_message
from infra.roles.command.toml_text import to_toml
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.journal import Batch, Issued, Requeued
from schemas.work import Credit, Failure, Rollout
from tests.factories.deliveries import delivery
from tests.factories.world import World, coin, failure, headers_of, trajectory, working
from tests.integration.trainer.books import check_books, records_of

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[3]


class Dying(World):
    """Its reward worker gives up some rollouts, with what it gives up; later groups wait."""

    held_from = 1 << 30
    back: list[tuple[str, int]]

    async def deliver(self, credit: Credit, index: int, *, run_id: str) -> None:
        scored = trajectory(credit, index, version=max(self.version, credit.min_version), reward=0)
        if credit.purpose is Purpose.TRAIN and credit.group >= self.held_from:
            return
        if not self.fails(scored.rollout.rollout_id):
            await super().deliver(credit, index, run_id=run_id)
            return
        headers = headers_of(credit, index, run_id=run_id)
        envelope, body = encode(
            scored.rollout, app_id="x", correlation_id="x", headers=headers.to_amqp()
        )
        died = original_message(delivery("rollouts", envelope, body))
        lost: Failure = failure(credit, index, error="no judge").model_copy(
            update={"original": died}
        )
        await self.send(lost, headers)

    async def judge(self) -> None:
        """Score what comes back to `rollouts`, until cancelled."""
        self.back = []
        async for came in self.broker.subscribe("rollouts", prefetch=8):
            headers = read_headers(came)
            rollout = decode(came, came.body, Rollout)
            self.back.append((rollout.rollout_id, headers.attempt))
            credit = self.credits[0].model_copy(update={"group": rollout.group})
            scored = trajectory(credit, rollout.index, version=0, reward=coin(rollout.rollout_id))
            await self.send(scored.model_copy(update={"rollout": rollout}), headers)
            self.broker.ack(came)

    async def release(self, run_id: str) -> None:
        """The later groups come back after all."""
        held, self.held_from = self.held_from, 1 << 30
        for credit in [credit for credit in self.credits if credit.group >= held]:
            for index in credit.indexes:
                await self.deliver(credit, index, run_id=run_id)


async def dead(config: RunConfig, folder: Path, *words: str) -> str:
    """`run.py dead ...`; what it says."""
    recipe = folder / "recipe.toml"
    recipe.write_text(to_toml(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "run.py", "dead", *words, "--run", str(recipe), cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return output.decode()


async def test_a_member_of_an_open_group_goes_back_to_its_queue(
    recipe, trainer, connect, tmp_path
) -> None:
    """Its group waits for another member: it is trained with all four."""
    config = recipe(run={"steps": 2})
    world = Dying(await connect(app_id="world/0"), fails=lambda name: name == "1.0")
    world.reward = lambda name: float(name.endswith("1"))
    world.copies = lambda name: 0 if name == "1.1" else 1
    async with working(world):
        judging = asyncio.create_task(world.judge())
        running = asyncio.create_task(trainer(config))
        async with asyncio.timeout(60):
            while "1.0" not in await dead(config, tmp_path, "list"):
                await asyncio.sleep(0.2)
        assert "1 requeued, 0 refused" in await dead(config, tmp_path, "requeue", "1.0")
        async with asyncio.timeout(60):
            while world.back != [("1.0", 1)]:
                await asyncio.sleep(0.05)
        assert "no dead letters" in await dead(config, tmp_path, "list")
        world.copies = lambda name: 1
        for credit in [credit for credit in world.credits if credit.group == 1]:
            await world.deliver(credit, 1, run_id=world.states[0].run_id)
        assert await asyncio.wait_for(running, 60) == 0
        judging.cancel()
    check_books(config, steps=2)
    members = {m for r in records_of(config) if isinstance(r, Batch) for m in r.members}
    assert {"1.0", "1.1", "1.2", "1.3"} <= members


async def test_a_closed_group_becomes_a_new_credit_and_is_replayed_bit_for_bit(
    recipe, spawn, connect, tmp_path, broker_url, monkeypatch
) -> None:
    monkeypatch.setenv("WARREN_BROKER_URL", broker_url)
    config = recipe(run={"steps": 6})
    world = Dying(await connect(app_id="world/0"), fails=lambda name: name.startswith("1."))
    world.reward = lambda name: float(name.endswith("1"))
    world.held_from = 5
    async with working(world):
        child = spawn(config, env={"WARREN_FAILPOINT": "step.taken:5"})
        async with asyncio.timeout(90):
            while (await dead(config, tmp_path, "list")).count("no judge") < 4:
                await asyncio.sleep(0.2)
        said = await dead(config, tmp_path, "requeue", "1.0", "1.2")
        assert "2 requeued" in said, said
        async with asyncio.timeout(60):
            while not any(isinstance(record, Requeued) for record in records_of(config)):
                await asyncio.sleep(0.1)
        await world.release(world.states[0].run_id)
        assert await asyncio.to_thread(child.wait, 100) == -signal.SIGKILL
        child = spawn(config, resume=True)
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(child.wait, 60) == 0
    end = check_books(config, steps=6)
    assert (end["ledger/dead"], end["total/requeued"]) == (1, 1)
    records = records_of(config)
    (number,) = [r.groups[0] for r in records if isinstance(r, Issued) and r.positions == (1,)]
    credits = {credit.group: credit.position for credit in world.credits}
    assert credits[number] == 1
    assert all(p == g - 1 for g, p in credits.items() if g > number)
    log = (tmp_path / "trainer-1.log").read_text()
    assert "the same weights, bit for bit" in log and "OTHER weights" not in log


async def test_what_nobody_waits_for_comes_back_to_the_dead_with_the_reason(
    recipe, trainer, connect, tmp_path
) -> None:
    """The trainer refuses what the tool could not know to be useless."""
    config = recipe(run={"steps": 1})
    world = Dying(await connect(app_id="world/0"))
    world.held_from = 0
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: len(world.credits) >= 2 and world.states != [])
        run_id = world.states[0].run_id
        foreign = world.credits[0].model_copy(update={"purpose": Purpose.EVAL, "group": 0})
        world.held_from, world.fails = 1 << 30, lambda name: name.startswith("eval")
        await world.deliver(foreign, 2, run_id=run_id)
        said = await dead(config, tmp_path, "requeue", "eval0.2")
        assert "the evaluation of version 0 is closed" in said
        assert "eval0.2" in await dead(config, tmp_path, "list")
        world.fails, world.held_from = lambda _name: False, 0
        await world.release(run_id)
        assert await asyncio.wait_for(running, 60) == 0
    check_books(config, steps=1)
