"""The last resort for a private node: a container that ends with us."""

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from infra.amqp.node.ports import Ports

IMAGE = "rabbitmq:4-management"

_SCRIPT = """\
rabbitmq-plugins enable --offline rabbitmq_stream rabbitmq_prometheus rabbitmq_management
docker-entrypoint.sh rabbitmq-server & node=$!
cat >/dev/null
kill -TERM $node; wait $node
"""
# The container's stdin is a pipe that only we hold: our end, however it comes, ends `cat`.


class Container:
    """A node in a container, with the face of `Child`."""

    def __init__(self, folder: Path, ports: Ports, *, user: str, password: str) -> None:
        self.name = f"warren-{secrets.token_hex(6)}"
        environment = {
            **os.environ,
            "RABBITMQ_DEFAULT_USER": user,
            "RABBITMQ_DEFAULT_PASS": password,
        }
        with (folder / "log" / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                container_command(self.name, folder, ports),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    def available() -> bool:
        """Whether a container engine answers."""
        if not shutil.which("docker"):
            return False
        try:
            subprocess.run(["docker", "info"], check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    @property
    def pid(self) -> int:
        """Of the client that holds the container's stdin."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it still runs after `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float) -> None:
        """End its stdin: the node stops cleanly."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """Kill the container, then wait until it is gone."""
        subprocess.run(["docker", "kill", self.name], check=False, capture_output=True, timeout=30)
        self._process.kill()
        self._process.wait()


def container_command(name: str, folder: Path, ports: Ports) -> list[str]:
    """The command line. The password travels in the environment, not here."""
    published = [
        argument
        for ours, theirs in (
            (ports.amqp, 5672),
            (ports.stream, 5552),
            (ports.management, 15672),
            (ports.prometheus, 15692),
        )
        for argument in ("--publish", f"127.0.0.1:{ours}:{theirs}")
    ]
    return [
        "docker",
        "run",
        "--rm",
        "--interactive",
        "--name",
        name,
        "--hostname",
        "warren",
        "--env",
        "RABBITMQ_DEFAULT_USER",
        "--env",
        "RABBITMQ_DEFAULT_PASS",
        "--volume",
        f"{folder / 'mnesia'}:/var/lib/rabbitmq",
        *published,
        "--entrypoint",
        "sh",
        IMAGE,
        "-c",
        _SCRIPT,
    ]
