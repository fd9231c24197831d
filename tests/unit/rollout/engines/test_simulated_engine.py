"""The simulated engine's own promises: lengths, content, pace, and what its options are."""

import asyncio
import json
import math
import statistics
import subprocess
import sys

import pytest

from consumers.rollout.engines.base import EngineFailed, GenerateRequest, TokenChunk
from consumers.rollout.engines.build import build_engine, check_engine, held_weights
from consumers.rollout.engines.simulated.engine import SimulatedEngine
from consumers.rollout.engines.simulated.profile import Course, Profile, mixed
from infra.roles.errors import ConfigError
from infra.weights.described import DescribedTensor, DescribedWeights
from infra.weights.fingerprint import of_entries
from infra.weights.local.weights import LocalWeights
from infra.weights.prepared import PreparedWeights
from infra.weights.store import WeightStore
from schemas.config import RunConfig

VOCAB_SIZE = 50
STOPS = frozenset({2, 7})
FAST = {"prefill_s": 0.0, "token_s": 1e-4, "tick_s": 1e-3, "load_s": 0.0, "mean_tokens": 12.0}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    return tmp_path


def weights(folder, version: int, value: str = "a") -> PreparedWeights:
    tensors = {"w": DescribedTensor(f"float32 3x4 {value}{version}")}
    return PreparedWeights(
        version=version,
        fingerprint=of_entries({name: tensor.entry for name, tensor in tensors.items()}),
        model_folder=folder,
        files=(),
        tensors=tensors,
    )


async def engine_of(folder, version: int = 0, **options) -> SimulatedEngine:
    engine = SimulatedEngine(
        model_folder=folder, slots=4, max_model_len=400, options=FAST | options
    )
    await engine.start(weights(folder, version))
    return engine


def request(tokens, *, seed: int = 3, max_tokens: int = 300, name: str = "r") -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        token_ids=tuple(tokens),
        max_tokens=max_tokens,
        seed=seed,
        stop_token_ids=STOPS,
    )


async def run(engine, asked) -> tuple[list[int], list[int], str]:
    tokens, versions, reason = [], [], ""
    async for item in engine.generate(asked):
        if isinstance(item, TokenChunk):
            tokens += item.token_ids
            versions += [item.policy_version] * len(item.token_ids)
            assert all(math.isfinite(x) and x < 0 for x in item.logprobs)
        else:
            reason = item.reason
    return tokens, versions, reason


async def test_the_same_request_gives_the_same_anywhere_and_other_seeds_others(folder):
    one, two = await engine_of(folder), await engine_of(folder, token_s=3e-4, jitter=0.9)
    first = await run(one, request([5, 6]))
    assert await run(two, request([5, 6], name="other")) == first
    assert (await run(one, request([5, 6], seed=4)))[0] != first[0]


async def test_the_version_changes_the_content_and_never_the_length(folder):
    for seed in range(30):
        old = await run(await engine_of(folder, 0), request([5, 6], seed=seed))
        new = await run(await engine_of(folder, 9), request([5, 6], seed=seed))
        assert len(old[0]) == len(new[0])
        assert old[2] == new[2]
        assert (old[0][-1] in STOPS) == (old[2] == "stop")
        if old[2] == "stop":
            assert old[0][-1] == new[0][-1]
        assert set(new[1]) == {9}
        if len(old[0]) > 5:
            assert old[0] != new[0]


async def test_a_cut_at_any_token_changes_neither_content_nor_length(folder):
    engine = await engine_of(folder)
    whole, _, reason = await run(engine, request([5, 6], seed=8))
    assert reason == "stop"
    assert len(whole) > 3
    for cut in range(1, len(whole)):
        rest, _, _ = await run(engine, request([5, 6, *whole[:cut]], seed=8))
        assert whole[:cut] + rest == whole


async def test_a_cut_across_a_swap_keeps_the_length(folder):
    old, new = await engine_of(folder, 0), await engine_of(folder, 1)
    whole = (await run(old, request([5, 6], seed=8)))[0]
    rest = (await run(new, request([5, 6, *whole[:3]], seed=8)))[0]
    assert len(whole[:3] + rest) == len(whole)


