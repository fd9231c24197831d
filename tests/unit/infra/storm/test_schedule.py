"""The storm's schedule: all of it follows from the seed."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from infra.storm.schedule import BROKER, EVERYBODY, KILL_KINDS, Planned, plan, role_of
from schemas.storm import FaultKind

PROCESSES = ("trainer", "producer-1", "rollout-1", "rollout-2", "rollout-3", "reward-1", "reward-2")
QUEUES = ("credits", "prompts", "rollouts")


def storm(seed: int = 0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> list[Planned]:
    return plan(
        seed=seed,
        duration_s=1140.0,
        kills=210,
        kinds=kinds,
        processes=PROCESSES,
        queues=QUEUES,
        heartbeat_s=2.0,
    )


def test_the_same_seed_gives_the_same_storm_and_another_another() -> None:
    assert storm(3) == storm(3)
    assert storm(3) != storm(4)


@pytest.mark.parametrize("seed", range(5))
def test_it_has_every_kind_within_its_time_in_order_and_exactly_the_kills(seed: int) -> None:
    planned = storm(seed)
    assert {fault.kind for fault in planned} == set(FaultKind)
    assert sum(fault.kind in KILL_KINDS for fault in planned) == 210
    times = [fault.at for fault in planned]
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] <= 1140.0


@pytest.mark.parametrize("seed", range(5))
def test_every_process_is_killed_and_has_time_to_recover(seed: int) -> None:
    kills: dict[str, list[float]] = defaultdict(list)
    for fault in storm(seed):
        if fault.kind in KILL_KINDS:
            kills[fault.target].append(fault.at)
    assert set(kills) == {*PROCESSES, BROKER}
    assert min(b - a for a, b in pairwise(kills["trainer"])) >= 40.0
    assert len(kills[BROKER]) > 3
    assert min(b - a for times in kills.values() for a, b in pairwise(times)) >= 9.0


def test_what_is_hit_is_what_the_kind_can_be_done_to() -> None:
    targets: dict[FaultKind, set[str]] = defaultdict(set)
    for seed in range(20):
        for fault in storm(seed):
            targets[fault.kind].add(fault.target)
    for kind in (FaultKind.KILL, FaultKind.TERM, FaultKind.FREEZE):
        assert targets[kind] == set(PROCESSES)
    for kind in (FaultKind.CUT, FaultKind.BLACK_HOLE, FaultKind.SLOW):
        assert targets[kind] == {*PROCESSES, EVERYBODY}
    for kind in (FaultKind.FLIP, FaultKind.TRUNCATE, FaultKind.PURGE, FaultKind.REORDER):
        assert targets[kind] == set(QUEUES)
    assert targets[FaultKind.DISK_FULL] == targets[FaultKind.SECOND_TRAINER] == {"trainer"}
    assert targets[FaultKind.BROKER_WIPE] == targets[FaultKind.BROKER_ALARM] == {BROKER}


def test_freezes_and_black_holes_outlast_three_heartbeats() -> None:
    lengths = [f.seconds for f in storm() if f.kind in (FaultKind.FREEZE, FaultKind.BLACK_HOLE)]
    assert min(lengths) > 6.0


def test_even_a_short_storm_kills_the_broker() -> None:
    for seed in range(20):
        planned = plan(
            seed=seed,
            duration_s=30.0,
            kills=2,
            kinds=tuple(FaultKind),
            processes=PROCESSES,
            queues=QUEUES,
            heartbeat_s=2.0,
        )
        assert {fault.kind for fault in planned} == set(FaultKind)


def test_only_the_kinds_that_were_asked_for() -> None:
    kinds = Counter(fault.kind for fault in storm(kinds=(FaultKind.CUT, FaultKind.FLIP)))
    assert set(kinds) == {FaultKind.CUT, FaultKind.FLIP}
    assert {fault.target for fault in storm(kinds=(FaultKind.BROKER_KILL,))} == {BROKER}


def test_a_role_is_its_process_without_the_number() -> None:
    names = ("rollout-12", "trainer", "my-reward-1", "-1")
    assert [role_of(name) for name in names] == ["rollout", "trainer", "my-reward", "-1"]
