"""The pool: what a bad reward function does costs its own rollout, never another one's."""

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from consumers.reward.pool import ScoringFailed, ScoringPool, default_size, short_names
from consumers.reward.process import CannotStart, ScoringProcess
from infra.roles.errors import ConfigError, ExitCode
from schemas.config import RewardSection
from tests.unit.reward.reward_rollouts import rollout

SAMPLES = "tests.unit.reward.reward_samples"


def section(*uses, timeout=30.0, weights=None):
    weights = weights or [1.0] * len(uses)
    functions = [{"use": u, "weight": w} for u, w in zip(uses, weights, strict=True)]
    return RewardSection.model_validate({"functions": functions, "timeout": timeout})


def body(ground_truth):
    return rollout(ground_truth).model_dump_json().encode()


@pytest.fixture
async def pools():
    opened = []

    async def start(*uses, size=1, **more):
        pool = ScoringPool(section(*uses, **more), size=size)
        opened.append(pool)
        await pool.start()
        return pool

    yield start
    for pool in opened:
        await pool.close()


async def test_scores_come_back_to_their_rollouts(pools):
    pool = await pools(f"{SAMPLES}:command", size=2)
    scored = await asyncio.gather(*(pool.score(body(number)) for number in range(60)))
    assert [s.reward for s in scored] == [float(number) for number in range(60)]


async def test_functions_are_weighted_and_reported_each(pools):
    pool = await pools(
        f"{SAMPLES}:whole", f"{SAMPLES}:by_keywords", f"{SAMPLES}:waits", weights=[1.0, 2.0, -4.0]
    )
    scored = await pool.score(body("42"))
    assert scored.reward == 16.0 + 2.0 * 0.5 - 4.0 * 0.25
    assert scored.rewards == {
        "whole": 16.0,
        "by_keywords": 0.5,
        "by_keywords/offered": 4.0,
        "by_keywords/ok": 1.0,
        "waits": 0.25,
    }
    assert scored.seconds > 0.015, "what the one that sleeps took is in it"


@pytest.mark.parametrize(
    ("ground_truth", "said"),
    [
        ("raise", "RuntimeError: the reward broke"),
        ("exit", "SystemExit: 3"),
        ("nan", "not a finite number"),
        ("inf", "not a finite number"),
        ("text", "not a finite number"),
        ("none", "not a finite number"),
        ("no score", "without 'score'"),
    ],
)
async def test_no_score_is_a_failure_and_the_process_goes_on(pools, ground_truth, said):
    pool = await pools(f"{SAMPLES}:command")
    bad, good = await asyncio.gather(
        pool.score(body(ground_truth)), pool.score(body(1)), return_exceptions=True
    )
    assert isinstance(bad, ScoringFailed)
    assert said in str(bad)
    assert "Traceback" in bad.trace
    assert good.reward == 1.0


@pytest.mark.parametrize("ground_truth", ["hang", "spin"])
async def test_what_never_returns_is_killed(pools, ground_truth):
    pool = await pools(f"{SAMPLES}:command", timeout=3.0)
    results = await asyncio.gather(
        *(pool.score(body(truth)) for truth in (1, 2, ground_truth, 3, 4)), return_exceptions=True
    )
    assert "did not return in 3 s and was killed" in str(results[2])
    assert [r.reward for r in results[:2] + results[3:]] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("ground_truth", "said"), [("die", "exited with 7"), ("segfault", "ended by SIGSEGV")]
)
async def test_what_takes_its_process_down_fails_alone(pools, ground_truth, said):
    pool = await pools(f"{SAMPLES}:command")
    results = await asyncio.gather(
        *(pool.score(body(truth)) for truth in (1, ground_truth, 2)), return_exceptions=True
    )
    assert said in str(results[1])
    assert isinstance(results[1], ScoringFailed)
    assert [results[0].reward, results[2].reward] == [1.0, 2.0]


async def test_a_hang_blames_the_function_that_hangs(pools):
    pool = await pools(f"{SAMPLES}:whole", f"{SAMPLES}:command", timeout=3.0)
    with pytest.raises(ScoringFailed, match="reward_samples:command' did not return"):
        await pool.score(body("hang"))


async def test_what_a_function_prints_disturbs_nothing(pools):
    pool = await pools(f"{SAMPLES}:command")
    assert (await pool.score(body("print"))).reward == 1.0


async def test_a_sum_that_overflows_is_a_failure(pools):
    pool = await pools(f"{SAMPLES}:huge", weights=[10.0])
    with pytest.raises(ScoringFailed, match="not finite"):
        await pool.score(body(1))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("exact_mach", "did you mean 'exact_match'"),
        ("nowhere.at_all:f", "cannot import 'nowhere.at_all'"),
        (f"{SAMPLES}:comand", "did you mean 'command'"),
        (f"{SAMPLES}:two_arguments", "takes (prediction, label)"),
        (f"{SAMPLES}:not_a_function", "is not a function"),
    ],
)
async def test_functions_that_cannot_be_loaded(pools, use, said):
    with pytest.raises(ConfigError) as caught:
        await pools(use)
    assert said in str(caught.value)


async def test_a_module_that_raises_or_exits_while_loading(pools, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_reward.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "gone_reward.py").write_text("import os\nos._exit(9)\n")
    with pytest.raises(ConfigError, match="no licence"):
        await pools("broken_reward:f")
    with pytest.raises(ConfigError, match="exited with 9 while loading"):
        await pools("gone_reward:f")


