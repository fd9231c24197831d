"""What an operator sends for a member may be anything: only what is whole goes back to a queue."""

import base64
from typing import Any

import pytest

from consumers.trainer.steering.going_back import can_go_back, going_back
from infra.amqp.codec import decode, encode
from infra.amqp.dead import original_message
from infra.amqp.io.publisher import to_publication
from schemas.headers import Headers
from schemas.journal import Requeued
from schemas.work import OriginalMessage, Rollout
from tests.factories.deliveries import delivery
from tests.factories.messages import model_for

WANTED = Requeued(rollout_id="3.1", group=3, index=1, letter="l", by="ana")


def original(**changes: Any) -> OriginalMessage:
    envelope, body = encode(
        model_for("rollouts"),
        app_id="x",
        correlation_id="3.1",
        headers=Headers(run_id="a", group=3, index=1, rollout_id="3.1").to_amqp(),
        message_id="m",
    )
    return original_message(delivery("rollouts", envelope, body)).model_copy(update=changes)


def test_the_same_bytes_go_back_as_a_new_attempt() -> None:
    assert can_go_back(original(), WANTED)
    outgoing = going_back(original(), 5, "trainer/t")
    assert (outgoing.exchange, outgoing.routing_key) == ("", "rollouts")
    assert decode(outgoing.envelope, outgoing.body, Rollout).rollout_id == "3.1"
    assert Headers.from_amqp(outgoing.envelope.headers).attempt == 5
    assert outgoing.envelope.message_id == "Rollout:3.1:5:0"


@pytest.mark.parametrize(
    "changes",
    [
        {"truncated": True},
        {"queue": "sync"},
        {"queue": "credits", "type": "Credit"},
        {"type": "x" * 1000},
        {"body": "%%%"},
        {"content_encoding": "y" * 1000},
        {"headers": {}},
        {"headers": {"run_id": "a", "group": 3, "index": 2, "rollout_id": "3.2"}},
        {"body": base64.b64encode(bytes(17 * 1024 * 1024)).decode()},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_nothing_else_does(changes: dict[str, Any]) -> None:
    assert not can_go_back(original(**changes), WANTED)


def test_whatever_may_go_can_be_sent() -> None:
    strange = original(
        message_id="\x00" * 5000,
        headers={**original().headers, "z" * 300: "\u20ac" * 5000, "n": 2**80, "f": 1.5, "l": [1]},
    )
    assert can_go_back(strange, WANTED)
    to_publication("run", going_back(strange, 1, "trainer/t"), None)  # type: ignore[arg-type]
