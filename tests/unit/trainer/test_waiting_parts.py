"""Small pure parts around waiting: clock, bell, fruitless closings."""

import asyncio
from types import SimpleNamespace
from typing import Any

from consumers.trainer.books.fruitless import Fruitless
from consumers.trainer.steering.clock import FROZEN_S, Bell, PausableClock
from consumers.trainer.steering.refusals import MAX_PATIENCE_S, PATIENCE_S, Refusals
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


def test_a_frozen_process_does_not_age() -> None:
    """SIGSTOP and SIGCONT: what nobody could look at in between does not count."""
    time = [0.0]
    clock = PausableClock(lambda: time[0])
    for _ in range(10):
        time[0] += FROZEN_S
        clock.now()
    assert clock.now() == 10 * FROZEN_S
    time[0] += 3600
    assert clock.now() == 10 * FROZEN_S
    time[0] += 1
    assert clock.now() == 10 * FROZEN_S + 1


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


def test_a_run_whose_groups_all_die_is_hopeless_after_twice_as_many() -> None:
    """Equal rewards only ever warn: a policy may need long before it scores at all."""
    for end, hopeless in (("dead", True), ("filtered", False)):
        fruitless = Fruitless(5)
        fruitless.add([Closed(group=n, end=end, reason="boom") for n in range(5)])
        assert fruitless.exceeded and not fruitless.hopeless
        fruitless.said()
        assert not fruitless.exceeded
        fruitless.add([Closed(group=n, end=end, reason="boom") for n in range(5, 10)])
        assert fruitless.exceeded and fruitless.hopeless is hopeless
        assert fruitless.explain().startswith("10 groups closed")
        fruitless.reset()
        assert not fruitless.exceeded and not fruitless.hopeless


def test_a_version_that_all_refuse_goes_out_again_ever_less_often() -> None:
    time, refused, served = [0.0], [True], [2]
    fleet: Any = SimpleNamespace(
        refuses=lambda version: refused[0], newest_served=lambda: served[0]
    )
    refusals = Refusals(fleet, PausableClock(lambda: time[0]))

    def due_after(version: int) -> float:
        began = time[0]
        while not refusals.due(version):
            time[0] += 1
        return time[0] - began

    assert not refusals.due(-1)
    assert due_after(3) == PATIENCE_S
    refusals.published_again(4)
    assert due_after(4) == 2 * PATIENCE_S
    refused[0] = False
    assert not refusals.due(4)
    refused[0] = True
    assert due_after(4) == 2 * PATIENCE_S, "it must last"
    refusals.published_again(5)
    served[0] = 4
    assert due_after(5) == 4 * PATIENCE_S, "that one did not help"
    served[0] = 5
    assert due_after(6) == PATIENCE_S
    for version in range(7, 20):
        refusals.published_again(version)
    assert due_after(20) == MAX_PATIENCE_S
