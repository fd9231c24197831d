"""The rules for messages that come back: counting, running alone, dying."""

import pytest

from consumers.rollout.delivery.poison import Returns, Verdict
from schemas.headers import Headers


def headers(returns: int = 0, total: int = 0) -> Headers:
    return Headers(run_id="r", group=0, rollout_id="0.0", returns=returns, returns_total=total)


@pytest.mark.parametrize(
    ("redelivered", "delivery_count", "expected"),
    [
        (False, 0, (2, 5)),
        (True, 0, (3, 6)),
        (True, 1, (3, 6)),
        (True, 4, (6, 9)),
        (False, 2, (4, 7)),
    ],
)
def test_deliveries_taken_back_count_on_top_of_the_headers(
    redelivered: bool, delivery_count: int, expected: tuple[int, int]
) -> None:
    found = Returns.of(headers(2, 5), redelivered=redelivered, delivery_count=delivery_count)
    assert (found.since_progress, found.total) == expected


@pytest.mark.parametrize(
    ("progressed", "excused", "expected"),
    [
        (True, False, Returns(0, 9)),
        (True, True, Returns(0, 9)),
        (False, True, Returns(4, 9)),
        (False, False, Returns(5, 10)),
    ],
)
def test_only_a_return_without_progress_and_excuse_counts(
    progressed: bool, excused: bool, expected: Returns
) -> None:
    assert Returns(4, 9).given_back(progressed=progressed, excused=excused) == expected


@pytest.mark.parametrize(
    ("since_progress", "total", "verdict"),
    [
        (0, 0, Verdict.RUN),
        (2, 30, Verdict.RUN),
        (3, 3, Verdict.ALONE),
        (6, 6, Verdict.ALONE),
        (7, 7, Verdict.DEAD),
        (0, 31, Verdict.DEAD),
    ],
)
def test_three_returns_isolate_and_more_than_six_kill(
    since_progress: int, total: int, verdict: Verdict
) -> None:
    assert Returns(since_progress, total).verdict is verdict
