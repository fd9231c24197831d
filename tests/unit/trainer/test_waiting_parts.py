"""Small pure parts around waiting: clock, bell, fruitless closings, lost members."""

import asyncio

from consumers.trainer.books.fruitless import Fruitless
from consumers.trainer.books.group import Member, MemberState, OpenGroup
from consumers.trainer.books.reissue import Silence
from consumers.trainer.steering.clock import Bell, PausableClock
from schemas.journal import Closed


def test_the_clock_stands_still_while_paused() -> None:
    time = [100.0]
    clock = PausableClock(lambda: time[0])
    start = clock.now()
    time[0] += 5
    clock.pause()
    clock.pause()
    time[0] += 1000
    assert clock.paused and clock.now() - start == 5
    clock.resume()
    clock.resume()
    time[0] += 2
    assert not clock.paused and clock.now() - start == 7


async def test_the_bell_wakes_all_who_wait_and_nobody_later() -> None:
    bell = Bell()
    waiting = [asyncio.ensure_future(bell.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    bell.ring()
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert await bell.wait(0.0) is False


def test_fruitless_closings_name_the_dominant_reason() -> None:
    fruitless = Fruitless(5)
    fruitless.add([Closed(group=0, end="dead", reason="x")])
    fruitless.reset()
    fruitless.add([Closed(group=n, end="filtered", reason="all rewards equal 0") for n in range(3)])
    assert not fruitless.exceeded
    fruitless.add([Closed(group=n, end="dead", reason="boom") for n in (3, 4)])
    assert fruitless.exceeded
    assert fruitless.explain() == (
        "5 groups closed without one to train on; 3 of them filtered: all rewards equal 0"
    )


def group(number: int, *, attempt: int = 0, confirmed: bool = True) -> OpenGroup:
    """Two members, the second is in."""
    members = [Member(attempt=attempt, min_version=0) for _ in range(2)]
    members[1].state = MemberState.USABLE
    return OpenGroup(
        number=number, members=members, min_version=0, attempt=attempt, confirmed=confirmed
    )


def lost(silence: Silence, groups: list[OpenGroup], now: float) -> dict[int, tuple[int, ...]]:
    """With a grace of 30 s and a patience of 600 s."""
    return silence.missing(groups, now=now, grace_s=30, after_s=600)


def test_silent_members_are_lost_when_all_queues_are_empty() -> None:
    groups, silence = [group(n) for n in range(40)], Silence()
    silence.observe(groups, held=frozenset(), empty=True, now=0)
    assert lost(silence, groups, 29) == {}
    silence.observe(groups, held=frozenset({"3.0"}), empty=True, now=29)
    assert lost(silence, groups, 31) == {n: (0,) for n in range(40) if n != 3}
    silence.observe(groups, held=frozenset(), empty=False, now=31)
    assert lost(silence, groups, 62) == {}


def test_while_work_flows_a_tenth_is_asked_for_after_long_silence() -> None:
    groups, silence = [group(n) for n in range(40)], Silence()
    silence.observe(groups, held=frozenset(), empty=False, now=0)
    assert lost(silence, groups, 599) == {}
    found = lost(silence, groups, 600)
    assert len(found) == 4
    silence.asked(0, (0,), 600)
    assert 0 not in lost(silence, groups, 601)


def test_patience_doubles_and_unconfirmed_credits_are_left_alone() -> None:
    groups, silence = [group(0, attempt=2), group(1, confirmed=False)], Silence()
    silence.observe(groups, held=frozenset(), empty=False, now=0)
    assert lost(silence, groups, 2399) == {}
    assert lost(silence, groups, 2400) == {0: (0,)}
