"""The private node: starts anywhere, harms nobody, leaves nothing."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from infra.amqp.admin import Management
from infra.amqp.errors import LocalBrokerFailed
from infra.amqp.local_broker import LocalBroker
from infra.amqp.node import ports
from infra.amqp.url import management_url
from tests.broker_fixtures import Connect
from tests.integration.amqp.messages import outgoing

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


def processes_using(folder: Path) -> list[str]:
    """Command lines of running processes whose environment names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder).encode() in environment and state != "Z":
            found.append(command)
    return found


def test_nothing_outlives_a_parent_killed_with_9(tmp_path: Path) -> None:
    """Started from a short-lived thread, as roles do: only the process's end may end the node."""
    folder = tmp_path / "node"
    script = f"""
        import sys, threading, time
        from infra.amqp.local_broker import LocalBroker
        node = LocalBroker({str(folder)!r})
        starter = threading.Thread(target=node.start, args=(120.0,))
        starter.start(); starter.join()
        time.sleep(1.0)
        print(*node.pids, node.running, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    node_pid, mapper_pid, running = parent.stdout.readline().split()
    assert running == "True"
    assert len({node_pid, mapper_pid}) == 2
    assert any("beam" in line for line in processes_using(folder))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while processes_using(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_using(folder) == []


def test_a_clean_stop_leaves_data_and_no_process(tmp_path: Path) -> None:
    node = LocalBroker(tmp_path / "node")
    first = node.start(timeout_s=120.0)
    node.stop()
    assert processes_using(node.folder) == []
    second = LocalBroker(tmp_path / "node")
    password = json.loads((tmp_path / "node/credentials.json").read_text())["password"]
    assert password in first
    assert password in second.start(timeout_s=120.0)
    second.kill()


def test_credentials_are_private(broker_node: LocalBroker) -> None:
    for name in ("credentials.json", "rabbitmq.conf", "home/.erlang.cookie"):
        mode = stat.S_IMODE((broker_node.folder / name).stat().st_mode)
        assert mode & 0o077 == 0
    password = json.loads((broker_node.folder / "credentials.json").read_text())["password"]
    for pid in broker_node.pids:
        assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert password.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_it_listens_on_the_loopback_only(broker_node: LocalBroker) -> None:
    assert broker_node.ports is not None
    wanted = {f"{port:04X}" for port in broker_node.ports.all()}
    listening = [
        line.split()[1].split(":")
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    addresses = {(host, port) for host, port in listening if port in wanted}
    assert {port for _, port in addresses} == wanted
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert {host for host, _ in addresses} <= loopback


async def test_two_nodes_side_by_side(
    connect: Connect, broker_url: str, spare_node: LocalBroker, run_name: str
) -> None:
    one, other = await connect(), await connect(url=spare_node.url)
    await one.publish(outgoing("prompt", b"one"))
    await other.publish(outgoing("prompt", b"other"))
    bodies = [(await broker.get("prompts")).body for broker in (one, other)]  # type: ignore[union-attr]
    assert bodies == [b"one", b"other"]


def test_a_folder_serves_one_node(spare_node: LocalBroker) -> None:
    with pytest.raises(LocalBrokerFailed, match="another process"):
        LocalBroker(spare_node.folder).start()
    assert spare_node.running


def test_taken_ports_are_avoided(
    spare_node: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when they are taken between the look and the start."""
    assert spare_node.ports is not None
    drawn = [spare_node.ports, ports.find_ports()]
    monkeypatch.setattr("infra.amqp.local_broker.find_ports", lambda: drawn.pop(0))
    node = LocalBroker(tmp_path / "second")
    try:
        node.start(timeout_s=120.0)
        assert drawn == []
        assert node.ports != spare_node.ports
        assert spare_node.running
    finally:
        node.kill()


async def test_management_shows_the_queues(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect()
    await broker.publish(outgoing("prompt", b"12345"))
    management = Management(management_url(broker_url))
    names = {row.name for row in management.queues(run_name)}
    assert {"prompts", "cancel_queue", "rollouts", "dead_letters", "recording"} <= names
    assert management.alarms() == []
    assert management.version() == ".".join(map(str, broker.version))


def test_a_node_comes_back_on_its_ports_for_another_owner(killable_node: LocalBroker) -> None:
    url, folder = killable_node.url, killable_node.folder
    os.kill(killable_node.pids[0], signal.SIGKILL)
    while killable_node.running:
        time.sleep(0.01)
    killable_node.start(120.0)  # its port mapper was still there
    assert killable_node.url == url
    killable_node.stop()
    node = LocalBroker(folder)
    try:
        assert node.start(120.0) == url
    finally:
        node.kill()
