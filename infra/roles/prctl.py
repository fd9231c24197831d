"""What only Linux can do about parents and orphans; elsewhere nothing happens."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent ends, so that they can be found and ended."""
    if _libc is not None:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> Callable[[], None]:
    """For the child to call first, as `preexec_fn` or by itself: the kernel then ends it when the
    thread that forked it ends, however that came, even inside somebody's blocking code."""

    def arm() -> None:
        if _libc is None:
            return
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm
