"""vLLM's engine process: short first prompts, signals, its death and ours."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.vllm.engine import VllmEngine
from tests.contract.harness import prompt, request, run, scored, underway
from tests.contract.processes import descendants, ends
from tests.factories import models
from tests.factories.loading import starting

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


async def test_the_life_of_an_engine_process(tmp_path):
    """One engine for all of it, as each takes half a minute to start.

    In bfloat16 the first kernel that a prompt of one token meets uses AMX tiles, and kills a
    process that never asked for them.
    """
    old, new = tmp_path / "old", tmp_path / "new"
    models.build(old, tied=True, seed=0)
    reference = models.build(new, tied=True, seed=1)
    before = descendants()
    engine = VllmEngine(
        model_folder=old,
        dtype="bfloat16",
        slots=4,
        max_model_len=models.CONTEXT,
        options={"kv_cache_memory_bytes": 64 << 20, "kv_cache": "keep"},
    )
    await engine.start(starting(old, "bfloat16"))
    (child,) = descendants(apart_from=before)
    first = await run(engine, request("first", (40,), max_tokens=3))
    assert len(first.token_ids) == 3

    os.kill(child, signal.SIGINT)
    assert len((await run(engine, request("after", prompt(2), max_tokens=3))).token_ids) == 3

    await check_swap_that_keeps_the_cache(engine, starting(new, "bfloat16", version=5), reference)
    later = await run(engine, request("n", prompt(9), max_tokens=20))
    assert later.logprobs == pytest.approx(scored(reference, prompt(9), later.token_ids), abs=0.2)

    mixed = starting(old, "bfloat16", version=6)
    (path,) = old.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    streaming = await underway(engine, request("m", prompt(9), max_tokens=240))
    with pytest.raises(EngineFailed, match="fingerprint"):
        await engine.load_weights(mixed)
    ended = await asyncio.wait_for(streaming, 30)
    assert (ended.reason, set(ended.versions)) == ("interrupted", {5})
    with pytest.raises(EngineFailed, match="fingerprint"):
        await run(engine, request("o", prompt(9), max_tokens=3))
    engine._failure = None  # its processes are well, and serve for what follows
    await engine.load_weights(starting(new, "bfloat16", version=7))

    running = await underway(engine, request("last", prompt(9), max_tokens=240))
    os.kill(child, signal.SIGKILL)
    with pytest.raises(EngineFailed):
        await asyncio.wait_for(running, 30)
    with pytest.raises(EngineFailed):
        await run(engine, request("never", prompt(9)))
    with pytest.raises(EngineFailed):
        await engine.interrupt()
    with pytest.raises(EngineFailed):
        await engine.load_weights(starting(new, "bfloat16", version=8))
    await engine.close()
    assert not descendants(apart_from=before)


async def check_swap_that_keeps_the_cache(engine, newer, reference) -> None:
    """The running go on with theirs; those that wait find nothing of the old weights, though
    their common prompt was cached under these."""
    start = prompt(200, 3)
    for cached in (0, 192):
        turn = await run(engine, request("c", start, max_tokens=3))
        assert turn.num_cached == cached, "whole blocks of 32 tokens"
    running = [
        await underway(engine, request(f"k{i}", prompt(9, i), max_tokens=240)) for i in range(4)
    ]
    waiting = [
        asyncio.create_task(run(engine, request(f"q{i}", start, max_tokens=12))) for i in range(6)
    ]
    await asyncio.sleep(0.02)
    leaving = waiting.pop()
    swap = asyncio.create_task(engine.load_weights(newer))
    late = asyncio.create_task(run(engine, request("late", start, max_tokens=12)))
    await engine.interrupt({"q5"})
    assert ((await leaving).token_ids, (await leaving).reason) == ([], "interrupted")
    await swap
    for turn in await asyncio.gather(*running):
        assert (set(turn.versions), turn.reason) == ({0, 5}, "length")
    for turn in await asyncio.gather(*waiting, late):
        assert set(turn.versions) == {5}
        expected = scored(reference, start, turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=0.2)
    assert engine.num_unfinished() == 0


def test_a_killed_worker_takes_its_engine_process_along(tmp_path):
    models.build(tmp_path, tied=False, seed=0)
    root = Path(__file__).parents[2]
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.vllm_victim", str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert victim.stdout is not None
        assert "serving" in next(iter(victim.stdout))
        engines = descendants(victim.pid)
        assert len(engines) == 4, "two engine processes, one of which has two workers"
    finally:
        victim.kill()
        victim.wait()
    assert all(ends(pid, within_s=20) for pid in engines)
