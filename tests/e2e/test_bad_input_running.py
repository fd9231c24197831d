"""One run in which almost everything goes wrong: it completes, and each fault has its dead letter.

Bad rows, rewards that raise, hang or give no number, tools that raise or hang, and messages that
nobody should have sent.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.message import Envelope, Outgoing
from infra.amqp.topology import WORK_QUEUES
from producers.datasets import Dataset
from schemas.base import Message
from schemas.config import DataSource
from schemas.headers import Headers
from schemas.journal import Arrived
from schemas.work import Failure, Trajectory
from tests.broker_fixtures import Connect
from tests.e2e.plugs import ALL_RAISE, GIVES_NAN, HANGS, RAISES
from tests.e2e.runs import RunRecord, eventually, finish, rows, start, write_recipe
from tests.factories.messages import model_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

STEPS, NUM_ROWS = 6, 40
NO_PROMPT, TOO_LONG = 7, 8
"""Groups of the bad rows."""
QUEUES = ("prompts", "cancel_queue", "trajectories")


def bad_rows(folder: Path) -> list[dict]:
    """Rows of which two are bad: those of the groups `NO_PROMPT` and `TOO_LONG`."""
    data = rows(NUM_ROWS)
    path = folder / "order.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    dataset = Dataset((DataSource(path=str(path)),), seed=0)
    data[dataset.row_of(NO_PROMPT)] = {"question": "A:12+34=?"}
    data[dataset.row_of(TOO_LONG)] = {"prompt": "A:12+34=?" * 2, "ground_truth": "046"}
    dataset.close()
    return data


def foreign(message: Message, headers: Headers, damage: str) -> tuple[Envelope, bytes]:
    """A message that came to harm on its way."""
    envelope, body = encode(
        message,
        app_id="test/0",
        correlation_id=headers.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"{damage}-{headers.rollout_id}",
    )
    if damage == "truncated":
        return envelope, body[: len(body) // 2]
    if damage == "flipped":
        return envelope, bytes([body[0]]) + bytes([body[1] ^ 4]) + body[2:]
    return envelope, body


def garbage(queue: str) -> Outgoing:
    """Bytes from nowhere."""
    envelope = Envelope(
        message_id=f"garbage-{queue}",
        type="",
        correlation_id="",
        app_id="",
        headers={},
        timestamp=0,
    )
    return Outgoing(exchange="", routing_key=queue, envelope=envelope, body=b"\x00\xff garbage")


def what_nobody_should_send(run_id: str) -> list[Outgoing]:
    """For each queue: garbage, another run's, a truncated one, one with a flipped bit.

    Those with our headers name the first members of a group of their own for each queue.
    """
    messages = []
    for group, queue in enumerate(QUEUES):
        messages.append(garbage(queue))
        for index, damage in enumerate(("alien", "truncated", "flipped")):
            name = f"{group}.{index}"
            headers = Headers(
                run_id="another" if damage == "alien" else run_id,
                group=group,
                index=index,
                rollout_id=name,
            )
            body = model_for(queue, group, index)
            envelope, raw = foreign(body, headers, damage)
            messages.append(Outgoing(exchange="", routing_key=queue, envelope=envelope, body=raw))
    return messages


async def dead_letters(broker: Broker) -> list[Failure]:
    letters = []
    while (delivery := await broker.get("dead_letters")) is not None:
        letters.append(Failure.model_validate_json(delivery.body))
        broker.ack(delivery)
    return letters


async def test_a_run_full_of_faults_completes_and_tells_of_each(
    tmp_path: Path, caller_folder: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    recipe = write_recipe(
        tmp_path,
        run_name,
        model=caller_folder,
        data=bad_rows(tmp_path),
        steps=STEPS,
        tool="tests.e2e.plugs:add",
        reward="tests.e2e.plugs:faulty",
        reward_timeout=8.0,
    )
    up = start(tmp_path, "up", str(recipe), url=broker_url)
    record = RunRecord(tmp_path / "runs" / run_name)
    run_id = await asyncio.to_thread(eventually, record.run_id, "the first version")
    broker = await connect()
    for message in what_nobody_should_send(run_id):
        await broker.publish(message)
    code = await asyncio.to_thread(up.exit_code)
    assert code == 0, up.output()

    record.check_whole(steps=STEPS)
    letters = await dead_letters(broker)
    check_foreign(letters)
    check_rewards(letters, record)
    check_rows(letters, record)
    check_tools(record)
    for queue in (*WORK_QUEUES, "failures"):
        assert (await broker.depth(queue))[0] == 0, queue

    code, output = await asyncio.to_thread(finish, tmp_path, "up", str(recipe), url=broker_url)
    assert code == 2
    assert f"{record.root} exists already" in output
    assert "--resume goes on with it, --purge removes it" in output


def check_foreign(letters: list[Failure]) -> None:
    """All twelve are dead, with a reason."""
    reasons = {
        letter.original.message_id: (letter.original.queue, letter.error)
        for letter in letters
        if letter.original is not None
    }
    for group, queue in enumerate(QUEUES):
        for name, words in (
            (f"garbage-{queue}", "header"),
            (f"alien-{group}.0", "another"),
            (f"truncated-{group}.1", "checksum"),
            (f"flipped-{group}.2", "checksum"),
        ):
            assert reasons[name][0] == queue
            assert words in reasons[name][1], reasons[name]


def check_rewards(letters: list[Failure], record: RunRecord) -> None:
    """No fault became a reward; the siblings were trained."""
    of = {letter.rollout_id: letter for letter in letters if letter.stage == "reward"}
    name = "tests.e2e.plugs:faulty"
    assert of[f"{RAISES}.0"].error == f"reward {name!r}: KeyError: 'the answer'"
    assert 'return float({}["the answer"])' in of[f"{RAISES}.0"].traceback
    assert of[f"{HANGS}.0"].error == f"reward {name!r} did not return in 8 s and was killed"
    assert "nan (float), not a finite number" in of[f"{GIVES_NAN}.0"].error
    assert {f"{ALL_RAISE}.{index}" for index in range(4)} <= set(of)
    for group in (RAISES, HANGS, GIVES_NAN):
        assert record.end_of(group) == "trained"
        assert record.errors()[f"{group}.0"].startswith("reward: ")
    assert record.end_of(ALL_RAISE) == "dead"


def check_rows(letters: list[Failure], record: RunRecord) -> None:
    errors = Counter(letter.error for letter in letters if letter.group == NO_PROMPT)
    ((error, count),) = errors.items()
    assert count == 4
    assert "train.jsonl:" in error
    assert "no prompt: the row has the columns question" in error
    long = [letter.error for letter in letters if letter.group == TOO_LONG]
    assert len(long) == 4
    assert all("18 tokens" in error and "16" in error for error in long)
    assert record.end_of(NO_PROMPT) == record.end_of(TOO_LONG) == "dead"


def check_tools(record: RunRecord) -> None:
    """What went wrong in a tool was text for the model."""
    texts: set[str] = set()
    for entry in record.entries():
        if isinstance(entry.record, Arrived) and entry.record.type == Trajectory.__name__:
            progress = Trajectory.model_validate_json(entry.body).rollout.progress
            told = {message.content for message in progress.messages}
            for result in progress.tool_results:
                assert result.content in told
                texts.add("sum" if result.ok else result.content.rstrip("0123456789"))
    assert texts == {
        "sum",
        "Error: add failed: ArithmeticError: no sums with ",
        "Error: add did not finish within 2 s",
    }
