"""Which messages are meant, when they are due, and how they are marked."""

import argparse
import time
from dataclasses import replace
from typing import Any

import pytest

from infra.amqp.codec import CHECKSUM, encode
from infra.amqp.topology import WORK_QUEUES
from producers.replay.pace import Pace, parse_speed
from producers.replay.recorded import Recorded
from producers.replay.selection import Selection, add_arguments, parse_time
from schemas.headers import REPLAY, Headers, Purpose
from tests.factories.messages import model_for


def recorded(queue: str, *, offset: int = 0, at: int = 100, **headers: Any) -> Recorded:
    """A message as its queue gets it."""
    purpose = Purpose.EVAL if queue.startswith("eval") else Purpose.TRAIN
    ours = Headers(run_id="r", group=3, index=1, rollout_id="3.1", purpose=purpose)
    sealed, body = encode(
        model_for(queue),
        app_id="a/b",
        correlation_id="3.1",
        headers=ours.model_copy(update=headers).to_amqp(),
        message_id=f"{queue}:3.1",
    )
    return Recorded(offset, replace(sealed, timestamp=at), body)


def chosen(**conditions: Any) -> list[str]:
    """The queues whose messages a selection takes."""
    messages = {queue: recorded(queue, offset=n) for n, queue in enumerate(WORK_QUEUES)}
    selection = Selection(**conditions)
    return [queue for queue, message in messages.items() if selection.takes(message)]


def test_nothing_asked_is_everything() -> None:
    assert chosen() == list(WORK_QUEUES)


@pytest.mark.parametrize(
    ("conditions", "queues"),
    [
        ({"types": frozenset({"Rollout", "Credit"})}, ["credits", "rollouts"]),
        ({"ids": frozenset({"3.2"})}, []),
        ({"groups": frozenset({"eval3"})}, ["eval_prompts", "evaluations"]),
        ({"groups": frozenset({"3"}), "first": 5}, ["trajectories"]),
        # all tokens of the factory are of version 0; credits and tasks wait for none
        ({"version": 1}, []),
        ({"version": 0}, list(WORK_QUEUES)),
        ({"since": 101.0}, []),
        ({"until": 99.0}, []),
        ({"since": 100.0, "until": 100.0, "types": frozenset({"Snapshot"})}, ["cancel_queue"]),
    ],
)
def test_conditions_hold_together(conditions: dict[str, Any], queues: list[str]) -> None:
    assert chosen(**conditions) == queues


def test_a_task_has_the_version_that_it_waits_for() -> None:
    assert Selection(version=4).takes(recorded("prompts", min_version=4))


def test_what_cannot_be_read_has_no_version_of_its_tokens() -> None:
    damaged = replace(recorded("rollouts"), body=b"{}")
    assert Selection().takes(damaged)
    assert not Selection(version=1).takes(damaged)


@pytest.mark.parametrize("queue", WORK_QUEUES)
def test_each_message_knows_its_own_queue(queue: str) -> None:
    assert recorded(queue).own_queue == queue


def test_a_stranger_has_no_queue_of_its_own() -> None:
    message = recorded("rollouts")
    assert replace(message, envelope=replace(message.envelope, type="Cat")).own_queue is None


def test_a_mark_changes_the_id_and_one_header() -> None:
    message = recorded("rollouts", offset=9)
    marked = message.marked("r1")
    assert marked.message_id == "r1:9:rollouts:3.1"
    assert marked.headers == {**message.envelope.headers, REPLAY: "r1"}
    assert CHECKSUM in marked.headers and marked.replayed and not message.envelope.replayed
    unchanged = replace(
        marked, message_id=message.envelope.message_id, headers=message.envelope.headers
    )
    assert unchanged == message.envelope


def test_a_strangers_ids_are_cut_to_what_can_be_sent() -> None:
    message = recorded("rollouts")
    odd = replace(
        message.envelope, message_id="€" * 300, type="t" * 999, content_encoding="é" * 300
    )
    marked = replace(message, envelope=odd).marked("r1")
    for text in (marked.message_id, marked.type, marked.content_encoding or ""):
        assert len(text.encode()) <= 255


def test_times_are_dates_or_ages() -> None:
    assert parse_time("2026-01-31T12:00:00+00:00") == 1769860800.0
    assert parse_time("2h") == pytest.approx(time.time() - 7200, abs=60)
    with pytest.raises(argparse.ArgumentTypeError, match="'soon' is no time"):
        parse_time("soon")


def test_a_pace_keeps_the_distances() -> None:
    now = 50.0
    pace = Pace(2.0, clock=lambda: now)
    assert pace.wait_s(1000) == 0.0
    assert pace.wait_s(1010) == 5.0
    now = 53.0
    assert pace.wait_s(1010) == 2.0
    assert pace.wait_s(900) == 0.0
    at_once = Pace(parse_speed("max"))
    assert [at_once.wait_s(at) for at in (1, 10**12)] == [0.0, 0.0]


@pytest.mark.parametrize("text", ["0", "-1", "fast", "nan"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no speed"):
        parse_speed(text)


def test_speeds_have_names() -> None:
    assert (parse_speed("original"), parse_speed("2x"), parse_speed("0.5")) == (1.0, 2.0, 0.5)


def test_a_type_that_is_never_recorded_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--type", "Rollout"]).type == ["Rollout"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--type", "Rolout"])
    assert "Trajectory" in capsys.readouterr().err
