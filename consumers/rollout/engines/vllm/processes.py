"""vLLM's processes: an engine process, and with tensor parallelism one worker for each slice."""

import contextlib
import logging
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

logger = logging.getLogger(__name__)

_CLOSE_S = 0.5
_GONE_S = 5.0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes started in here never see SIGINT, which Ctrl-C sends to the whole group: the
    rollout worker hands over first, then ends them."""
    resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watched(families: Iterable[tuple[int, int]]) -> list[int]:
    """Descriptors of processes, which name no other when these have ended.

    Args:
        families: Of each worker, its process and its parent: the engine process, or this one if
            they are the same.
    """
    pids = {pid for family in families for pid in family} - {os.getpid()}
    return [os.pidfd_open(pid) for pid in sorted(pids)]


def end_all(engine: Any, processes: list[int]) -> None:
    """End the engine process and its workers, and see that they have ended: vLLM kills the first
    and looks away. They hold nothing that is worth their time.

    Args:
        engine: vLLM's `AsyncLLM`.
        processes: Descriptors of its processes, closed here.
    """
    engine.shutdown(_CLOSE_S)
    deadline = time.monotonic() + _GONE_S
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(1000 * max(deadline - time.monotonic(), 0.1)):
            logger.warning("a process of vLLM does not end")
        os.close(process)
    multiprocessing.active_children()  # which reaps those that ended
