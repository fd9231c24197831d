"""Held-out evaluations: what is due, what counts, what is reported."""

import json

import pytest

from consumers.trainer.books.balance import Report
from consumers.trainer.books.evaluation import Evaluations
from schemas.headers import Purpose
from schemas.journal import Arrived, Confirmed, Issued


def asked(version: int, num: int) -> Issued:
    """The credit of an evaluation."""
    return Issued(
        groups=(version,), indexes=tuple(range(num)), min_version=version, purpose=Purpose.EVAL
    )


def scored(version: int, index: int, reward: float | None, *, oldest: int | None = None) -> Arrived:
    """A member that came back; a failure when `reward` is None."""
    return Arrived(
        type="Trajectory",
        message_id="m",
        rollout_id=f"eval{version}.{index}",
        group=version,
        index=index,
        purpose=Purpose.EVAL,
        reward=reward,
        oldest_version=version if oldest is None else oldest,
        newest_version=version,
        num_tokens=10,
    )


@pytest.mark.parametrize(
    ("last_version", "version", "last", "expected"),
    [
        (-1, 0, False, True),
        (0, 9, False, False),
        (0, 10, False, True),
        (10, 13, False, False),
        (10, 13, True, True),
        (13, 13, True, False),
    ],
)
def test_first_every_ten_and_last_are_due(
    last_version: int, version: int, last: bool, expected: bool
) -> None:
    evaluations = Evaluations()
    evaluations.last_version = last_version
    assert evaluations.due(version, every=10, last=last) is expected


def test_a_result_is_the_mean_over_the_scored() -> None:
    evaluations = Evaluations()
    evaluations.apply(asked(3, 4))
    evaluations.apply(Confirmed(groups=(3,), purpose=Purpose.EVAL))
    one = evaluations.open
    assert one is not None and one.confirmed
    assert evaluations.apply(scored(3, 0, 1.0)) is Report.COUNTED
    assert evaluations.apply(scored(3, 0, 0.0)) is Report.LATE
    assert evaluations.apply(scored(3, 2, 0.0, oldest=2)) is Report.COUNTED
    assert evaluations.apply(scored(2, 1, 1.0)) is Report.LATE
    assert evaluations.apply(scored(4, 1, 1.0)) is Report.UNKNOWN
    assert evaluations.apply(scored(3, 4, 1.0)) is Report.UNKNOWN
    assert not one.complete
    assert evaluations.apply(scored(3, -1, None)) is Report.COUNTED
    assert one.complete
    result = one.result()
    assert (result.reward, result.num_scored, result.num_asked) == (0.5, 2, 4)
    assert result.metrics["eval/num_failed"] == 2
    assert result.metrics["eval/num_other_version"] == 1
    evaluations.apply(result)
    assert evaluations.open is None
    assert evaluations.expects(3, 1) is Report.LATE


def test_nothing_scored_is_no_reward() -> None:
    evaluations = Evaluations()
    evaluations.apply(asked(0, 1))
    assert evaluations.open is not None
    assert evaluations.open.result().reward == 0.0


def test_an_open_one_survives_a_checkpoint() -> None:
    evaluations = Evaluations()
    for record in (asked(3, 4), scored(3, 1, 0.5), scored(3, 2, None)):
        evaluations.apply(record)
    again = Evaluations.from_json(json.loads(json.dumps(evaluations.to_json())))
    assert again.open == evaluations.open
    assert again.last_version == 3
    assert again.expects(3, 1) is Report.LATE
    empty = Evaluations.from_json(json.loads(json.dumps(Evaluations().to_json())))
    assert empty.open is None and empty.last_version == -1
