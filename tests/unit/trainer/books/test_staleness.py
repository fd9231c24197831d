"""The age bound: never exceeded, never a deadlock, checked by playing whole runs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.trainer.books.group import Member, MemberState, OpenGroup
from consumers.trainer.books.staleness import forecast, min_version_at_issue, must_wait_for


def group(number: int, bound: int, *, done: bool) -> OpenGroup:
    """One member, either pending or in."""
    member = Member(attempt=0, min_version=bound)
    if done:
        member.state, member.oldest_version, member.reward = MemberState.USABLE, bound, 1.0
    return OpenGroup(number=number, members=[member], min_version=bound)


@pytest.mark.parametrize(
    ("version", "staleness", "lag", "expected"),
    [(0, 0.5, 8, 0), (5, 0.5, 8, 4), (5, 0.0, 8, 5), (5, 1.0, 1, 5), (5, 0.5, 1, 5), (5, 2, 3, 4)],
)
def test_min_version_leaves_room_for_the_bound(
    version: int, staleness: float, lag: int, expected: int
) -> None:
    found = min_version_at_issue(version, max_staleness=staleness, max_version_lag=lag)
    assert found == expected


def test_an_old_straggler_is_waited_for_just_in_time() -> None:
    """Tokens of v0 and lag 2: the publication of v3 must not come before it is trained."""
    straggler = group(0, 0, done=False)
    batch = [group(9, 2, done=True)]
    common = {"groups_per_step": 1, "steps_per_publish": 1, "max_version_lag": 2}
    both = [straggler, *batch]
    assert must_wait_for(batch, both, step=1, version=1, **common) is None
    assert must_wait_for(batch, both, step=2, version=2, **common) is straggler
    ready = [group(0, 0, done=True), *batch]
    assert must_wait_for(ready[:1], ready, step=2, version=2, **common) is None


def test_steps_without_a_publication_do_not_age_anyone() -> None:
    straggler, batch = group(0, 0, done=False), [group(9, 1, done=True)]
    common = {"groups_per_step": 1, "steps_per_publish": 2, "max_version_lag": 1}
    both = [straggler, *batch]
    assert must_wait_for(batch, both, step=2, version=1, **common) is None
    assert must_wait_for(batch, both, step=3, version=1, **common) is straggler


def test_the_forecast_takes_the_oldest_first_and_counts_publications() -> None:
    """Two groups a step, a version a step: those in third place wait for one publication."""
    waiting = [group(n, bound, done=False) for n, bound in enumerate((5, 3, 5, 4))]
    common = {"groups_per_step": 2, "step": 6, "version": 5}
    assert forecast(waiting, **common, steps_per_publish=1, num_classes=8) == (0, 3, 1)
    assert forecast(waiting, **common, steps_per_publish=4, num_classes=8) == (2, 1, 1)
    assert forecast(waiting, **common, steps_per_publish=1, num_classes=2) == (0, 4)
    assert forecast([], **common, steps_per_publish=1, num_classes=8) == ()


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 4),
    staleness=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    spare=st.integers(0, 3),
    per_publish=st.integers(1, 3),
    data=st.data(),
)
def test_no_run_deadlocks_and_no_trained_token_is_older_than_allowed(
    size: int, staleness: float, spare: int, per_publish: int, data: st.DataObject
) -> None:
    """Groups finish in any order; each holds tokens as old as its `min_version` allows."""
    lag = math.ceil(staleness) + spare
    limit = max(size, math.floor((1 + staleness) * size))
    groups: dict[int, OpenGroup] = {}
    step = version = issued = 0
    while step < 12:
        while len(groups) < limit:
            bound = min_version_at_issue(version, max_staleness=staleness, max_version_lag=lag)
            groups[issued] = group(issued, bound, done=False)
            issued += 1
        pending = sorted(n for n, g in groups.items() if g.indexes(MemberState.PENDING))
        ready = sorted((g for n, g in groups.items() if n not in pending), key=_order)
        batch = ready[:size]
        blocked = len(batch) < size or must_wait_for(
            batch,
            groups.values(),
            step=step,
            version=version,
            groups_per_step=size,
            steps_per_publish=per_publish,
            max_version_lag=lag,
        )
        if blocked:
            assert pending, "nothing is pending and still no batch: a deadlock"
            number = data.draw(st.sampled_from(pending))
            groups[number] = group(number, groups[number].bound, done=True)
            continue
        for one in batch:
            assert version - one.bound <= lag
            del groups[one.number]
        step += 1
        version = step // per_publish


def _order(one: OpenGroup) -> tuple[int, int]:
    return one.bound, one.number
