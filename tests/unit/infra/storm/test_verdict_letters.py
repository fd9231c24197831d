"""Dead letters: what explains one, and what does not."""

import base64
from dataclasses import replace

import pytest

from infra.amqp.codec import encode
from infra.amqp.message import Delivery
from infra.storm.judge.letters import explain
from schemas.storm import Fault, FaultKind
from schemas.work import Credit, Failure, FailureKind, OriginalMessage
from tests.factories.deliveries import delivery
from tests.unit.infra.storm.judged_runs import RUN_ID, RunMaker, healthy

HEADERS = {"run_id": RUN_ID, "group": 3, "rollout_id": "3.1", "index": 1}


def original(*, queue="rollouts", damaged=False, run_id=RUN_ID, message_id="m") -> OriginalMessage:
    credit = Credit(group=3, indexes=(1,), dataset_fingerprint="x", seed=0, group_size=2)
    envelope, body = encode(
        credit, app_id="a", correlation_id="3", headers=HEADERS | {"run_id": run_id}
    )
    if damaged:
        body = body[:-3]
    return OriginalMessage(
        queue=queue,
        type="Credit",
        message_id=message_id,
        headers=envelope.headers,
        body=base64.b64encode(body).decode(),
    )


def letter(message_id: str = "m.dead", run_id: str = RUN_ID, **fields) -> Delivery:
    values = {
        "rollout_id": "3.1",
        "group": 3,
        "index": 1,
        "stage": "reward",
        "kind": FailureKind.DATA,
        "error": "ValueError: no",
        "traceback": "Traceback ...",
        "original": original(),
    } | fields
    envelope, body = encode(
        Failure(**values),
        app_id="a",
        correlation_id="3.1",
        headers=HEADERS | {"run_id": run_id},
        message_id=message_id,
    )
    return delivery("dead_letters", envelope, body)


def fault(kind: FaultKind, target: str) -> Fault:
    return Fault(kind=kind, target=target, at=1.0, survived=True)


FLIP = fault(FaultKind.FLIP, "rollouts")
KILL = fault(FaultKind.KILL, "rollout-1")
DAMAGED = {"original": original(damaged=True), "traceback": "", "error": "checksum differs"}
RETURNED = {"stage": "rollout", "kind": FailureKind.INFRA, "error": "came back", "traceback": ""}


@pytest.mark.parametrize(
    ("found", "faults", "why"),
    [
        (letter(**DAMAGED), [FLIP], "damaged"),
        (letter(**DAMAGED), [fault(FaultKind.TRUNCATE, "rollouts")], "damaged"),
        (letter(run_id="other"), [], "foreign"),
        (letter(original=original(run_id="other"), traceback=""), [], "foreign"),
        (letter(), [], "told"),
        (letter(stage="rollout", error="ToolFailed: no"), [], "told"),
        (letter(stage="producer", error="row 3 has no prompt", traceback=""), [], "told"),
        (letter(traceback="", error="reward 'x' did not return in 3 s and was killed"), [], "told"),
        (letter(**RETURNED, returns=7), [KILL], "budget"),
    ],
)
def test_what_explains_a_dead_letter(found, faults, why):
    explained = explain([found], faults, RUN_ID)
    assert explained.unexplained == ()
    assert explained.by == {why: 1}


def unread() -> Delivery:
    whole = letter()
    return replace(whole, body=whole.body[:-1])


def given_up_by_the_broker() -> Delivery:
    whole = letter()
    return replace(whole, envelope=replace(whole.envelope, type="RolloutTask"))


@pytest.mark.parametrize(
    ("found", "faults", "words"),
    [
        (letter(**DAMAGED), [], "a damaged message of rollouts, which nobody damaged"),
        (letter(**DAMAGED), [fault(FaultKind.FLIP, "prompts")], "which nobody damaged"),
        (letter(**DAMAGED), [fault(FaultKind.DUPLICATE, "rollouts")], "which nobody damaged"),
        (letter(traceback=""), [FLIP], "an intact message was refused"),
        (letter(stage="trainer", error="was never issued"), [FLIP], "trainer refused an intact"),
        (letter(original=None), [], "without the original"),
        (letter(error=""), [], "without stage, reason"),
        (letter(**RETURNED, returns=7), [FLIP], "given up by the infrastructure"),
        (letter(**RETURNED, returns=2), [KILL], "given up by the infrastructure after 2"),
        (unread(), [FLIP], "the failure itself cannot be read"),
        (given_up_by_the_broker(), [KILL], "the broker gave it up"),
    ],
)
def test_what_explains_nothing(found, faults, words):
    explained = explain([found], faults, RUN_ID)
    assert len(explained.unexplained) == 1
    assert words in explained.unexplained[0]


def test_code_that_raises_in_a_storm_only_explains_nothing(tmp_path):
    """It may be the storm that it cannot stand. What has a time limit may pass it in a storm."""
    slow = letter("slow", traceback="", error="reward 'x' did not return in 3 s and was killed")
    explained = explain([letter(), slow], [KILL], RUN_ID, code_raises=False)
    assert explained.by == {"told": 1}
    assert "code raised, as it never does without a storm" in explained.unexplained[0]
    calm = RunMaker(tmp_path / "calm")
    calm.publish(0, 0)
    calm.issue(0)
    calm.both(0)
    calm.close(0, "trained")
    failing = healthy(tmp_path / "failing")  # a member of it fails
    for run in (calm, failing):
        run.journal.close()
    stormy = healthy(tmp_path / "stormy")
    for run, unexplained in ((calm, 1), (failing, 0)):
        report = stormy.judged(drained=[letter()], undisturbed=run.folder.root)
        assert report.unexplained_dead_letters == unexplained


def test_one_fault_explains_one_damaged_message():
    second = DAMAGED | {"original": original(damaged=True, message_id="n")}
    letters = [letter(**DAMAGED), letter("n.dead", **second)]
    assert len(explain(letters, [FLIP], RUN_ID).unexplained) == 1
    assert explain(letters, [FLIP, FLIP], RUN_ID).by == {"damaged": 2}


def test_a_message_given_up_twice_is_explained_once():
    """Published by one worker that died before it acknowledged, then by another."""
    letters = [letter(**DAMAGED, worker="one"), letter(**DAMAGED, worker="two")]
    explained = explain(letters, [FLIP], RUN_ID)
    assert explained.by == {"damaged": 1, "repeated": 1}
    assert explained.num_letters == 1
    assert explained.unexplained == ()


def test_the_verdict_counts_and_names_them(tmp_path):
    letters = [letter(), letter("other.dead", traceback="")]
    report = healthy(tmp_path).judged(drained=letters)
    assert (report.dead_letters, report.unexplained_dead_letters) == (2, 1)
    assert report.breaches == (
        "unexplained dead letter: Failure of 3.1: an intact message was refused "
        "(reward: ValueError: no)",
    )
