"""What a role learns from `sync`, in whatever order it comes."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.amqp.message import Outgoing
from infra.roles import context as contexts
from infra.roles import heartbeats
from infra.roles.context import RoleContext
from infra.roles.heartbeats import BEFORE_VARIABLE, Disk, heartbeat_of, say_left, send_heartbeats
from infra.runs.folder import RunFolder
from infra.weights.errors import StoreFailed
from schemas.config import RunConfig
from schemas.control import Command, Heartbeat, RunState, Wanted, WeightsPublished
from schemas.headers import Headers
from tests.factories.contexts import role_context
from tests.factories.published import NO_WEIGHTS


def config(**weights: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "t", "steps": 1},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
            "weights": weights,
        }
    )


def make(tmp_path: Path, role: str = "rollout", **weights: str) -> RoleContext:
    return role_context(config(**weights), role=role, folder=RunFolder(tmp_path))


def state(number: int, *, run_id: str = "a", incarnation: int = 1, **fields: Any) -> RunState:
    return RunState(run_id=run_id, number=number, incarnation=incarnation, **fields)


def weights(version: int, run_id: str = "a") -> WeightsPublished:
    return WeightsPublished(
        run_id=run_id,
        version=version,
        incarnation=1,
        step=version,
        folder=f"v{version}",
        full=NO_WEIGHTS,
        fingerprint="f",
    )


async def test_weights_heard_before_the_run_is_known_are_sorted_out_then(tmp_path: Path) -> None:
    context, heard = make(tmp_path), []
    context.hear_weights(weights(3))
    context.hear_weights(weights(9, run_id="b"))
    context.hear_run_state(state(1))
    assert await context.run_id() == "a"
    context.on_weights(heard.append)
    context.hear_weights(weights(2))
    context.hear_weights(weights(3))
    context.hear_weights(weights(5))
    context.hear_weights(weights(7, run_id="b"))
    assert [published.version for published in heard] == [3, 5]


async def test_older_states_are_ignored_and_a_new_incarnation_is_newer(tmp_path: Path) -> None:
    context, heard = make(tmp_path), []
    context.on_run_state(heard.append)
    for incarnation, number in ((1, 5), (1, 4), (1, 5), (2, 1), (1, 9), (2, 2)):
        context.hear_run_state(state(number, incarnation=incarnation))
    assert [(s.incarnation, s.number) for s in heard] == [(1, 5), (1, 5), (2, 1), (2, 2)]


async def test_the_end_of_the_run_stops_everybody_but_the_trainer(tmp_path: Path) -> None:
    worker, trainer = make(tmp_path), make(tmp_path, "trainer")
    trainer.set_run_id("a")
    for context in (worker, trainer):
        context.hear_run_state(state(1, wanted=Wanted.STOPPED))
    assert worker.stop.is_set()
    assert not trainer.stop.is_set()
    trainer.hear_command(Command(run_id="a", verb="pause", number=1))
    assert not trainer.stop.is_set()
    trainer.hear_command(Command(run_id="a", verb="stop", number=2))
    assert trainer.stop.is_set()


async def test_a_command_that_comes_again_is_obeyed_once(tmp_path: Path) -> None:
    context, heard = make(tmp_path, "trainer"), []
    context.set_run_id("a")
    context.on_command(lambda command: heard.append((command.verb, command.by)))
    pause, resume = (
        Command(run_id="a", verb="pause", number=4),
        Command(run_id="a", verb="resume", number=5),
    )
    others = Command(run_id="a", verb="drain", number=1, by="ana")
    for command in (pause, pause, resume, pause, others, resume, others):
        context.hear_command(command)
    assert heard == [("pause", ""), ("resume", ""), ("drain", "ana")]


async def test_a_command_for_another_run_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is repeated for a run that was purged does not reach the run after it."""
    starting, heard = make(tmp_path, "trainer"), []
    starting.on_command(lambda command: heard.append((command.run_id, command.verb)))
    for number in (1, 1):
        starting.hear_command(Command(run_id="old", verb="stop", number=number, by="ana"))
    starting.hear_command(Command(run_id="new", verb="pause", number=1, by="bob"))
    assert not heard and not starting.asked.is_set()
    starting.set_run_id("new")
    assert heard == [("new", "pause")]
    starting.hear_command(Command(run_id="old", verb="stop", number=1, by="ana"))
    starting.hear_command(Command(run_id="", verb="stop", number=1, by="ana"))
    assert heard == [("new", "pause")] and not starting.stop.is_set()
    assert caplog.text.count("ignoring run old") == 1


async def test_a_command_that_names_no_run_is_for_who_belongs_to_none(tmp_path: Path) -> None:
    starting = make(tmp_path)
    starting.hear_command(Command(run_id="", verb="stop", number=1, by="ana"))
    assert starting.stop.is_set()


async def test_another_run_changes_nothing_and_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = make(tmp_path)
    context.hear_run_state(state(1))
    for number in (7, 8):
        context.hear_run_state(state(number, run_id="b", wanted=Wanted.STOPPED))
    assert not context.stop.is_set()
    assert context.run_state == state(1)
    assert len(caplog.records) == 1
    assert "ignoring run b" in caplog.text


async def test_the_trainer_does_not_learn_its_run_from_another(tmp_path: Path) -> None:
    trainer, heard = make(tmp_path, "trainer"), []
    trainer.on_run_state(heard.append)
    trainer.hear_run_state(state(1, run_id="a"))
    assert trainer.known_run_id is None
    trainer.set_run_id("a")
    assert heard == [state(1, run_id="a")]


