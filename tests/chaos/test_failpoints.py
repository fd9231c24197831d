"""The trainer, killed at named points of its code, comes to the same end as if nothing had been.

Equal must be: every step's loss, gradient norm and weights, bit for bit; version numbers and what
they hold; the members of each batch; how each group ended; evaluations; the books. Where the
trainer dies must not show in any of them, because all of them are functions of what the journal
holds, in its order, and the feeder makes that order the same in every run (see `feeder.py`).

A killed trainer is followed by another with `--resume`. Every second kill takes the machine's
memory with it: what no fsync covered is gone from the journal.

WARREN_CHAOS_POINTS=50 runs all fifty points; without it the first dozen are taken.
"""

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from infra.runs.failpoints import RESUMING, FailPoint
from tests.chaos.conftest import EVAL_PROMPTS, STREAM, History, Play
from tests.chaos.nursery import Kill

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

SEED = 3
NUM_POINTS = int(os.environ.get("WARREN_CHAOS_POINTS", "12"))
OTHERS = RESUMING | {FailPoint.JOURNAL_TRIMMED}
"""Not reached by a fresh trainer whose journal keeps everything."""
_unkilled: list[History] = []


@pytest.fixture
async def unkilled(play: Play) -> History:
    """The run that nothing happened to; once for all tests."""
    if not _unkilled:
        _unkilled.append(await play([]))
    return _unkilled[0]


def points(reached: Counter[str], number: int) -> list[Kill]:
    """Points of a run, seeded; each name comes before any comes again."""
    rng = random.Random(SEED)
    names = [point for point in FailPoint if point not in OTHERS]
    chosen: list[Kill] = []
    while len(chosen) < number:
        for point in rng.sample(names, len(names)):
            count = rng.randint(1, reached[point])
            chosen.append(Kill(point, count, power=len(chosen) % 2 == 1))
    return chosen[:number]


def check_equal(history: History, unkilled: History) -> None:
    """The same end, told to everyone in the same way."""
    assert history.final.differences(unkilled.final) == []
    if history.told is not None:
        assert unkilled.told is not None
        assert history.told.differences(unkilled.told) == []
    assert history.broadcast == unkilled.broadcast
    assert history.over


async def test_unkilled_it_makes_of_the_recording_what_can_be_told_without_it(
    unkilled: History,
) -> None:
    told, final = unkilled.told, unkilled.final
    assert told is not None
    assert told.ends == final.ends == STREAM.ends()
    assert [groups for _, _, groups, _ in told.batches] == STREAM.batches()
    for _, _, groups, members in told.batches:
        assert members == tuple(name for group in groups for name in STREAM.members(group))
    versions = [(n, n) for n in range(STREAM.num_steps + 1)]
    assert [(version, step) for version, step, _ in told.published] == versions
    assert told.evaluated == tuple(
        (v, EVAL_PROMPTS, EVAL_PROMPTS, STREAM.evaluation_reward(v, EVAL_PROMPTS))
        for v in (0, 3, 6)
    )
    assert final.stored == told.published
    assert final.books == told.books
    assert unkilled.broadcast == {(version, print_) for version, _, print_ in told.published}
    assert len({print_ for _, print_ in unkilled.broadcast}) == STREAM.num_steps + 1


@pytest.mark.parametrize("number", range(NUM_POINTS))
async def test_killed_once_it_comes_to_the_same_end(
    play: Play, unkilled: History, number: int
) -> None:
    """How many records share an fsync is chance, and so is how often some points are reached."""
    kill = points(unkilled.lives[0].reached, NUM_POINTS)[number]
    history = await play([kill])
    while not history.lives[0].killed:
        assert kill.count > 1, f"{kill} was not reached"
        kill = replace(kill, count=kill.count // 2)
        history = await play([kill])
    assert history.lives[0].status == -9
    check_equal(history, unkilled)


@pytest.mark.parametrize("power", [False, True])
async def test_killed_again_while_it_resumes(play: Play, unkilled: History, power: bool) -> None:
    """Eight trainers: three get far, the others die on their way up."""
    kills = [
        Kill(FailPoint.JOURNAL_TORN, 1, power),
        Kill(FailPoint.STEP_JOURNALED, 1, power),
        Kill(FailPoint.STEP_REPEATED, 1, power),
        Kill(FailPoint.JOURNAL_SEGMENT, 1, power),
        Kill(FailPoint.RECOVERED, 1, power),
        Kill(FailPoint.CHECKPOINT_WRITTEN, 1, power),
        Kill(FailPoint.STEP_TAKEN, 1, power),
        Kill(FailPoint.JOURNAL_TORN, 1, power),
    ]
    history = await play(kills)
    assert [life.killed for life in history.lives] == [True] * len(kills) + [False]
    check_equal(history, unkilled)


async def test_a_tail_that_the_kernel_held_is_durable_before_it_is_built_on(
    play: Play, unkilled: History
) -> None:
    """The first trainer dies before an fsync; the second reads its records, recognises their
    deliveries as known and acknowledges them; then the machine dies, too."""
    history = await play([Kill(FailPoint.JOURNAL_SYNC, 20), Kill(FailPoint.STEP_TAKEN, power=True)])
    assert [life.killed for life in history.lives] == [True, True, False]
    check_equal(history, unkilled)


async def test_nothing_is_acknowledged_before_it_is_durable(play: Play, unkilled: History) -> None:
    """Whatever was acknowledged too early is gone now, from the broker and from the disk."""
    kills = [Kill(FailPoint.JOURNAL_SYNC, 10 + number, power=True) for number in range(6)]
    history = await play(kills)
    assert all(life.killed for life in history.lives[:3])
    check_equal(history, unkilled)


@pytest.mark.parametrize("seed", range(NUM_POINTS // 4))
async def test_killed_several_times_it_comes_to_the_same_end(
    play: Play, unkilled: History, seed: int
) -> None:
    """The later trainers have less to do: some get to the end before they are killed."""
    rng = random.Random(f"several {seed}")
    chosen = rng.choices(list(FailPoint), k=5)
    kills = [Kill(point, rng.randint(1, 4), power=rng.random() < 0.5) for point in chosen]
    history = await play(kills)
    check_equal(history, unkilled)


@pytest.mark.parametrize("power", [False, True])
async def test_killed_while_it_forgets(play: Play, unkilled: History, power: bool) -> None:
    """What is left of the journal and the checkpoints must be enough at any moment."""
    kills = [
        Kill(FailPoint.JOURNAL_TRIMMED, 1, power),
        Kill(FailPoint.STEP_REPEATED, 1, power),
        Kill(FailPoint.CHECKPOINT_NAMED, 1, power),
        Kill(FailPoint.JOURNAL_TRIMMED, 2, power),
    ]
    history = await play(kills, forgetful=True)
    assert history.lives[0].killed
    check_equal(history, unkilled)


async def test_every_fail_point_is_reached(play: Play, unkilled: History) -> None:
    """A name that nothing reaches would be killed at by no test."""
    reached = unkilled.lives[0].reached
    assert set(FailPoint) - OTHERS == set(reached)
    forgetful = (await play([], forgetful=True)).lives[0].reached
    assert set(forgetful) == set(FailPoint) - RESUMING
    resumed = (await play([Kill(FailPoint.STEP_JOURNALED, 3)])).lives[1].reached
    assert set(resumed) >= RESUMING
