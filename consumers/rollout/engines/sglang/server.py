"""A server of our own: started, waited for, ended."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang import keeper
from consumers.rollout.engines.sglang.client import Client, Unreachable
from consumers.rollout.engines.sglang.options import Options

_GLANCE_S = 0.25
_GONE_S = 8.0
_ROOM = 8
"""SGLang keeps that many positions of its context for itself."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_DISABLE_UPDATE_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # We never go beyond the model's positions; SGLang would refuse the room that it wants itself.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}


class Server:
    """A process that serves, and the one that keeps it.

    Args:
        process: The keeper.
        url: Where it is going to answer.
        log: What it says.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", *, url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self.log = log

    @classmethod
    def start(
        cls,
        options: Options,
        *,
        folder: Path,
        dtype: str,
        slots: int,
        max_model_len: int,
        version: int,
        log: Path,
    ) -> "Server":
        """Start one; returns before it is ready.

        Raises:
            EngineFailed: No process is to be had.
        """
        port = _free_port()
        command = [
            *(options.command or (options.python, "-m", "sglang.launch_server")),
            *("--model-path", str(folder), "--dtype", dtype, "--weight-version", str(version)),
            *("--context-length", str(max_model_len + _ROOM)),
            *("--max-running-requests", str(slots)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--skip-tokenizer-init", "--skip-server-warmup", "--incremental-streaming-output"),
            *options.arguments,
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-I", keeper.__file__, *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**_ENVIRONMENT, **os.environ, **options.environment},
                )
        except OSError as error:
            raise EngineFailed(f"cannot start {command[0]}: {error.strerror or error}") from error
        return cls(process, url=f"http://127.0.0.1:{port}", log=log)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def ready(self, client: Client, timeout_s: float) -> None:
        """Wait until it can generate.

        Raises:
            EngineFailed: It ended, or takes too long; with its last words.
        """
        deadline = time.monotonic() + timeout_s
        while self.running:
            with contextlib.suppress(Unreachable):
                if await client.status("/ready") == 200:
                    return
            if time.monotonic() > deadline:
                raise self.failed(f"SGLang was not ready within {timeout_s:g} s")
            await asyncio.sleep(_GLANCE_S)
        raise self.failed(f"SGLang ended while starting, exit code {self._process.returncode}")

    def failed(self, what: str) -> EngineFailed:
        """An error with the end of the log."""
        said = "".join(f"\n    {line}" for line in _last_lines(self.log))
        return EngineFailed(f"{what}{said}", hint=f"all that it said is in {self.log}")

    async def close(self) -> None:
        """End every process of it, and wait until they are gone.

        Raises:
            EngineFailed: The system does not let go of it.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.to_thread(self._process.wait, _GONE_S)
        except subprocess.TimeoutExpired as error:
            raise EngineFailed(f"SGLang's keeper {self._process.pid} does not end") from error


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _last_lines(log: Path, *, count: int = 8, width: int = 200) -> Sequence[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return [line[:width] for line in text.splitlines() if line.strip()][-count:]