@pytest.mark.parametrize("store", ["", "elsewhere"])
async def test_the_run_is_learned_from_the_store_when_nobody_speaks(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreFailed("gone for a moment")]

    async def newest(*_: object) -> WeightsPublished:
        if failures:
            raise failures.pop()
        return weights(4, run_id="stored")

    monkeypatch.setattr("infra.roles.newest.newest_manifest", newest)
    monkeypatch.setattr(contexts, "_STORE_PERIOD_S", 0.01)
    monkeypatch.setattr(contexts, "STORE_PATIENCE_S", 3600.0)
    monkeypatch.setattr(contexts, "OWN_STORE_PATIENCE_S", 0.0)
    context = make(tmp_path, store=store)
    asking = asyncio.create_task(context.run_id())
    if store:
        await asyncio.sleep(0)
        context.hear_run_state(state(1, run_id="spoken"))
    assert await asking == ("spoken" if store else "stored")
    assert (context.newest_weights is None) == bool(store)


async def test_foreign_messages_are_named(tmp_path: Path) -> None:
    context = make(tmp_path)
    context.set_run_id("a")
    assert context.foreign(Headers(run_id="a", group=0)) is None
    assert context.foreign(Headers(run_id="b", group=0)) == "belongs to run 'b', this is run 'a'"


async def test_heartbeats_say_what_is_waited_for(tmp_path: Path) -> None:
    context = make(tmp_path)
    assert heartbeat_of(context).state == "starting"
    context.set_run_id("a")
    assert (heartbeat_of(context).state, heartbeat_of(context).run_id) == ("running", "a")
    context.heartbeat(lambda: {"version": 3, "slots": 8, "rollout_ids": ("1.0",)})
    async with context.waits("a prompt"):
        beat = heartbeat_of(context)
    assert (beat.version, beat.rollout_ids, beat.waiting_for) == (3, ("1.0",), "a prompt")
    context.heartbeat(lambda: {"state": "swapping"})
    assert heartbeat_of(context).state == "swapping"
    context.hear_run_state(state(1, wanted=Wanted.PAUSED))
    context.heartbeat(dict)
    assert heartbeat_of(context).state == "paused"
    context.stop.set()
    assert heartbeat_of(context).state == "leaving"


async def test_heartbeats_count_what_must_not_grow(tmp_path: Path) -> None:
    context = make(tmp_path)
    context.heartbeat(lambda: {"counters": {"step": 3.0}})
    before = heartbeat_of(context).counters
    sleeping = [asyncio.create_task(context.stop.wait()) for _ in range(5)]
    with (tmp_path / "open").open("w"):
        after = heartbeat_of(context).counters
    assert after["step"] == 3.0
    assert after["num_tasks"] == before["num_tasks"] + 5
    assert after["num_files"] == before["num_files"] + 1
    assert after["num_threads"] == before["num_threads"]
    assert after["num_blocks"] > 0 and after["rss_bytes"] > 1024**2
    context.stop.set()
    await asyncio.gather(*sleeping)


async def test_a_role_that_waits_for_its_run_is_free_to_leave(tmp_path: Path) -> None:
    context = make(tmp_path)
    waiting = asyncio.create_task(context.unless_stopped(context.run_id()))
    await asyncio.sleep(0)
    context.stop.set()
    assert await waiting is False
    context.hear_run_state(state(1))
    assert await make_known(context) is True


async def make_known(context: RoleContext) -> bool:
    context.stop.clear()
    return await context.unless_stopped(context.run_id())


async def test_the_last_heartbeat_says_why(tmp_path: Path) -> None:
    context = make(tmp_path)
    sent: list[Outgoing] = []

    async def emit(message: Outgoing) -> None:
        sent.append(message)

    context.broker = SimpleNamespace(emit=emit)  # type: ignore[assignment]
    await say_left(context, error="EngineFailed: gone\n  -> look" + "!" * 900)
    beat = Heartbeat.model_validate_json(sent[0].body)
    assert beat.state == "left"
    assert beat.error.startswith("EngineFailed: gone -> look!")
    assert len(beat.error) == 400


async def test_a_process_that_was_started_again_says_how_the_one_before_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(tmp_path)
    monkeypatch.setenv(BEFORE_VARIABLE, "killed by SIGKILL")
    monkeypatch.setattr(heartbeats, "_STARTED", time.monotonic())
    assert heartbeat_of(context).before == "killed by SIGKILL"
    monkeypatch.setattr(heartbeats, "_STARTED", time.monotonic() - 31)
    assert heartbeat_of(context).before == ""


async def test_a_heartbeat_that_may_not_wait_is_sent_at_once(tmp_path: Path) -> None:
    context = make(tmp_path)
    sent: list[str] = []

    async def emit(message: Outgoing) -> None:
        sent.append(message.envelope.type)

    context.broker = SimpleNamespace(emit=emit)  # type: ignore[assignment]
    sending = asyncio.create_task(send_heartbeats(context))
    async with asyncio.timeout(heartbeats.PERIOD_S - 0.5):
        for count in range(1, 4):
            while len(sent) < count:
                await asyncio.sleep(0.001)
            context.beat.set()
    sending.cancel()
    assert set(sent) == {"Heartbeat"}


async def test_free_space_is_told_where_the_run_folder_is(tmp_path: Path) -> None:
    for path, known in ((tmp_path, True), (tmp_path / "elsewhere", False)):
        disk = Disk(path)
        disk.look()
        assert disk.free_bytes is None
        assert disk._asking is not None
        await disk._asking
        disk.look()
        assert (disk.free_bytes is not None) is known