async def test_functions_that_loaded_once_are_no_mistake_of_the_recipe(
    pools, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "fading_reward.py"
    module.write_text("import os\ndef f(rollout):\n    os._exit(3)\n")
    pool = await pools("fading_reward:f", size=1)
    module.write_text("raise MemoryError('no room')\n")
    with pytest.raises(ScoringFailed, match="exited with 3"):
        await pool.score(body(1))
    with pytest.raises(CannotStart, match="no room") as caught:
        await pool.score(body(2))
    assert caught.value.exit_code is ExitCode.FAILED


async def test_built_ins_are_known_by_name(pools):
    pool = await pools("exact_match", "math_number")
    scored = await pool.score(body("so 42"))
    assert scored.rewards == {"exact_match": 1.0, "math_number": 1.0}


async def test_no_process_outlives_the_pool(pools):
    pool = await pools(f"{SAMPLES}:command", size=2)
    await asyncio.gather(*(pool.score(body(n)) for n in range(4)))
    await pool.close()
    assert [child for child in children() if b"consumers.reward.child" in child] == []


async def test_no_process_outlives_a_pool_that_is_closed_at_once(pools):
    await (await pools("exact_match", size=2)).close()
    assert [child for child in children() if b"consumers.reward.child" in child] == []


async def test_no_process_outlives_a_start_that_is_cancelled_at_any_moment():
    for turns in range(10):
        starting = asyncio.create_task(ScoringProcess.start(["exact_match"]))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [child for child in children() if b"consumers.reward.child" in child] == []


async def test_no_process_outlives_a_start_that_gets_a_strange_answer(monkeypatch):
    async def nonsense(_process):
        raise ValueError("not an answer")

    monkeypatch.setattr(ScoringProcess, "receive", nonsense)
    with pytest.raises(ValueError, match="not an answer"):
        await ScoringProcess.start(["exact_match"])
    assert [child for child in children() if b"consumers.reward.child" in child] == []


async def test_a_scoring_process_loads_nothing_heavy(pools, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "weigh.py").write_text(
        "import sys\nHEAVY = ('torch', 'transformers', 'numpy', 'pydantic', 'pika', 'vllm')\n"
        "def score(rollout):\n    return sum(name in sys.modules for name in HEAVY)\n"
    )
    pool = await pools("weigh:score", "exact_match")
    assert (await pool.score(body("x"))).rewards["score"] == 0.0


def test_short_names():
    assert short_names(["a:f", "b:g", "exact_match"]) == ["f", "g", "exact_match"]
    assert short_names(["a:f", "b:f"]) == ["a:f", "b:f"]


def test_size_is_bounded(monkeypatch):
    for cores, size in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert default_size() == size


def children():
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    lines.append((entry / "cmdline").read_bytes())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return lines


async def test_a_process_that_cannot_be_replaced_ends_the_pool_instead_of_all_scoring(
    pools, monkeypatch
):
    pool = await pools(f"{SAMPLES}:command")
    assert (await pool.score(body(3))).reward == 3.0

    def refused(*_args, **_kwargs):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("consumers.reward.process.subprocess.Popen", refused)
    async with asyncio.timeout(20):
        with pytest.raises(ScoringFailed, match="exited with 7"):
            await pool.score(body("die"))
        for number in range(2):
            with pytest.raises(CannotStart, match="Resource temporarily unavailable"):
                await pool.score(body(number))


async def test_an_error_of_any_length_and_letters_is_told(pools):
    pool = await pools(f"{SAMPLES}:command")
    with pytest.raises(ScoringFailed, match=r"RuntimeError: lone \?!!!") as caught:
        await pool.score(body("shout"))
    assert len(str(caught.value)) < 25_000


async def test_whatever_ends_a_slot_is_heard_by_all_who_wait(pools, monkeypatch):
    pool = await pools(f"{SAMPLES}:command")

    async def nonsense(_process):
        raise ValueError("not an answer")

    monkeypatch.setattr("consumers.reward.process.ScoringProcess.receive", nonsense)
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(
            *(pool.score(body(number)) for number in range(3)), return_exceptions=True
        )
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3


async def test_a_process_that_the_kernel_does_not_let_go_is_left_behind(pools, monkeypatch, caplog):
    pool = await pools(f"{SAMPLES}:command")
    wait = subprocess.Popen.wait

    def stuck(process, timeout=None):
        wait(process)
        raise subprocess.TimeoutExpired("it", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", stuck)
    await asyncio.wait_for(pool.close(), 20)
    assert "does not end, even killed: left behind" in caplog.text


async def test_what_runs_and_for_how_long_is_told(pools):
    pool = await pools(f"{SAMPLES}:whole", size=1)
    assert (pool.num_scoring, pool.longest_s, pool.usual_s) == (0, 0.0, 0.0)
    await pool.score(body("42"))
    assert pool.num_scoring == 0
    assert pool.usual_s > 0
    hanging = await pools(f"{SAMPLES}:command", size=1)
    waiting = asyncio.ensure_future(hanging.score(body("hang")))
    async with asyncio.timeout(20):
        while hanging.longest_s < 0.05:
            await asyncio.sleep(0.01)
    assert hanging.num_scoring == 1
    waiting.cancel()
