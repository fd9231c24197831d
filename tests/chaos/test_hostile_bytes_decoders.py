"""Harmed messages at the decoders: each is refused with a reason, and nothing else ever happens.

AMQP bytes -> pika -> envelope -> headers -> checksum -> JSON -> model -> the queue's own checks
"""

import json
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.reward.reading import check_said
from consumers.rollout.delivery.reading import (
    Refused,
    check_reachable,
    read_own_headers,
    take_up,
)
from consumers.trainer.arriving.screening import screen_failure, screen_trajectory
from consumers.trainer.arriving.tally import Tally
from infra.amqp.codec import decode, encode, read_headers
from infra.amqp.dead import give_up
from infra.amqp.errors import BadMessage
from infra.amqp.io.io_thread import tune_pika
from infra.amqp.io.wire import to_properties
from infra.amqp.message import MAX_BODY_BYTES, Delivery, Outgoing
from producers.tasks import build_task, out_of_range, task_headers
from schemas.config import RunConfig
from schemas.headers import Headers
from schemas.work import Credit, Failure, FailureKind, Rollout, RolloutTask, Snapshot, Trajectory
from tests.chaos.harmed_json import nested
from tests.chaos.hostile_message import Hostile
from tests.chaos.mutations import NOT_A_NUMBER, mutations_for
from tests.chaos.real_messages import RUN_ID, real_message
from tests.factories.messages import GROUP_SIZE, model_for
from tests.factories.world import VOCAB_SIZE

WORK = (
    "credits",
    "prompts",
    "eval_prompts",
    "cancel_queue",
    "rollouts",
    "trajectories",
    "evaluations",
)
NEWEST = 0
MODELS: dict[str, Any] = {
    "credits": Credit,
    "prompts": RolloutTask,
    "eval_prompts": RolloutTask,
    "cancel_queue": Snapshot,
    "rollouts": Rollout,
    "trajectories": Trajectory,
    "evaluations": Trajectory,
    "failures": Failure,
}
UNKNOWN_AGENT = "an agent that nobody knows"
"""Only the worker that would run it can tell."""
tune_pika()


def foreign(headers: Headers) -> str | None:
    return None if headers.run_id == RUN_ID else "belongs to another run"


def read(delivery: Delivery) -> None:
    """All that its reader asks of a message before anything is done with it."""
    if delivery.queue in ("trajectories", "evaluations"):
        screen_trajectory(delivery, run_id=RUN_ID, newest_version=NEWEST, vocab_size=VOCAB_SIZE)
    elif delivery.queue in ("prompts", "eval_prompts", "cancel_queue"):
        headers = read_own_headers(delivery, foreign)
        check_reachable(headers, NEWEST)
        take_up(delivery, headers)
    else:
        headers = read_headers(delivery)
        if reason := foreign(headers):
            raise BadMessage(reason)
        model = decode(delivery, delivery.body, MODELS[delivery.queue])
        if isinstance(model, Credit):
            read_credit(model, headers)
        elif isinstance(model, Rollout):
            check_said(headers, model)


def read_credit(credit: Credit, headers: Headers) -> None:
    said = (headers.group, headers.purpose, headers.attempt, headers.min_version)
    if said != (credit.group, credit.purpose, credit.attempt, credit.min_version):
        raise BadMessage("headers name another credit")
    if reason := out_of_range(credit):
        raise BadMessage(reason)
    if (credit.dataset_fingerprint, credit.seed, credit.group_size) != ("f" * 64, 0, GROUP_SIZE):
        raise BadMessage("made for other data")


def refusal(delivery: Delivery) -> str:
    """The reason why a message is not taken; empty when it is."""
    try:
        read(delivery)
    except BadMessage as error:
        return error.reason
    except Refused as error:
        return str(error)
    return ""


class Dead:
    """A broker that only takes what is given up."""

    app_id = "test/0"

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.num_acked = 0

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        assert len(message.body) <= MAX_BODY_BYTES
        to_properties(message.envelope, persistent=True)
        self.sent.append(message)

    def ack(self, delivery: Delivery) -> bool:
        self.num_acked += 1
        return True


@pytest.mark.parametrize("queue", [*WORK, "failures"])
def test_what_is_not_harmed_is_taken(queue: str) -> None:
    assert refusal(real_message(queue).received()) == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("queue", WORK)
def test_each_of_many_harmed_messages_is_refused_with_its_reason(queue: str) -> None:
    rng = Random(f"decoders of {queue}")
    kinds = {k: v for k, v in mutations_for(queue).items() if k != UNKNOWN_AGENT}
    slow = {"a bomb", "a bomb that hides its size", "100,000 empty lists", "60 MiB, it says"}
    count = 0
    for kind, mutate in kinds.items():
        for _ in range(2 if kind in slow else 25):
            count += 1
            message = mutate(real_message(queue, index=rng.randrange(4)), rng).numbered(count)
            assert refusal(message.received()), (kind, message)
    assert count > 1_450