def test_stop_tokens_come_only_at_the_end():
    course = Course(Profile(mean_tokens=5), seed=1, stops=STOPS, vocab_size=VOCAB_SIZE)
    tokens = [course.token(position, 0) for position in range(20_000)]
    assert set(tokens) >= STOPS
    assert set(tokens) - STOPS == set(range(VOCAB_SIZE)) - STOPS
    share = sum(token in STOPS for token in tokens) / len(tokens)
    assert share == pytest.approx(course.hazard, rel=0.1)


def test_lengths_follow_the_profile():
    def length(course: Course) -> int:
        return next(n for n in range(1, 100_000) if course.token(n, 0) in STOPS)

    def lengths(**profile) -> list[int]:
        return [
            length(Course(Profile(**profile), seed=seed, stops=STOPS, vocab_size=VOCAB_SIZE))
            for seed in range(3000)
        ]

    geometric, spread = lengths(mean_tokens=20, spread=0), lengths(mean_tokens=20, spread=1)
    assert statistics.mean(geometric) == pytest.approx(20, rel=0.06)
    assert statistics.pstdev(geometric) == pytest.approx(math.sqrt(20 * 19), rel=0.08)
    assert statistics.mean(spread) == pytest.approx(20, rel=0.12)
    assert statistics.pstdev(spread) > 1.4 * statistics.pstdev(geometric)


def test_the_hash_is_split_mix_64():
    """The first outputs of the reference generator at seed 0, which adds its gamma each time."""
    gamma = 0x9E3779B97F4A7C15
    assert mixed(0) == 0xE220A8397B1DCDAF
    assert mixed(gamma) == 0x6E789E6AA1B965F4
    assert mixed(2 * gamma % 2**64) == 0x06C45D188009454F


async def test_a_frozen_process_generates_nothing_meanwhile(folder, monkeypatch):
    engine = await engine_of(folder, token_s=0.1, jitter=0.0, mean_tokens=1000.0, spread=0.0)
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(run(engine, request([5], seed=2)))
    await asyncio.sleep(0)
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now + 3600)
    await engine.interrupt()
    monkeypatch.undo()
    tokens, _, reason = await asyncio.wait_for(task, 10)
    assert reason == "interrupted"
    assert len(tokens) <= 6


async def test_a_closed_engine_ends_its_streams_and_takes_no_more(folder):
    engine = await engine_of(folder, token_s=5.0)
    task = asyncio.create_task(run(engine, request([5])))
    await asyncio.sleep(0)
    await engine.close()
    assert (await asyncio.wait_for(task, 10))[2] == "interrupted"
    with pytest.raises(EngineFailed, match="closed"):
        await run(engine, request([5]))


def config(folder, **options) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "x", "steps": 1},
            "model": {"path": str(folder)},
            "data": {"train": [{"path": "x.jsonl"}]},
            "rollout": {"engine": "simulated", "engine_options": options},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
        }
    )


def test_a_recipe_names_it(folder):
    assert isinstance(build_engine(config(folder, token_s=0.5)), SimulatedEngine)


def test_only_it_does_without_the_tensors(folder):
    ours = config(folder)
    other = ours.model_copy(
        update={"rollout": ours.rollout.model_copy(update={"engine": "transformers"})}
    )
    store = WeightStore.at(folder)
    assert isinstance(held_weights(ours, store), DescribedWeights)
    assert isinstance(held_weights(other, store), LocalWeights)


@pytest.mark.parametrize("options", [{"tokens": 3}, {"token_s": 0}, {"mean_tokens": "many"}])
def test_options_that_it_does_not_know_are_refused(folder, options):
    with pytest.raises(ConfigError, match=f"engine_options.{next(iter(options))}"):
        check_engine(config(folder, **options))


def test_a_model_folder_without_a_vocabulary_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="vocab_size"):
        build_engine(config(tmp_path))


def test_neither_it_nor_its_weights_need_torch():
    code = (
        "import sys, consumers.rollout.engines.simulated.engine, infra.weights.described\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
