"""The mark of a replay: where a message goes, and that nobody loses it on the way."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from infra.amqp.codec import encode
from infra.amqp.dead import give_up
from infra.amqp.headers import MAX_TEXT_BYTES, travelling
from infra.amqp.message import Delivery, Envelope, Outgoing
from infra.amqp.returned import returned
from infra.amqp.topology import WORK_KEYS
from schemas.headers import REPLAY, Headers
from schemas.work import Failure, FailureKind
from tests.factories.deliveries import delivery
from tests.factories.messages import model_for

LIVE = Headers(run_id="r", group=3, index=1, rollout_id="3.1")
REPLAYED = LIVE.model_copy(update={"replay": "r1"})


def envelope(headers: Headers = LIVE) -> Envelope:
    return encode(
        model_for("rollouts"), app_id="a", correlation_id="3.1", headers=headers.to_amqp()
    )[0]


@pytest.mark.parametrize("queue", WORK_KEYS)
def test_what_is_live_is_recorded_and_a_replay_goes_straight_to_its_queue(queue: str) -> None:
    live = Outgoing.to_queue(queue, envelope(), b"")
    assert (live.exchange, live.routing_key) == ("work", WORK_KEYS[queue])
    replay = Outgoing.to_queue(queue, envelope(REPLAYED), b"")
    assert (replay.exchange, replay.routing_key, replay.exact) == ("", queue, False)


def test_only_people_hear_of_a_replay_that_was_given_up() -> None:
    assert Outgoing.to_dead(envelope(), b"").exchange == "dead"
    dead = Outgoing.to_dead(envelope(REPLAYED), b"")
    assert (dead.exchange, dead.routing_key) == ("", "dead_letters")


def test_a_replay_has_a_name_of_its_own() -> None:
    assert (LIVE.name, REPLAYED.name) == ("3.1", "3.1@r1")
    assert Headers.from_amqp(REPLAYED.to_amqp()) == REPLAYED
    assert REPLAY not in LIVE.to_amqp()


@pytest.mark.parametrize("mark", ["", "a b", "x" * 33, 7, True])
def test_a_mark_that_says_nothing_is_no_header_of_ours(mark: object) -> None:
    with pytest.raises(ValidationError):
        Headers.from_amqp({**LIVE.to_amqp(), REPLAY: mark})


def test_returned_messages_stay_replays() -> None:
    source = delivery("prompts", envelope(REPLAYED), b"x")
    message = returned(source, REPLAYED, app_id="b")
    assert (message.exchange, message.routing_key) == ("", "prompts")
    assert message.envelope.headers[REPLAY] == "r1"


class Dead:
    """Keeps what is given up."""

    app_id = "rollout/w"

    def __init__(self) -> None:
        self.published: list[Outgoing] = []

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        self.published.append(message)

    def ack(self, delivery: Delivery) -> bool:
        return True


@pytest.mark.parametrize("mark", ["r1", "", "x" * (MAX_TEXT_BYTES + 1), 2**63, -1])
async def test_what_comes_of_a_replay_is_one_whatever_its_mark(mark: Any) -> None:
    marked = replace(envelope(), headers={**LIVE.to_amqp(), REPLAY: mark})
    dead = Dead()
    failure = Failure(stage="rollout", kind=FailureKind.DATA, error="no")
    await give_up(dead, delivery("prompts", marked, b"x"), failure)
    (message,) = dead.published
    assert message.envelope.replayed and message.routing_key == "dead_letters"


def test_a_replay_that_has_many_headers_keeps_its_mark() -> None:
    strange = {f"h{n}": "x" * 900 for n in range(30)}
    assert travelling({**strange, **REPLAYED.to_amqp()})[REPLAY] == "r1"
