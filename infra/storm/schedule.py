"""Which fault when, to what: a pure function of the seed.

Kills and all other faults are two independent lanes: kills come at an even pace, each to a process
that had time to recover from the one before; every other kind is spread over the whole storm.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from schemas.storm import FaultKind

BROKER = "broker"

KILL_KINDS = (FaultKind.KILL, FaultKind.BROKER_KILL)
PERIOD_S: Mapping[FaultKind, float] = {
    FaultKind.TERM: 60.0,
    FaultKind.FREEZE: 90.0,
    FaultKind.BROKER_TERM: 300.0,
    FaultKind.BROKER_WIPE: 400.0,
    FaultKind.BROKER_ALARM: 200.0,
    FaultKind.CUT: 50.0,
    FaultKind.BLACK_HOLE: 120.0,
    FaultKind.SLOW: 120.0,
    FaultKind.DUPLICATE: 40.0,
    FaultKind.REORDER: 40.0,
    FaultKind.TRUNCATE: 40.0,
    FaultKind.FLIP: 40.0,
    FaultKind.WEIGHTS_TRUNCATE: 120.0,
    FaultKind.WEIGHTS_FLIP: 120.0,
    FaultKind.PURGE: 120.0,
    FaultKind.SECOND_TRAINER: 300.0,
    FaultKind.DISK_FULL: 300.0,
}
"""Mean seconds between two faults of a kind; each kind comes at least once."""

_REST_S = {"trainer": 40.0, "producer": 9.0, "reward": 9.0, "rollout": 9.0, BROKER: 75.0}
"""Least seconds between two kills of one process: so long recovery may take."""
_WEIGHT = {"trainer": 1.5, "producer": 1.0, "reward": 1.0, "rollout": 1.5, BROKER: 0.5}
_TRAINER_ONLY = (FaultKind.SECOND_TRAINER, FaultKind.DISK_FULL)
_BROKER_KINDS = (FaultKind.BROKER_TERM, FaultKind.BROKER_WIPE, FaultKind.BROKER_ALARM)
_MESSAGE_KINDS = (
    FaultKind.DUPLICATE,
    FaultKind.REORDER,
    FaultKind.TRUNCATE,
    FaultKind.FLIP,
    FaultKind.PURGE,
)
_WEIGHT_KINDS = (FaultKind.WEIGHTS_TRUNCATE, FaultKind.WEIGHTS_FLIP)
_PROCESS_KINDS = (FaultKind.TERM, FaultKind.FREEZE)
_LINK_KINDS = (FaultKind.CUT, FaultKind.BLACK_HOLE, FaultKind.SLOW)
EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault to come."""

    at: float
    """Seconds since the storm began."""
    kind: FaultKind
    target: str
    """A process, a queue, `broker`, `weights`, or `everybody` (connections)."""
    seconds: float = 0.0
    """How long it is to last, where that is ours to say."""
    seed: int
    """Of every further choice: which byte, which bit, which order."""


def plan(
    *,
    seed: int,
    duration_s: float,
    kills: int,
    kinds: Collection[FaultKind],
    processes: Sequence[str],
    queues: Sequence[str],
    heartbeat_s: float,
) -> list[Planned]:
    """The faults of a storm, in order of time; the same for the same arguments.

    Args:
        kills: SIGKILLs, of role processes and of the broker together.
        kinds: The kinds to use.
        processes: Names such as `trainer`, `rollout-2`.
        queues: Names of work queues whose messages may be tampered with.
        heartbeat_s: Of the AMQP connections: freezes and black holes outlast three.
    """
    chance = random.Random(f"{seed} storm")
    planned = _kills(chance, duration_s, kills, kinds, processes)
    for kind in sorted(PERIOD_S):
        if kind not in kinds:
            continue
        count = max(1, round(duration_s / PERIOD_S[kind]))
        for number in range(count):
            at = (number + chance.random()) * duration_s / count
            planned.append(
                Planned(
                    at=round(at, 3),
                    kind=kind,
                    target=_target(chance, kind, processes, queues),
                    seconds=_seconds(chance, kind, heartbeat_s),
                    seed=chance.getrandbits(32),
                )
            )
    return sorted(planned, key=lambda fault: (fault.at, fault.kind, fault.target))


def role_of(process: str) -> str:
    """`rollout-2` -> `rollout`."""
    stem, _, number = process.rpartition("-")
    return stem if stem and number.isdigit() else process


def _kills(
    chance: random.Random,
    duration_s: float,
    kills: int,
    kinds: Collection[FaultKind],
    processes: Sequence[str],
) -> list[Planned]:
    victims = list(processes) if FaultKind.KILL in kinds else []
    victims += [BROKER] if FaultKind.BROKER_KILL in kinds else []
    if not victims or not kills:
        return []
    ready = dict.fromkeys(victims, 0.0)
    broker_turn = chance.randrange(kills)  # seldom hit, but in every storm
    planned: list[Planned] = []
    for number in range(kills):
        at = (number + chance.random()) * duration_s / kills
        rested = [name for name in victims if ready[name] <= at]
        if number == broker_turn and BROKER in victims:
            victim = BROKER
        elif rested:
            victim = chance.choices(rested, [_WEIGHT[role_of(name)] for name in rested])[0]
        else:
            victim = min(victims, key=lambda name: ready[name])
        ready[victim] = at + _REST_S[role_of(victim)]
        kind = FaultKind.BROKER_KILL if victim == BROKER else FaultKind.KILL
        planned.append(
            Planned(at=round(at, 3), kind=kind, target=victim, seed=chance.getrandbits(32))
        )
    return planned


def _target(
    chance: random.Random, kind: FaultKind, processes: Sequence[str], queues: Sequence[str]
) -> str:
    if kind in _TRAINER_ONLY:
        return "trainer"
    if kind in _BROKER_KINDS:
        return BROKER
    if kind in _WEIGHT_KINDS:
        return "weights"
    if kind in _MESSAGE_KINDS:
        return chance.choice(queues)
    if kind in _LINK_KINDS and chance.random() < 1 / 3:
        return EVERYBODY
    assert kind in (*_LINK_KINDS, *_PROCESS_KINDS), kind
    return chance.choice(processes)


def _seconds(chance: random.Random, kind: FaultKind, heartbeat_s: float) -> float:
    if kind in (FaultKind.FREEZE, FaultKind.BLACK_HOLE):
        return round(3 * heartbeat_s + chance.uniform(1.0, 3.0), 3)
    if kind is FaultKind.SLOW:
        return round(chance.uniform(4.0, 10.0), 3)
    if kind is FaultKind.BROKER_ALARM:
        return round(chance.uniform(2.0, 6.0), 3)
    return 0.0
