"""Writing the trainer's journal: append-only segments, one fsync for many records.

append(record) ... append(record) -> commit() -> what depends on them may now be seen outside
"""

import asyncio
import os
from pathlib import Path

from infra.roles.errors import WarrenError
from infra.runs.durable import sync
from infra.runs.failpoints import FailPoint, halves, reach
from infra.runs.frames import encode_frame
from infra.runs.journal_reader import Position, segment_name, segment_names, segment_numbers
from schemas.journal import JournalRecord, Opened

SEGMENT_BYTES = 64 * 1024 * 1024
"""A segment that has grown beyond this is followed by another."""

KEEP_BYTES = 1024 * 1024 * 1024
"""Of history that no checkpoint needs: kept for replay and inspection while it is small."""


class JournalUnwritable(WarrenError):
    """The journal's disk is full, read-only or gone. Nothing after it may be acknowledged."""


class Journal:
    """The segments of one incarnation.

    Args:
        folder: Of all segments.
        opened: The first record; its incarnation names the segments.

    Raises:
        JournalUnwritable: The folder cannot be written, or the incarnation has written before.
    """

    def __init__(self, folder: Path, opened: Opened) -> None:
        self._folder = folder
        self._incarnation = opened.incarnation
        self._sequence = 0
        self._fd = -1
        self._size = 0
        self._written = 0
        self._durable = 0
        self._flushing = asyncio.Lock()
        self._broken: OSError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        if opened.previous_segment:
            self._adopt(opened.previous_segment)
        self._next_segment()
        self.append(opened)

    @property
    def end(self) -> Position:
        """Where the next record will begin."""
        return Position(segment_name(self._incarnation, self._sequence), self._size)

    def append(self, record: JournalRecord, body: bytes = b"") -> Position:
        """Write a record. It is durable only after `commit`.

        Raises:
            JournalUnwritable: The disk refused, now or before; the journal takes nothing more.
        """
        if self._broken is not None:
            raise _unwritable(self._folder, self._broken)
        position = self.end
        frame = encode_frame(record.model_dump_json(exclude_defaults=False).encode(), body)
        try:
            for part in halves(FailPoint.JOURNAL_TORN, frame):
                view = memoryview(part)
                while view:
                    view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._broken = error
            raise _unwritable(self._folder, error) from error
        self._size += len(frame)
        self._written += 1
        reach(FailPoint.JOURNAL_WRITTEN)
        return position

    async def commit(self) -> None:
        """Return when everything appended so far is on disk. Callers share an fsync.

        Raises:
            JournalUnwritable: The disk refused.
        """
        wanted = self._written
        async with self._flushing:
            if self._durable >= wanted:
                return
            if self._broken is not None:  # an fsync that follows a failed one proves nothing
                raise _unwritable(self._folder, self._broken)
            target = self._written
            await asyncio.to_thread(self._sync, self._fd)
            self._durable = target
            if self._size >= SEGMENT_BYTES and self._written == target:
                self._next_segment()

    async def rotate(self) -> None:
        """Begin a new segment, so that older ones can be removed some day."""
        await self.commit()
        async with self._flushing:
            if self._broken is not None:
                raise _unwritable(self._folder, self._broken)
            if self._written != self._durable:
                self._sync(self._fd)
                self._durable = self._written
            self._next_segment()

    def remove_before(self, segment: str, *, keep_bytes: int = KEEP_BYTES) -> int:
        """Remove segments older than `segment`, oldest first, until `keep_bytes` are left.

        Returns:
            How many segments were removed.
        """
        sizes = {n: (self._folder / n).stat().st_size for n in segment_names(self._folder)}
        total, removed = sum(sizes.values()), 0
        for name, size in sizes.items():
            if total <= keep_bytes or segment_numbers(name) >= segment_numbers(segment):
                break
            (self._folder / name).unlink(missing_ok=True)
            reach(FailPoint.JOURNAL_TRIMMED)
            total, removed = total - size, removed + 1
        return removed

    def close(self) -> None:
        """Make everything durable and close the file.

        Raises:
            JournalUnwritable: The disk refused; the file is closed.
        """
        if self._fd < 0:
            return
        try:
            if self._broken is None:
                self._sync(self._fd)
        finally:
            self._close_segment()

    def _adopt(self, segment: str) -> None:
        """Make durable what a killed predecessor may have left to the kernel: we build on it."""
        try:
            sync(self._folder / segment)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def _next_segment(self) -> None:
        self._close_segment()
        self._sequence += 1
        path = self._folder / segment_name(self._incarnation, self._sequence)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            sync(self._folder)
        except OSError as error:
            self._broken = error
            raise _unwritable(self._folder, error) from error
        self._size = 0
        reach(FailPoint.JOURNAL_SEGMENT)

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _sync(self, fd: int) -> None:
        reach(FailPoint.JOURNAL_SYNC)
        try:
            os.fsync(fd)
        except OSError as error:
            self._broken = error
            raise _unwritable(self._folder, error) from error
        reach(FailPoint.JOURNAL_SYNCED)


def _unwritable(folder: Path, error: OSError) -> JournalUnwritable:
    return JournalUnwritable(
        f"cannot write the journal in {folder}: {error.strerror or error}",
        hint="free some space or fix its permissions, then start the trainer with --resume; "
        "nothing that is missing in the journal was acknowledged",
    )
