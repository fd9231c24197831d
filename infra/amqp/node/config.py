"""Files and environment of a private node: pure text, nothing is started here."""

import os
from pathlib import Path

from infra.amqp.node.install import Install
from infra.amqp.node.ports import Ports
from infra.amqp.topology import CONSUMER_TIMEOUT_S

NODE_NAME = "warren@localhost"
"""The same for every node: each has a port mapper of its own, and the data folder bears it."""

PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_prometheus",
    "rabbitmq_stream",
)

MAX_SCHEDULERS = 4


def erlang_arguments(num_cores: int) -> str:
    """Options of the Erlang machine on a host with so many cores, which it shares with the roles.

    One scheduler for each two cores: it moves tens of thousands of messages a second, and two
    that hand processes to each other spend half as much CPU again for the same messages. As many
    threads for files: they write one log, and the more there are, the more often they wake.
    """
    schedulers = max(1, min(MAX_SCHEDULERS, num_cores // 2))
    return " ".join(
        (
            "-start_epmd false",
            "-kernel inet_dist_use_interface {127,0,0,1}",
            f"+S {schedulers}:{schedulers} +SDcpu {schedulers}:{schedulers} +SDio {schedulers}",
            "+A 4",
            "+sbwt none +sbwtdcpu none +sbwtdio none",  # idle schedulers sleep instead of spinning
        )
    )


def server_config(ports: Ports, *, user: str, password: str) -> str:
    """Text of `rabbitmq.conf`. Contains the password: write it with mode 0600."""
    return f"""\
listeners.tcp.1 = 127.0.0.1:{ports.amqp}
stream.listeners.tcp.1 = 127.0.0.1:{ports.stream}
management.tcp.ip = 127.0.0.1
management.tcp.port = {ports.management}
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = {ports.prometheus}
default_user = {user}
default_pass = {password}
loopback_users = none
heartbeat = 20
consumer_timeout = {CONSUMER_TIMEOUT_S * 1000}
collect_statistics_interval = 5000
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 256MB
raft.wal_max_size_bytes = 67108864
log.console = false
log.file.level = warning
log.file.rotation.size = 10485760
log.file.rotation.count = 2
"""


def plugins_config() -> str:
    """Text of the `enabled_plugins` file."""
    return f"[{','.join(PLUGINS)}].\n"


def server_environment(folder: Path, install: Install, ports: Ports) -> dict[str, str]:
    """The whole environment of the node; nothing is inherited."""
    rabbitmq, erlang = install.server.parent, install.erlang_root / "bin"
    environment = {
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "PATH": f"{rabbitmq}:{erlang}:/usr/bin:/bin",
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_CRASH_DUMP_SECONDS": "0",
        "RABBITMQ_NODENAME": NODE_NAME,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(ports.amqp),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "schema"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang_arguments(len(os.sched_getaffinity(0))),
        "RABBITMQ_CTL_ERL_ARGS": "-start_epmd false",
        "RABBITMQ_ALLOW_INPUT": "1",  # so that the script execs Erlang: our child is the node
        "RABBITMQ_SERVER_START_ARGS": "-noinput",
    }
    libraries = install.library_path()
    if libraries:
        environment["LD_LIBRARY_PATH"] = libraries
    return environment
