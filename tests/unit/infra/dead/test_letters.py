"""Dead letters of every kind are read, shown without harm, and requeued only when that helps."""

import base64
import json
from typing import Any

import pytest

from infra.amqp.codec import decode, encode
from infra.amqp.dead import original_message
from infra.amqp.message import Delivery, Envelope
from infra.observe.columns import trimmed
from infra.roles.command.dead.desk import Choice
from infra.roles.command.dead.letter import granted_anew, read_letter, why_not
from infra.roles.command.dead.requeue import wish
from infra.roles.command.dead.text import page, table, to_json
from schemas.headers import Headers
from schemas.work import Failure, FailureKind, Requeue
from tests.factories.deliveries import delivery
from tests.factories.messages import model_for

HEADERS = Headers(
    run_id="a", group=3, index=1, rollout_id="3.1", returns=4, returns_total=9, data_attempts=2
)


def message(queue: str = "rollouts", **envelope: Any) -> Delivery:
    """What died."""
    ours, body = encode(
        model_for(queue),
        app_id="x",
        correlation_id="3.1",
        headers={**HEADERS.to_amqp(), "x-delivery-count": 3},
        message_id="m",
    )
    fields = {name: getattr(ours, name) for name in Envelope.__dataclass_fields__} | envelope
    return delivery(queue, Envelope(**fields), body)


def failed(died: Delivery | None, *, kind: FailureKind, **changes: Any) -> Delivery:
    """The letter that says so."""
    failure = Failure(
        rollout_id="3.1",
        stage="reward",
        kind=kind,
        error="ZeroDivisionError: \x1b[2J\nsecond",
        traceback="Traceback\x07\n  here",
        attempts=2,
        original=None if died is None else original_message(died),
    )
    envelope, body = encode(
        failure.model_copy(update=changes),
        app_id="reward/r",
        correlation_id="3.1",
        headers=HEADERS.to_amqp(),
        message_id="m.dead",
    )
    return delivery("dead_letters", envelope, body)


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (FailureKind.INFRA, {"data_attempts": 2}),
        (FailureKind.DATA, {"returns": 4, "returns_total": 9}),
    ],
)
def test_the_budget_that_was_used_up_is_granted_anew(
    kind: FailureKind, left: dict[str, int]
) -> None:
    letter = read_letter(failed(message(), kind=kind))
    assert why_not(letter) == ""
    outgoing = wish(letter, app_id="operator/ana")
    assert (outgoing.exchange, outgoing.routing_key) == ("", "failures")
    requeue = decode(outgoing.envelope, outgoing.body, Requeue)
    assert (requeue.letter, requeue.by) == ("m.dead", "ana")
    budgets = {k: v for k, v in requeue.original.headers.items() if k.startswith(("ret", "data"))}
    assert budgets == left
    assert not any(name.startswith("x-") for name in requeue.original.headers)
    assert base64.b64decode(requeue.original.body) == message().body
    assert Headers.from_amqp(outgoing.envelope.headers) == HEADERS


def test_what_the_broker_gave_up_itself_is_its_own_original() -> None:
    raw = message("cancel_queue")
    letter = read_letter(delivery("dead_letters", raw.envelope, raw.body))
    assert (letter.stage, letter.kind, letter.id, letter.rollout_id) == (
        "broker",
        "infra",
        "m",
        "3.1",
    )
    assert "gave up a Snapshot after too many deliveries" in letter.error
    assert why_not(letter) == ""
    assert granted_anew(letter).queue == "cancel_queue"


def other_bytes(source: Delivery) -> Delivery:
    return delivery(source.queue, source.envelope, source.body + b" ")


def replayed(letter: Delivery) -> Delivery:
    letter.envelope.headers["replay"] = "r1"
    return letter


def test_what_a_replay_sent_there_was_not_given_up_by_the_broker() -> None:
    sent = replayed(message())
    assert read_letter(sent).error == "a replay sent it here: nobody gave it up"
    sent.envelope.headers["x-first-death-reason"] = "delivery_limit"
    assert "gave up a Rollout after too many deliveries" in read_letter(sent).error


def cut() -> Any:
    return original_message(message()).model_copy(update={"truncated": True})


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (replayed(failed(message(), kind=FailureKind.DATA)), "it is of replay r1"),
        (failed(None, kind=FailureKind.DATA), "does not hold the message"),
        (failed(None, kind=FailureKind.DATA, original=cut()), "only the beginning"),
        (failed(other_bytes(message()), kind=FailureKind.DATA), "would only die again: checksum"),
        (other_bytes(failed(message(), kind=FailureKind.DATA)), "does not hold"),
        (delivery("dead_letters", message(headers={}).envelope, b"?"), "name no member"),
        (delivery("dead_letters", message(type="Strange").envelope, b"?"), "does not hold"),
        (failed(message(type="Strange"), kind=FailureKind.DATA), "its type is 'Strange'"),
    ],
)
def test_what_would_only_die_again_is_refused_with_the_reason(letter: Delivery, why: str) -> None:
    assert why in why_not(read_letter(letter))


def test_nothing_of_a_stranger_reaches_the_terminal_as_it_is() -> None:
    letters = [
        read_letter(failed(message(), kind=FailureKind.DATA)),
        read_letter(
            delivery(
                "dead_letters",
                message(message_id="\x1b]0;x\x07", type="\u202e", app_id="\x9b").envelope,
                b"\xff\x1b",
            )
        ),
        read_letter(delivery("dead_letters", message(message_id="").envelope, b"")),
    ]
    shown = table(letters) + "".join(map(page, letters))
    assert shown == trimmed(shown)
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "ZeroDivisionError: \\x1b[2J" in shown and "Traceback\\x07" in shown
    assert letters[2].id.startswith("sha256:")
    assert json.loads(json.dumps([to_json(letter, whole=True) for letter in letters]))


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(names=frozenset({"m.dead"})), True),
        (Choice(names=frozenset({"3.1"})), True),
        (Choice(names=frozenset({"3.2"})), False),
        (Choice(reason="zerodivision"), True),
        (Choice(reason="zerodivision", stage="rollout"), False),
        (Choice(stage="reward", kind="data"), True),
        (Choice(kind="infra"), False),
    ],
)
def test_letters_are_chosen_by_all_that_is_asked(choice: Choice, taken: bool) -> None:
    assert choice.takes(read_letter(failed(message(), kind=FailureKind.DATA))) is taken
