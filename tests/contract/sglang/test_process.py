"""The server's processes: how they start, and that none of them outlives the worker."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang.engine import SglangEngine
from infra.roles.fleet.processes import descendants
from tests.contract.harness import make_engine, prompt, request, run, underway
from tests.contract.processes import children, ends
from tests.contract.sglang.server import WITH_SERVER
from tests.factories import models
from tests.factories.loading import starting

pytestmark = pytest.mark.timeout(300)

KINDS = [
    "sglang",
    pytest.param("sglang_server", marks=[pytest.mark.sglang, WITH_SERVER]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.build(tmp_path / "model", tied=False, seed=0)
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_life_of_a_server(folder: Path, kind: str) -> None:
    before = children()
    engine = make_engine(kind, folder)
    await engine.start(starting(folder, "float32"))
    (keeper,) = children() - before
    (server,) = descendants(keeper)[:1]
    os.kill(keeper, signal.SIGINT)  # Ctrl-C reaches the whole group
    assert len((await run(engine, request("on", prompt(5), max_tokens=3))).token_ids) == 3

    running = await underway(engine, request("last", prompt(9), max_tokens=240))
    os.kill(server, signal.SIGKILL)
    with pytest.raises(EngineFailed, match=r"lost|has ended"):
        await asyncio.wait_for(running, 30)
    assert ends(keeper, within_s=20)
    with pytest.raises(EngineFailed, match="server has ended"):
        await run(engine, request("never", prompt(9)))
    with pytest.raises(EngineFailed, match="server has ended"):
        await engine.interrupt()
    with pytest.raises(EngineFailed, match="server has ended"):
        await engine.load_weights(starting(folder, "float32", version=6))
    await engine.close()
    assert children() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_takes_every_process_of_its_server_along(folder: Path, kind: str) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.sglang.victim", kind, str(folder)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert victim.stdout is not None
        assert "serving" in next(iter(victim.stdout))
        left = descendants(victim.pid)
        assert len(left) >= 2
    finally:
        victim.kill()
        victim.wait()
    assert all(ends(pid, within_s=20) for pid in left)


def engine_with(folder: Path, **options: object) -> SglangEngine:
    return SglangEngine(
        model_folder=folder,
        dtype="float32",
        slots=2,
        max_model_len=64,
        options=options,
        log=folder / "logs" / "sglang.log",
    )


async def test_a_server_that_ends_while_starting_is_quoted(folder: Path) -> None:
    before = children()
    words = "import sys; sys.exit('out of memory, as usual')"
    engine = engine_with(folder, command=[sys.executable, "-c", words])
    with pytest.raises(EngineFailed, match=r"(?s)exit code 1.*out of memory, as usual"):
        await engine.start(starting(folder, "float32"))
    assert children() == before


async def test_a_server_that_is_never_ready_is_ended(folder: Path) -> None:
    before = children()
    words = "import time; print('loading', flush=True); time.sleep(600)"
    engine = engine_with(folder, command=[sys.executable, "-c", words], start_timeout=1.5)
    with pytest.raises(EngineFailed, match=r"(?s)not ready within 1\.5 s.*loading"):
        await engine.start(starting(folder, "float32"))
    assert children() == before


async def test_a_command_that_is_not_there_is_named(folder: Path) -> None:
    engine = engine_with(folder, command=["/nowhere/sglang"])
    with pytest.raises(EngineFailed, match=r"(?s)ended while starting.*/nowhere/sglang"):
        await engine.start(starting(folder, "float32"))


async def test_a_server_that_heeds_no_sigterm_is_killed(folder: Path) -> None:
    words = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(600)"
    )
    before = children()
    engine = engine_with(folder, command=[sys.executable, "-c", words], start_timeout=1.5)
    with pytest.raises(EngineFailed, match="deaf"):
        await engine.start(starting(folder, "float32"))
    assert children() == before
