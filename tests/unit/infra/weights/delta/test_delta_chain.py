"""A hundred versions, and readers that join, miss and are sent damage: never a wrong state."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from infra.weights.delta.decode import parse_delta
from infra.weights.delta.encode import encode_delta
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import fingerprint, of_entries
from tests.factories.deltas import State, Tensors, bf16, is_right, same_state, state_of

NUM_VERSIONS = 100
KEYFRAME_EVERY = 20
SHAPES = {"embed": (300, 16), "norm": (16,), "scale": (), "up": (64, 16), "empty": (0, 4)}


@dataclass
class Chain:
    """All versions, the delta to each from the one before, and what its manifest would say."""

    states: list[State] = field(default_factory=list)
    deltas: list[bytes] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chain() -> Chain:
    """Float32 masters that take steps of changing length; published as bfloat16 and float32."""
    random = np.random.default_rng(0)
    masters = {name: random.normal(0, 0.1, shape) for name, shape in SHAPES.items()}
    made, before = Chain(), published(masters)
    made.states.append(state_of(before))
    made.deltas.append(b"")
    made.fingerprints.append(fingerprint(before))
    for version in range(1, NUM_VERSIONS + 1):
        lr = 10.0 ** random.uniform(-6, -2)
        for name in masters:
            if random.random() < 0.8:
                masters[name] = masters[name] + lr * random.normal(0, 1, SHAPES[name])
        after = published(masters)
        mode = "absolute" if version % 3 == 0 else "step"
        encoded = encode_delta(before, after, mode=mode)
        made.deltas.append(b"".join(encoded.body))
        made.fingerprints.append(encoded.fingerprint)
        made.states.append(state_of(after))
        before = after
    return made


def published(masters: dict[str, np.ndarray]) -> Tensors:
    tensors = {name: torch.from_numpy(np.asarray(each)) for name, each in masters.items()}
    return {name: t.float() if name == "scale" else bf16(t.float()) for name, t in tensors.items()}


class Reader:
    """Holds one verified state; changes a copy, and takes it only when every digest is right.

    The digests are the last delta's, and these the manifest's: a whole delta in another's place
    would prove itself.
    """

    def __init__(self, chain: Chain, random: np.random.Generator, damage: float) -> None:
        self.version, self.state = -1, State()
        self.resyncs = self.damaged = self.refused = 0
        self._chain, self._random, self._damage = chain, random, damage

    def update(self, newest: int) -> None:
        """By all missed deltas in one go; else from a keyframe; else stay."""
        keyframe = newest - newest % KEYFRAME_EVERY
        if self.version >= 0 and self._reach(self.version, self.state, newest):
            return
        self.resyncs += 1
        self._reach(keyframe, self._chain.states[keyframe], newest)

    def _reach(self, start: int, state: State, newest: int) -> bool:
        shadow = {name: bits.copy() for name, bits in state.items()}
        damaged_before = self.damaged
        try:
            for version in range(start + 1, newest + 1):
                delta = parse_delta(self._fetched(version))
                for name in delta.changed:
                    delta.apply(name, shadow[name])
            right = start == newest or (
                is_right(shadow, delta)
                and of_entries(delta.entries) == self._chain.fingerprints[newest]
            )
        except (WeightsCorrupt, ValueError, KeyError):
            right = False
        if not right:
            assert self.damaged > damaged_before
            self.refused += 1
            return False
        self.version, self.state = newest, shadow
        return True

    def _fetched(self, version: int) -> bytes:
        data = self._chain.deltas[version]
        if self._random.random() >= self._damage:
            return data
        self.damaged += 1
        place = int(self._random.integers(len(data)))
        match self._random.integers(4):
            case 0:
                return (
                    data[:place]
                    + bytes([data[place] ^ (1 << self._random.integers(8))])
                    + data[place + 1 :]
                )
            case 1:
                return data[:place]
            case 2:
                return data[:place] + bytes(8) + data[place + 8 :]
            case _:
                return self._chain.deltas[1 + version % NUM_VERSIONS]


def test_every_version_is_reached_step_by_step(chain):
    state = {name: bits.copy() for name, bits in chain.states[0].items()}
    for data, wanted in zip(chain.deltas[1:], chain.states[1:], strict=True):
        delta = parse_delta(data)
        for name in delta.changed:
            delta.apply(name, state[name])
        assert is_right(state, delta)
        assert same_state(state, wanted)


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (0, 1), (17, 60), (40, 99)])
def test_missed_versions_are_one_run_that_is_verified_once(chain, start, stop):
    state = {name: bits.copy() for name, bits in chain.states[start].items()}
    for data in chain.deltas[start + 1 : stop + 1]:
        delta = parse_delta(data)
        for name in delta.changed:
            delta.apply(name, state[name])
    assert is_right(state, delta)
    assert same_state(state, chain.states[stop])


@pytest.mark.parametrize("seed", range(20))
def test_readers_that_join_miss_and_are_sent_damage(chain, seed):
    random = np.random.default_rng(seed)
    reader = Reader(chain, random, damage=0.08)
    moves = 0
    for newest in range(int(random.integers(60)), NUM_VERSIONS + 1):
        if random.random() < 0.4:
            continue
        if random.random() < 0.03:
            reader.version, reader.state = -1, State()
        former = reader.version
        reader.update(newest)
        moves += reader.version != former
        assert reader.version in (former, newest)
        if reader.version >= 0:
            assert same_state(reader.state, chain.states[reader.version])
    assert moves > 5
    assert reader.damaged
    assert reader.refused
    reader._damage = 0.0
    reader.update(NUM_VERSIONS)
    assert reader.version == NUM_VERSIONS


def test_a_delta_on_another_base_is_noticed(chain):
    for at, version in itertools.product((0, 30, 70), (5, 50, 95)):
        delta = parse_delta(chain.deltas[version])
        state = {name: bits.copy() for name, bits in chain.states[at].items()}
        for name in delta.changed:
            delta.apply(name, state[name])
        assert not is_right(state, delta)
