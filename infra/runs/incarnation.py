"""Trainer incarnations: numbers that are created exclusively in the run folder and only rise."""

import fcntl
import os
from pathlib import Path

from infra.roles.errors import WarrenError
from infra.runs.durable import sync
from infra.runs.failpoints import FailPoint, reach


class Superseded(WarrenError):
    """A newer trainer has begun; this one must not commit anything any more."""


class Incarnations:
    """One empty file per number, claimed under a file lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest(self) -> int:
        """The newest number, 0 before the first."""
        if not self._folder.is_dir():
            return 0
        return max((int(p.name) for p in self._folder.iterdir() if p.name.isdigit()), default=0)

    def claim(self) -> int:
        """Create the next number and return it.

        Raises:
            WarrenError: The run folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                number = self.newest() + 1
                fd = os.open(self._path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                os.fsync(fd)
                os.close(fd)
            sync(self._folder)
        except OSError as error:
            raise WarrenError(
                f"cannot write the run folder {self._folder.parent}: {error.strerror or error}",
                hint="check its permissions and free space, or choose another run.dir",
            ) from error
        reach(FailPoint.INCARNATION_CLAIMED)
        return number

    def check(self, mine: int) -> None:
        """Pass if `mine` is the newest.

        Raises:
            Superseded: A newer one exists.
        """
        if self._path(mine + 1).exists():
            raise Superseded(
                f"trainer incarnation {mine} was superseded by {self.newest()}",
                hint="another trainer has taken over this run; this one wrote nothing more",
            )

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}"
