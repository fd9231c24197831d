"""What the intake takes, and with which reason it refuses."""

import pytest

from consumers.trainer.arriving.screening import screen_failure, screen_trajectory
from infra.amqp.codec import encode
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery, Envelope
from infra.runs.recorded import trajectory_of
from schemas.headers import Headers, Purpose
from schemas.work import Credit, Failure, FailureKind, Trajectory
from tests.factories.deliveries import delivery
from tests.factories.world import VOCAB_SIZE, trajectory

CREDIT = Credit(group=2, indexes=(0,), dataset_fingerprint="", seed=0, group_size=2)
HEADERS = Headers(run_id="r", group=2, index=1, rollout_id="2.1", attempt=3)


def delivered(
    model: Trajectory | Failure, headers: Headers, queue: str = "trajectories"
) -> Delivery:
    """As it would come from the broker."""
    envelope, body = encode(model, app_id="x/0", correlation_id="", headers=headers.to_amqp())
    return delivery(queue, envelope, body)


def screen(one: Delivery, *, newest: int = 5, vocab_size: int = VOCAB_SIZE):
    """With this run's terms."""
    return screen_trajectory(one, run_id="r", newest_version=newest, vocab_size=vocab_size)


def test_a_trajectory_in_order_becomes_a_record_that_can_be_read_back() -> None:
    scored = trajectory(CREDIT, 1, version=4, reward=0.25)
    one = delivered(scored, HEADERS)
    screened = screen(one)
    record = screened.record
    assert (record.group, record.index, record.attempt) == (2, 1, 3)
    assert (record.reward, record.oldest_version, record.newest_version) == (0.25, 4, 4)
    assert record.num_tokens == len(scored.rollout.progress.tokens)
    assert screened.trajectory == scored
    assert trajectory_of(record, one.body) == scored
    with pytest.raises(BadMessage, match="checksum"):
        trajectory_of(record, one.body[:-1])


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (HEADERS.model_copy(update={"run_id": "s"}), "belongs to run 's', this is run 'r'"),
        (HEADERS.model_copy(update={"index": 0, "rollout_id": "2.0"}), "headers name '2.0'"),
        (HEADERS.model_copy(update={"purpose": Purpose.EVAL}), "headers name '2.1'"),
    ],
)
def test_headers_must_agree(headers: Headers, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        screen(delivered(trajectory(CREDIT, 1, version=4, reward=0.0), headers))


def test_contents_must_be_possible() -> None:
    good = delivered(trajectory(CREDIT, 1, version=4, reward=0.0), HEADERS)
    with pytest.raises(BadMessage, match="claim version 4, the newest published is 3"):
        screen(good, newest=3)
    with pytest.raises(BadMessage, match="outside the vocabulary of 3"):
        screen(good, vocab_size=3)
    other = delivered(Failure(stage="x", kind=FailureKind.DATA, error="e"), HEADERS)
    with pytest.raises(BadMessage, match="is a 'Failure', expected Trajectory"):
        screen(other)
    envelope = Envelope(
        message_id="", type="Trajectory", correlation_id="", app_id="", headers={}, timestamp=0
    )
    bare = delivery("trajectories", envelope, b"")
    with pytest.raises(BadMessage, match="header run_id"):
        screen(bare)
    assert screen_failure(bare, run_id="r") == "header run_id: Field required"


def test_an_evaluation_may_use_only_published_versions() -> None:
    credit = CREDIT.model_copy(update={"purpose": Purpose.EVAL})
    headers = HEADERS.model_copy(update={"purpose": Purpose.EVAL, "rollout_id": "eval2.1"})
    one = delivered(trajectory(credit, 1, version=2, reward=1.0), headers)
    assert screen(one).record.purpose is Purpose.EVAL
    with pytest.raises(BadMessage, match="claim version 2"):
        screen(one, newest=1)


def test_rewards_of_an_evaluation_can_be_summed_up() -> None:
    """The trainer would end over their mean, and again whenever it is resumed."""
    credit = CREDIT.model_copy(update={"purpose": Purpose.EVAL})
    headers = HEADERS.model_copy(update={"purpose": Purpose.EVAL, "rollout_id": "eval2.1"})
    with pytest.raises(BadMessage, match=r"the reward is -1e\+308, beyond 1e\+09"):
        screen(delivered(trajectory(credit, 1, version=2, reward=-1e308), headers))


def test_a_failure_is_known_by_its_headers() -> None:
    failure = Failure(stage="reward", kind=FailureKind.DATA, error="ZeroDivisionError\nat x")
    screened = screen_failure(delivered(failure, HEADERS, "failures"), run_id="r")
    assert not isinstance(screened, str)
    assert (screened.record.index, screened.record.attempt) == (1, 3)
    assert screened.record.error == "reward: ZeroDivisionError"
    assert screened.record.reward is None
    assert screen_failure(delivered(failure, HEADERS), run_id="s") == "belongs to run 'r'"


def test_what_the_broker_gave_up_closes_its_member_without_its_body() -> None:
    """A rollout after too many deliveries, and a credit: every member of its group."""
    scored = delivered(trajectory(CREDIT, 1, version=4, reward=0.0), HEADERS, "failures")
    screened = screen_failure(scored, run_id="r")
    assert not isinstance(screened, str)
    assert screened.record.error == "the broker gave up a Trajectory after too many deliveries"
    envelope, body = encode(
        CREDIT,
        app_id="x/0",
        correlation_id="",
        headers=Headers(run_id="r", group=2).to_amqp(),
    )
    credit = delivery("failures", envelope, body)
    screened = screen_failure(credit, run_id="r")
    assert not isinstance(screened, str)
    assert screened.record.index == -1
