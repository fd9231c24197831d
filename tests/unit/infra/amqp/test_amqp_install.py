"""Where RabbitMQ is looked for, and what a private node is told."""

import socket
from pathlib import Path

import pytest

from infra.amqp.errors import BrokerNotInstalled
from infra.amqp.node.config import erlang_arguments, server_config, server_environment
from infra.amqp.node.container import container_command
from infra.amqp.node.install import (
    PREFIX_VARIABLE,
    Install,
    cache_folder,
    find_install,
    not_installed,
    unpacked_package,
)
from infra.amqp.node.ports import around, find_ports, is_free


def fake_install(prefix: Path) -> Install:
    for name in ("usr/lib/rabbitmq/bin/rabbitmq-server", "usr/lib/erlang/erts-13/bin/epmd"):
        path = prefix / name
        path.parent.mkdir(parents=True)
        path.touch()
    return Install(prefix=prefix)


def test_a_named_prefix_wins_and_must_be_complete(tmp_path: Path) -> None:
    with pytest.raises(BrokerNotInstalled, match="holds no RabbitMQ") as caught:
        find_install({PREFIX_VARIABLE: str(tmp_path)})
    assert caught.value.exit_code == 3
    fake_install(tmp_path)
    found = find_install({PREFIX_VARIABLE: str(tmp_path)})
    assert found is not None
    assert found.prefix == tmp_path
    assert found.epmd == tmp_path / "usr/lib/erlang/erts-13/bin/epmd"


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "warren"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder({}) == tmp_path / ".cache/warren"


def test_an_unpacked_package_is_used_without_fetching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.amqp.node.install._release", lambda: "debian-x-y")
    fake_install(tmp_path / "rabbitmq-debian-x-y")

    def refuse(*_: object) -> None:
        raise AssertionError("nothing should be fetched")

    monkeypatch.setattr("infra.amqp.node.apt.download", refuse)
    found = unpacked_package(tmp_path)
    assert found is not None
    assert found.complete


def test_without_any_rabbitmq_the_user_is_told_what_to_do() -> None:
    error = not_installed()
    assert error.exit_code == 3
    for way in ("rabbitmq-server", "WARREN_BROKER_URL", PREFIX_VARIABLE):
        assert way in str(error)


def test_the_node_listens_on_the_loopback_and_inherits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_NODENAME", "someone@else")
    monkeypatch.setenv("SECRET", "hunter2")
    ports = around(12_000)
    config = server_config(ports, user="u", password="p")
    addresses = [
        line.partition("=")[2].strip()
        for line in config.splitlines()
        if line.startswith(("listeners", "stream.listeners")) or ".ip " in line
    ]
    assert len(addresses) == 4
    assert all(address.startswith("127.0.0.1") for address in addresses)
    assert "consumer_timeout = 86400000" in config
    environment = server_environment(tmp_path, fake_install(tmp_path), ports)
    assert environment["RABBITMQ_NODENAME"] == "warren@localhost"
    assert "SECRET" not in environment
    assert "p" not in environment.values()


def test_the_container_gets_its_password_by_environment(tmp_path: Path) -> None:
    command = container_command("name", tmp_path, around(12_000))
    assert "127.0.0.1:12000:5672" in command
    assert "127.0.0.1:22000:15672" in command
    assert command[command.index("--env") + 1] == "RABBITMQ_DEFAULT_USER"
    assert all(not argument.startswith("0.0.0.0") for argument in command)


def test_found_ports_are_free_and_distinct() -> None:
    ports = find_ports()
    assert len(set(ports.all())) == 6
    assert ports.management == ports.amqp + 10_000
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])


@pytest.mark.parametrize(("cores", "schedulers"), [(1, 1), (2, 1), (4, 2), (64, 4)])
def test_a_private_node_takes_half_the_cores_at_most(cores: int, schedulers: int) -> None:
    assert f"+S {schedulers}:{schedulers} " in erlang_arguments(cores)
