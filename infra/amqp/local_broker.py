"""A private RabbitMQ node as a child process: own ports, own data, gone when we are gone."""

import fcntl
import json
import logging
import os
import secrets
import subprocess
import time
from pathlib import Path
from typing import TextIO

from infra.amqp.admin import Management
from infra.amqp.errors import LocalBrokerFailed, ManagementUnreachable
from infra.amqp.node.child import Child
from infra.amqp.node.config import plugins_config, server_config, server_environment
from infra.amqp.node.container import Container
from infra.amqp.node.install import (
    PREFIX_VARIABLE,
    Install,
    find_install,
    not_installed,
)
from infra.amqp.node.ports import Ports, around, find_ports, is_free
from infra.amqp.url import make_url, management_url

logger = logging.getLogger(__name__)

_START_ATTEMPTS = 4
_STOP_TIMEOUT_S = 20.0
_SETTLE_S = 3.0
_ELECT = "[ra:trigger_election({Q, node()}) || {Q, follower} <- ets:tab2list(ra_state)]."
_PORT_TAKEN = ("eaddrinuse", "already in use", "already bound")


class LocalBroker:
    """A RabbitMQ node of our own. Blocking: call it from a thread when a loop is running.

    The node and its port mapper are our children and end with us, whatever ends us. Its data
    stays in the folder: the next start finds it again, on the same ports while they are free.

    Args:
        folder: Data, logs and credentials (mode 0700).
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        self.ports: Ports | None = None
        self._install: Install | None = None
        self._node: Child | Container | None = None
        self._epmd: Child | None = None
        self._lock: TextIO | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """AMQP URL with the password; empty before the first start."""
        return self._url

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the node and its port mapper, as far as they run."""
        return tuple(c.pid for c in (self._node, self._epmd) if c is not None and c.running)

    @property
    def running(self) -> bool:
        """Whether the node's process lives."""
        return self._node is not None and self._node.running

    def start(self, timeout_s: float = 60.0) -> str:
        """Start the node and wait until it serves AMQP and HTTP.

        Returns:
            The AMQP URL, with the password.

        Raises:
            BrokerNotInstalled: There is no RabbitMQ, and none could be fetched.
            LocalBrokerFailed: It did not come up in time, another process uses the folder, or
                another version of RabbitMQ wrote the data in it.
        """
        if self.running:
            return self._url
        self._take_folder()
        self.kill()  # a port mapper may be left of a node that has ended
        started = False
        try:
            self._install = self._install or find_install()
            if self._install is None and not Container.available():
                raise not_installed()
            self._check_version()
            deadline = time.monotonic() + timeout_s
            for _ in range(_START_ATTEMPTS):
                ports = self.ports or self._former_ports() or find_ports()
                self._launch(ports)
                if self._wait_ready(deadline):
                    self._settle_streams()
                    self._settle_queues()
                    _write(self.folder / "ports.json", json.dumps({"amqp": ports.amqp}))
                    started = True
                    return self._url
                logger.info("a port of the private broker was taken; trying others")
                self.kill()
                self.ports = None
                (self.folder / "ports.json").unlink(missing_ok=True)
            raise LocalBrokerFailed(f"no free ports in {_START_ATTEMPTS} attempts")
        finally:
            if not started:
                self.kill()
                self._release_folder()

    def stop(self) -> None:
        """Stop the node cleanly, then its port mapper."""
        if self._node is not None:
            self._node.stop(_STOP_TIMEOUT_S)
        if self._epmd is not None:
            self._epmd.stop(2.0)
        self._node = self._epmd = None
        self._release_folder()

    def kill(self) -> None:
        """SIGKILL, as a power cut would; `restart()` brings the node back on its data."""
        for child in (self._node, self._epmd):
            if child is not None:
                child.kill()
        self._node = self._epmd = None

    def restart(self, timeout_s: float = 60.0) -> str:
        """Stop if running, then start again on the same data and ports."""
        if self.running:
            self.stop()
        return self.start(timeout_s)

    def control(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run `rabbitmqctl` on the node; what it said.

        Raises:
            LocalBrokerFailed: There is no native node, or the tool failed.
        """
        if self._install is None or self.ports is None:
            raise LocalBrokerFailed("rabbitmqctl needs a node of an installed RabbitMQ")
        tool = self._install.server.with_name("rabbitmqctl")
        try:
            done = subprocess.run(
                [str(tool), *arguments],
                env=server_environment(self.folder, self._install, self.ports),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise LocalBrokerFailed(f"rabbitmqctl {arguments[0]}: {said.strip()[-400:]}") from error
        return done.stdout

    def _check_version(self) -> None:
        """RabbitMQ reads the data of few older versions, and stops somewhere on its way otherwise.

        Raises:
            LocalBrokerFailed: Another one than ours wrote it.
        """
        if self._install is None:
            return  # a container says for itself
        ours = self._install.version()
        path = self.folder / "version"
        theirs = path.read_text(encoding="utf-8") if path.exists() else ours
        if ours.split(".")[:2] != theirs.split(".")[:2]:
            raise LocalBrokerFailed(
                f"RabbitMQ {theirs} wrote the data in {self.folder}, this is {ours}",
                hint=f"let {PREFIX_VARIABLE} name a RabbitMQ {theirs}, or remove the folder: what "
                "was in its queues is issued again",
            )
        _write(path, ours)

    def _former_ports(self) -> Ports | None:
        """Those of the node that ran here before, while they are free: its clients look there."""
        try:
            ports = around(json.loads((self.folder / "ports.json").read_text())["amqp"])
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return ports if all(is_free(port) for port in ports.all()) else None

    def _take_folder(self) -> None:
        if self._lock is not None:
            return
        for name in (".", "home", "mnesia", "log", "schema"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = (self.folder / "lock").open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise LocalBrokerFailed(
                f"another process runs a broker in {self.folder}",
                hint="choose another run name, or stop the other run first",
            ) from error
        self._lock = handle

    def _release_folder(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _launch(self, ports: Ports) -> None:
        user, password = self._credentials()
        self.ports = ports
        self._url = make_url(user=user, password=password, host="127.0.0.1", port=ports.amqp)
        if self._install is None:
            self._node = Container(self.folder, ports, user=user, password=password)
            return
        _write(self.folder / "rabbitmq.conf", server_config(ports, user=user, password=password))
        _write(self.folder / "enabled_plugins", plugins_config())
        environment = server_environment(self.folder, self._install, ports)
        log = self.folder / "log" / "console.log"
        log.unlink(missing_ok=True)
        mapper = [str(self._install.epmd), "-port", str(ports.epmd), "-address", "127.0.0.1"]
        self._epmd = Child(mapper, env=environment, log=log)
        self._node = Child([str(self._install.server)], env=environment, log=log)

    def _wait_ready(self, deadline: float) -> bool:
        """True when the node serves; False when one of its ports was taken."""
        management = Management(management_url(self._url), timeout_s=2.0)
        while time.monotonic() < deadline:
            assert self._node is not None and self.ports is not None
            if not self._node.running or (self._epmd is not None and not self._epmd.running):
                console = self._console()
                self.kill()
                if not all(is_free(port) for port in self.ports.all()):
                    return False
                if any(sign in console.lower() for sign in _PORT_TAKEN):
                    return False
                raise LocalBrokerFailed(
                    f"the private broker ended while starting: {console[-800:].strip()}",
                    hint=f"its logs are in {self.folder / 'log'}",
                )
            try:
                if management.listens(self.ports.amqp):
                    return True
            except ManagementUnreachable:
                pass
            time.sleep(0.1)
        raise LocalBrokerFailed(
            "the private broker did not come up in time",
            hint=f"its logs are in {self.folder / 'log'}; is the machine overloaded?",
        )

    def _settle_streams(self) -> None:
        """At the first start, make the node's memory of having streams durable.

        RabbitMQ 3.10 writes it down a second after its first stream; killed before, it never
        serves that stream again.
        """
        done = self.folder / "streams-settled"
        if done.exists():
            return
        Management(management_url(self._url)).declare_stream("warren.first-stream")
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            registers = self.folder.glob("mnesia/*/coordination/*/names.dets")
            if any(b"rabbit_stream_coordinator" in path.read_bytes() for path in registers):
                break
            time.sleep(0.05)
        done.touch()

    def _settle_queues(self) -> None:
        """Give every quorum queue of a node that was here before its leader.

        RabbitMQ 3.10, killed within moments of a queue's declaration, may bring it back as a
        follower that nobody leads: what is published to it is never confirmed, a consumer never
        begins. On a single node an election settles that, and harms no other queue.
        """
        if self._install is None or not (self.folder / "ports.json").exists():
            return
        try:
            self.control("eval", _ELECT)
        except LocalBrokerFailed as error:
            logger.warning("could not make sure that every queue has a leader: %s", error)

    def _console(self) -> str:
        texts = [
            path.read_text(encoding="utf-8", errors="replace")[-20_000:]
            for path in sorted((self.folder / "log").glob("*.log"))
        ]
        return "\n".join(texts)

    def _credentials(self) -> tuple[str, str]:
        """User and password of this folder's node, drawn at its first start."""
        path = self.folder / "credentials.json"
        if not path.exists():
            _write(path, json.dumps({"user": "warren", "password": secrets.token_urlsafe(24)}))
            _write(self.folder / "home" / ".erlang.cookie", secrets.token_hex(24), mode=0o400)
        stored = json.loads(path.read_text(encoding="utf-8"))
        return str(stored["user"]), str(stored["password"])


def _write(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file that nobody else may read, not even for a moment."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
