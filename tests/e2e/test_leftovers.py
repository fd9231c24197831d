"""Messages of another run of the same name: refused at the start, dead letters afterwards."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.amqp.topology import WORK_QUEUES
from schemas.headers import Headers
from schemas.work import Credit, Failure
from tests.broker_fixtures import Connect
from tests.e2e.runs import RunRecord, eventually, finish, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 6


def leftover(queue: str) -> Outgoing:
    """What another run might have left there: nobody may look further than at its run."""
    credit = Credit(group=0, indexes=(0,), dataset_fingerprint="", seed=0, group_size=4)
    envelope, body = encode(
        credit,
        app_id="trainer/of-another-run",
        correlation_id="0.0",
        headers=Headers(run_id="another", group=0, index=0, rollout_id="0.0").to_amqp(),
        message_id=f"left in {queue}",
    )
    return Outgoing(exchange="", routing_key=queue, envelope=envelope, body=body)


async def test_leftovers_of_another_run(
    tmp_path: Path, untaught_folder: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    recipe = str(
        write_recipe(
            tmp_path,
            run_name,
            model=untaught_folder,
            steps=STEPS,
            reward="tests.e2e.plugs:gated",
            reward_timeout=300,
        )
    )
    broker, gate = await connect(), tmp_path / "gate"
    record = RunRecord(tmp_path / "runs" / run_name)
    for queue in WORK_QUEUES:
        await broker.publish(leftover(queue))
    code, output = await asyncio.to_thread(finish, tmp_path, "up", recipe, url=broker_url)
    assert code == 2, output
    assert f"queues of run {run_name!r} hold messages of an earlier one" in output
    assert [(await broker.depth(queue))[0] for queue in WORK_QUEUES] == [1] * len(WORK_QUEUES)

    up = start(tmp_path, "up", recipe, "--purge", url=broker_url, gate=gate)
    await asyncio.to_thread(eventually, record.num_steps, "the first step")
    for queue in WORK_QUEUES:
        await broker.publish(leftover(queue))
    letters: list[Failure] = []
    async with asyncio.timeout(120):
        while len(letters) < len(WORK_QUEUES):
            delivery = await broker.get("dead_letters")
            if delivery is None:
                await asyncio.sleep(0.1)
                continue
            letters.append(Failure.model_validate_json(delivery.body))
            broker.ack(delivery)
    gate.touch()
    assert await asyncio.to_thread(up.exit_code) == 0, up.output()

    record.check_whole(steps=STEPS)
    names = Counter(letter.original.message_id for letter in letters if letter.original)
    assert names == {f"left in {queue}": 1 for queue in WORK_QUEUES}
    assert {letter.error.partition(",")[0] for letter in letters} == {"belongs to run 'another'"}
    assert "starting it again" not in up.output()
