"""`run.py monitor` against a real broker: what it tells, and that it leaves nothing behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infra.amqp.admin import Management
from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.amqp.url import management_url
from tests.broker_fixtures import Connect
from tests.integration.observe.fleet import Fleet, beat
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


def argv(run_name: str, *words: str) -> list[str]:
    """On a machine that has nothing but the recipe."""
    return [sys.executable, str(ROOT / "run.py"), "monitor", "demo", f"run.name={run_name}", *words]


def environment(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", "WARREN_BROKER_URL": url, **more}


async def ask(
    folder: Path, url: str, run_name: str, *words: str, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return await asyncio.to_thread(
        subprocess.run,
        argv(run_name, *words),
        cwd=folder,
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=60,
    )


def faults(picture: dict[str, Any]) -> set[str]:
    return {one["fault"] for one in picture["findings"]}


def names(url: str) -> set[str]:
    """Of everything that the broker has."""
    management = Management(management_url(url))
    found = [management._get(f"/api/{kind}") for kind in ("queues", "exchanges", "bindings")]
    return {json.dumps([one.get("name"), one.get("source")]) for kind in found for one in kind}


async def test_sixty_four_workers(
    tmp_path: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect(), num_rollout=64)
    before = await asyncio.to_thread(names, broker_url)
    done = await ask(tmp_path, broker_url, run_name, "--json")
    picture = json.loads(done.stdout)
    after = await asyncio.to_thread(names, broker_url)
    await fleet.stop()
    assert done.returncode == 0
    assert len([one for one in picture["workers"] if one["role"] == "rollout"]) == 64
    assert picture["rollouts"]["in_flight"] == 64 * 20
    assert picture["rollouts"]["by_version"] == {"10": 64 * 5, "11": 64 * 15}
    assert picture["rollouts"]["tokens_per_s"] > 0
    assert (picture["run"]["step"], picture["run"]["version"]) == (42, 11)
    assert picture["ledger"]["balanced"] is True
    assert {queue["name"] for queue in picture["queues"]} >= {
        "prompts",
        "cancel_queue",
        "recording",
    }
    assert picture["findings"] == []
    assert before == after
    assert list(tmp_path.iterdir()) == []


async def test_where_there_is_no_run_nothing_is_made(
    tmp_path: Path, broker_url: str, run_name: str
) -> None:
    before = await asyncio.to_thread(names, broker_url)
    done = await ask(tmp_path, broker_url, run_name, "--once")
    assert done.returncode == 2
    assert f"has no run '{run_name}'" in done.stderr
    assert await asyncio.to_thread(names, broker_url) == before
    assert list(tmp_path.iterdir()) == []


async def test_a_dead_trainer_is_named(
    tmp_path: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect())
    fleet.roles["trainer"] = 0
    done = await ask(tmp_path, broker_url, run_name, "--once")
    await fleet.stop()
    assert done.returncode == 0
    assert "no trainer is heard" in done.stdout
    assert "--resume" in done.stdout
    assert "rollout-2" in done.stdout
    assert "\x1b" not in done.stdout


async def test_without_the_management_api_the_rest_is_told(
    tmp_path: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect())
    nowhere = {"WARREN_MANAGEMENT_URL": "http://127.0.0.1:1"}
    done = await ask(tmp_path, broker_url, run_name, "--json", **nowhere)
    await fleet.stop()
    picture = json.loads(done.stdout)
    assert "127.0.0.1:1" in picture["broker"]["management"]
    (prompts,) = [queue for queue in picture["queues"] if queue["name"] == "prompts"]
    assert (prompts["ready"], prompts["in_per_s"]) == (0, None)
    assert faults(picture) == set()


async def test_hostile_heartbeats_are_shown_as_text_or_not_at_all(
    tmp_path: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect())

    async def attack() -> None:
        evil = beat("rollout", "\x1b]0;owned\x07\x1b[2J[red]evil", waiting_for="[bold]x" * 900)
        for count in range(100):
            await fleet.send("events", evil)
            await fleet.send("events", evil, body=b"\x00" * 50)
            await fleet.send("sync", evil, body=b"{}" * count)
            await asyncio.sleep(0.05)

    attacking = asyncio.create_task(attack())
    done = await ask(tmp_path, broker_url, run_name, "--once")
    await attacking
    await fleet.stop()
    assert done.returncode == 0
    assert "[red]evil" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


async def test_not_a_terminal_gets_plain_lines_until_it_is_told_to_leave(
    tmp_path: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect())
    process = popen(
        argv(run_name), cwd=tmp_path, env=environment(broker_url), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    wanted = "step 42/120 | version 11 | reward 0.600"
    seen = ""
    async with asyncio.timeout(60):
        while wanted not in seen:
            seen += await asyncio.to_thread(process.stdout.readline)
    fleet.roles["producer"] = 0
    async with asyncio.timeout(60):
        while "problem: no producer is heard" not in seen:
            seen += await asyncio.to_thread(process.stdout.readline)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    await fleet.stop()
    assert "\x1b" not in seen


async def test_no_broker_is_exit_3(tmp_path: Path, run_name: str) -> None:
    url = "amqp://guest:secret@127.0.0.1:1/"
    words = ("--once", "--json")
    people, machines = await asyncio.gather(*(ask(tmp_path, url, run_name, word) for word in words))
    assert people.returncode == 3
    assert "127.0.0.1:1" in people.stderr
    assert "secret" not in people.stderr
    assert machines.returncode == 3
    assert faults(json.loads(machines.stdout)) == {"broker_gone"}


def test_a_broker_that_comes_back_is_heard_again(
    tmp_path: Path, killable_node: LocalBroker, run_name: str
) -> None:
    asyncio.run(_make_run(killable_node.url, run_name))
    process = popen(
        argv(run_name), cwd=tmp_path, env=environment(killable_node.url), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    _read_until(process, "heard of this run: nobody")
    killable_node.kill()
    _read_until(process, "problem: the broker at")
    killable_node.start(timeout_s=120.0)
    _read_until(process, "over: the broker at")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


async def _make_run(url: str, run_name: str) -> None:
    broker = Broker(url, run=run_name, app_id="test/0")
    await broker.start()
    await broker.close()


def _read_until(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    seen = ""
    while words not in seen:
        seen += process.stdout.readline()
        assert time.monotonic() < deadline, seen
