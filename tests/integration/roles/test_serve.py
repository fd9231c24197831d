"""One role on a real node: leaving, a broker that is away, messages that are not for it."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from infra.amqp.codec import encode
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Envelope, Outgoing
from schemas.base import Message
from schemas.control import Command, Heartbeat, RunState, Wanted
from tests.broker_fixtures import Connect
from tests.integration.roles.toy_run import start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


def control(message: Message) -> Outgoing:
    envelope, body = encode(message, app_id="test/0", correlation_id="x", headers={"run_id": "a"})
    return Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)


async def test_it_learns_its_run_ignores_others_and_ends_with_it(
    tmp_path: Path, run_name: str, broker_url: str, connect: Connect
) -> None:
    broker = await connect()
    beats = broker.events()
    recipe = write_recipe(tmp_path, run_name)
    role = start(tmp_path, "rollout", str(recipe), "--name", "w7", url=broker_url)

    async def beat() -> Heartbeat:
        delivery = await anext(beats)
        return Heartbeat.model_validate_json(delivery.body)

    first = await beat()
    assert (first.role, first.worker, first.run_id, first.pid) == ("rollout", "w7", "", role.pid)
    await broker.publish(control(RunState(run_id="a", number=5)))
    while (await beat()).run_id != "a":
        pass
    await broker.publish(control(RunState(run_id="b", number=9, wanted=Wanted.STOPPED)))
    await broker.publish(control(RunState(run_id="a", number=4, wanted=Wanted.STOPPED)))
    broken = Envelope(
        message_id="1",
        type="RunState",
        correlation_id="x",
        app_id="test/0",
        headers={"checksum": "crc32:00000000:1"},
        timestamp=0,
    )
    await broker.publish(Outgoing(exchange="sync", routing_key="", envelope=broken, body=b"{"))
    for _ in range(2):
        assert (await beat()).state == "running"
    await broker.publish(control(RunState(run_id="a", number=6, wanted=Wanted.STOPPED)))
    output, _ = role.communicate(timeout=120)
    assert role.returncode == 0, output
    assert "ignoring run b of the same name" in output
    assert "ignoring a control message that cannot be read" in output
    assert "the run is over" in output


async def test_a_stop_command_ends_it(
    tmp_path: Path, run_name: str, broker_url: str, connect: Connect
) -> None:
    broker = await connect()
    beats = broker.events()
    role = start(tmp_path, "reward", str(write_recipe(tmp_path, run_name)), url=broker_url)
    await anext(beats)
    await broker.publish(control(RunState(run_id="a", number=1)))
    await broker.publish(control(Command(run_id="purged", verb="stop", number=1, by="bob")))
    for _ in range(2):
        assert Heartbeat.model_validate_json((await anext(beats)).body).state != "leaving"
    await broker.publish(control(Command(run_id="a", verb="stop", number=1, by="ana")))
    output, _ = role.communicate(timeout=120)
    assert role.returncode == 0, output
    assert "ignoring run purged of the same name" in output
    assert "told to stop by ana" in output


def test_sigterm_is_exit_0_and_a_second_sigint_130(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = str(write_recipe(tmp_path, run_name))
    for numbers, code in (((signal.SIGTERM,), 0), ((signal.SIGINT, signal.SIGINT), 130)):
        option = f"rollout.engine_options.body={'linger' if code else 'publish'}"
        role = start(tmp_path, "rollout", recipe, option, url=broker_url)
        assert role.stdout is not None
        assert role.stdout.readline() == "ready\n"
        for number in numbers:
            role.send_signal(number)
            assert number.name in role.stdout.readline() or number == numbers[-1]
        role.communicate(timeout=120)
        assert role.returncode == code


def test_a_broker_that_is_down_is_exit_3_with_advice(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path, "down"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"amqp://u:secret@127.0.0.1:{unused.getsockname()[1]}/"
        option = "rollout.engine_options.connect_s=2"
        role = start(tmp_path, "rollout", recipe, option, url=url)
        output, _ = role.communicate(timeout=120)
    assert role.returncode == 3
    assert "no broker answers at 127.0.0.1:" in output
    assert "start it, or correct [broker] url" in output
    assert "secret" not in output
    assert "Traceback" not in output


def test_a_role_that_waits_for_its_broker_leaves_when_told(tmp_path: Path) -> None:
    """Somebody listens at the address and never says a word."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"amqp://u:secret@127.0.0.1:{silent.getsockname()[1]}/"
        option = "rollout.engine_options.connect_s=3600"
        role = start(tmp_path, "rollout", str(write_recipe(tmp_path, "down")), option, url=url)
        silent.accept()
        role.send_signal(signal.SIGTERM)
        output, _ = role.communicate(timeout=60)
    assert role.returncode == 0, output
    assert output.splitlines()[-1].endswith("left")


def test_no_broker_at_all_is_exit_3_with_advice(tmp_path: Path) -> None:
    role = start(tmp_path, "rollout", str(write_recipe(tmp_path, "none")))
    output, _ = role.communicate(timeout=120)
    assert role.returncode == 3
    assert "WARREN_BROKER_URL and [broker] url are empty" in output
    assert "run.py broker RECIPE" in output


async def test_a_broker_that_restarts_is_found_again(
    tmp_path: Path, run_name: str, killable_node: LocalBroker, connect: Connect
) -> None:
    recipe = str(write_recipe(tmp_path, run_name))
    option = "rollout.engine_options.body=publish"
    role = start(tmp_path, "rollout", recipe, option, url=killable_node.url)
    broker = await connect(url=killable_node.url)
    heard = broker.control()

    async def number() -> int:
        delivery = await anext(heard)
        return RunState.model_validate_json(delivery.body).number

    before = await number()
    await asyncio.to_thread(killable_node.restart)
    after = await number()
    while after <= before + 2:
        after = await number()
    assert role.poll() is None
    role.send_signal(signal.SIGTERM)
    output, _ = role.communicate(timeout=120)
    assert role.returncode == 0, output


def test_an_error_of_the_body_becomes_its_exit_code(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = str(write_recipe(tmp_path, run_name))
    for mode, code, words in (
        ("fail-now", 1, "ERROR  ZeroDivisionError: at once (toy_roles.py:"),
        ("misconfigured", 2, "ERROR  the toy is misconfigured\n  -> configure it"),
    ):
        option = f"rollout.engine_options.body={mode}"
        role = start(tmp_path, "rollout", recipe, option, url=broker_url)
        output, _ = role.communicate(timeout=120)
        assert role.returncode == code
        assert words in output
        assert ("Traceback" in output) == (code == 1)