@pytest.mark.parametrize("queue", [*WORK, "failures"])
async def test_each_harmed_message_can_be_given_up(queue: str) -> None:
    rng = Random(f"giving up {queue}")
    for kind, mutate in mutations_for(queue).items():
        broker = Dead()
        delivery = mutate(real_message(queue), rng).numbered(1).received()
        failure = Failure(stage="test", kind=FailureKind.DATA, error=kind)
        await give_up(broker, delivery, failure)
        (sent,) = broker.sent
        assert broker.num_acked == 1
        told = decode(sent.envelope, sent.body, Failure)
        assert told.original is not None
        assert (told.error, told.original.queue) == (kind, queue)


@pytest.mark.timeout(60)
def test_a_harmed_failure_closes_nothing_or_the_member_that_its_headers_name() -> None:
    rng = Random("failures")
    for _ in range(10):
        for kind, mutate in mutations_for("failures").items():
            delivery = mutate(real_message("failures"), rng).numbered(1).received()
            screened = screen_failure(delivery, run_id=RUN_ID)
            if not isinstance(screened, str):
                assert screened.trajectory is None, kind
                assert screened.record.error, kind
                headers = delivery.envelope.headers
                assert screened.record.group == headers["group"], kind
                assert screened.record.index in (-1, headers["index"]), kind


def test_numbers_that_are_none_in_headers_are_no_numbers() -> None:
    message = real_message("trajectories").with_headers(group=NOT_A_NUMBER)
    assert "group" in refusal(message.received())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    if not isinstance(value, dict | list) or not value:
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    deeper = [place for name, one in inner for place in places(one, (*path, name))]
    return [path, *deeper] if path else deeper


HUGE = (
    2**31,
    2**48,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63),
    -(10**30),
    1e308,
    -1e308,
)
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    0.5,
    -1e-9,
    "",
    "text",
    "\u0000",
    [],
    {},
    [[0, 2**62]],
    [[-1, 5]],
)
DEEP = (nested(60), nested(300), {"a": {"b": nested(200)}})
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.sampled_from([*HUGE, *ODD, *DEEP]) | st.recursive(
    LEAVES, lambda some: st.lists(some, max_size=2), max_leaves=4
)


def replaced(message: Hostile, path: tuple[Any, ...], value: Any) -> Hostile:
    """Another value at a place, under a checksum that fits."""
    body = json.loads(message.body)
    inner = body
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return message.sealed(json.dumps(body).encode())


@pytest.mark.parametrize("queue", sorted(MODELS))
def test_with_an_odd_value_anywhere_what_is_taken_can_be_used(queue: str) -> None:
    """Refused, or as good as any: its arrays can be had, its numbers summed, and it fits into the
    next message."""
    original = real_message(queue)
    for path in places(json.loads(original.body)):
        for value in (*HUGE, *ODD, *DEEP):
            use(replaced(original, path, value))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(queue=st.sampled_from(sorted(MODELS)), data=st.data())
def test_with_any_value_anywhere_what_is_taken_can_be_used(queue: str, data: st.DataObject) -> None:
    original = real_message(queue)
    path = data.draw(st.sampled_from(places(json.loads(original.body))))
    use(replaced(original, path, data.draw(VALUES)))


def use(message: Hostile) -> None:
    delivery = message.received()
    if refusal(delivery):
        return
    model = decode(delivery, delivery.body, MODELS[message.queue])
    envelope, body = encode(model, app_id="a/0", correlation_id="", headers={})
    assert decode(envelope, body, type(model)) == model
    rollout = getattr(model, "rollout", model)
    progress = getattr(rollout, "progress", None)
    if progress is not None:
        assert progress.tokens.mask_array.size == progress.tokens.version_array.size
    if isinstance(model, Trajectory):
        tally = Tally()
        for _ in range(4):
            tally.add(model)
        encode_counts(tally)
    if isinstance(model, Credit):
        for index in model.indexes:
            headers = task_headers(task_of(model, index), model, run_id=RUN_ID)
            to_properties(envelope_with(headers), persistent=True)


def encode_counts(tally: Tally) -> None:
    orjson.dumps(tally.to_json())
    orjson.dumps(tally.since_last())


def task_of(credit: Credit, index: int) -> RolloutTask:
    config = RunConfig.model_validate(
        {
            "run": {"name": "n", "steps": 1},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d"}]},
            "rollout": {"max_prompt_tokens": 4, "max_response_tokens": 4},
            "reward": {"functions": [{"use": "r"}]},
            "trainer": {"lr": 1e-4},
        }
    )
    task = model_for("prompts")
    assert isinstance(task, RolloutTask)
    row = SimpleNamespace(messages=task.messages, tools=None, reward_data=task.reward_data)
    asked = credit.model_copy(update={"indexes": (index,)})
    return build_task(config, asked, row, row_number=0)  # type: ignore[arg-type]


def envelope_with(headers: Headers) -> Any:
    envelope, _ = encode(
        model_for("prompts"), app_id="a/0", correlation_id="", headers=headers.to_amqp()
    )
    return envelope
