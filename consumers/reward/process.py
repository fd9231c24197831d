"""One scoring process, seen from the role: start it, send rollouts, hear answers, kill it."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from consumers.reward.frames import frame, receive_frame
from infra.roles.errors import ConfigError, WarrenError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""To import what a user's reward function imports."""
_GONE_S = 10.0
_LIMIT_BYTES = 1 << 26


class CannotStart(WarrenError):
    """The system gives us no process."""


class ProcessDied(Exception):
    """The process ended by itself; the text says how."""


class ScoringProcess:
    """A child with the reward functions loaded, in a session of its own."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer

    @classmethod
    async def start(cls, uses: Sequence[str]) -> "ScoringProcess":
        """Start a process and wait until its functions are loaded.

        Raises:
            ConfigError: A function is unknown, cannot be imported or has a wrong signature, or
                loading takes longer than `START_TIMEOUT_S`.
            CannotStart: No process, memory or file descriptor is to be had.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _cannot_start(error) from error
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_LIMIT_BYTES)
            try:  # nothing is awaited between the start and the `try` that ends it
                process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                    [sys.executable, "-m", "consumers.reward.child", str(theirs.fileno()), *uses],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=_environment(),
                )
            except OSError as error:
                writer.close()
                raise _cannot_start(error) from error
        child, loaded = cls(process, reader, writer), False
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                answer = await child.receive()
            if "config_error" in answer:
                raise ConfigError(answer["config_error"], hint=answer["hint"])
            loaded = True
        except ProcessDied as error:
            raise ConfigError(
                f"reward functions {', '.join(uses)}: their process {error} while loading",
                hint="its output is above this line",
            ) from None
        except TimeoutError:
            raise ConfigError(
                f"reward functions {', '.join(uses)} did not load in {START_TIMEOUT_S:.0f} s",
                hint="move slow work out of the module into the function",
            ) from None
        finally:
            if not loaded:
                await child.kill()
        return child

    def send(self, bodies: Sequence[bytes]) -> None:
        """Send the JSON of rollouts; buffered without bound, as callers send few at a time."""
        self._writer.write(b"".join(map(frame, bodies)))

    async def receive(self) -> Mapping[str, Any]:
        """The next answer.

        Raises:
            ProcessDied: None will come.
        """
        try:
            answer = orjson.loads(await receive_frame(self._reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessDied(await self._how_it_ended()) from None
        assert isinstance(answer, dict)
        return answer

    async def kill(self) -> None:
        """End it and whatever it started, and reap it.

        One that the kernel does not let go (a dead network disk, say) is left behind.
        """
        pid = self._process.pid
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._writer.close()
        try:
            await asyncio.to_thread(self._process.wait, _GONE_S)
        except subprocess.TimeoutExpired:
            logger.warning("scoring process %d does not end, even killed: left behind", pid)

    async def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 1.0)
        code = self._process.poll()
        if code is None:
            return "closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def _cannot_start(error: OSError) -> CannotStart:
    return CannotStart(
        f"cannot start a scoring process: {error.strerror or error}",
        hint="raise the limits on processes, open files or memory (ulimit -a)",
    )


def _environment() -> dict[str, str]:
    """Ours, with our import path, and one thread for each library that likes to take all."""
    here = [path or os.getcwd() for path in sys.path]  # noqa: PTH109 - as Python itself means it
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(here),
        "PYTHONUNBUFFERED": "1",
    }
