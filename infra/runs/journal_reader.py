"""Reading the trainer's journal: one linear history out of the segments of all incarnations.

    000001-000001  000001-000002            the first trainer, killed
                        | previous_segment, previous_bytes
                        +-> 000003-000001   the third (the second died before it wrote anything)

Each incarnation's first record names the history it continues. The newest is followed backwards,
so that records which a thawed trainer wrote after its successor began are never read.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from infra.roles.errors import WarrenError
from infra.runs.frames import (
    MAGIC,
    PREFIX_BYTES,
    DamagedFrame,
    Frame,
    frame_bytes,
    read_frame,
    read_frames,
)
from schemas.journal import Arrived, JournalRecord, Opened

_NAME = re.compile(r"(\d{6})-(\d{6})\.journal")
_RECORD: TypeAdapter[JournalRecord] = TypeAdapter(JournalRecord)
_ROLLOUT_ID = re.compile(rb'"rollout_id":"([a-z]{0,8}[0-9]{1,12}\.[0-9]{1,9})"')


class JournalCorrupt(WarrenError):
    """A record in the middle of the journal cannot be read."""


class SegmentTrimmed(JournalCorrupt):
    """A living trainer has removed a segment since the folder was listed.

    Attributes:
        filename: Of the segment.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was trimmed meanwhile: a living trainer removes what no checkpoint needs",
            hint="run it again; checkpoint.keep and checkpoint.journal_bytes say how much stays",
        )
        self.filename = str(path)


class Position(NamedTuple):
    """Where a record begins, or the next one will."""

    segment: str
    offset: int


class RecordCorrupt(JournalCorrupt):
    """One record is not the one that was written.

    Attributes:
        reason: What is wrong with it.
        position: Where it begins.
        rollout_id: Whose it is as far as its bytes still tell, empty when they do not.
    """

    def __init__(self, path: Path, offset: int, reason: str, *, rollout_id: str = "") -> None:
        whose = f", in what came of rollout {rollout_id}" if rollout_id else ""
        super().__init__(
            f"{path} is damaged at byte {offset}{whose}: {reason}",
            hint="restore the file from a copy; records behind the damage would be lost silently",
        )
        self.reason = reason
        self.position = Position(path.name, offset)
        self.rollout_id = rollout_id


@dataclass(frozen=True, slots=True)
class Entry:
    """One record with the message's bytes behind it."""

    record: JournalRecord
    body: bytes
    position: Position
    end: Position


def segment_name(incarnation: int, sequence: int) -> str:
    """File name; sorting by name is sorting by time."""
    return f"{incarnation:06d}-{sequence:06d}.journal"


def segment_numbers(name: str) -> tuple[int, int]:
    """`(incarnation, sequence)` of a segment's file name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise JournalCorrupt(f"{name!r} is no journal segment")
    return int(match[1]), int(match[2])


def segment_names(folder: Path) -> list[str]:
    """Every segment in a journal folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment, and how much of it belongs to the history (None: to its last whole record)."""

    segment: str
    limit: int | None


class JournalReader:
    """The history in a journal folder. Opening one changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def history(self) -> list[Stretch]:
        """Segments that count, oldest first.

        Raises:
            JournalCorrupt: A segment is missing in the middle, or was trimmed meanwhile.
        """
        names = segment_names(self._folder)
        chain: list[Stretch] = []
        before: tuple[int, int] | None = None
        limit: int | None = None
        while names:
            own = [name for name in names if before is None or segment_numbers(name) <= before]
            if not own:
                break
            incarnation = segment_numbers(own[-1])[0]
            own = [name for name in own if segment_numbers(name)[0] == incarnation]
            names = [name for name in names if segment_numbers(name)[0] < incarnation]
            opened = self._opened(own[0])
            if opened is None and before is None and segment_numbers(own[0])[1] == 1:
                continue  # it died before its first record was whole
            _check_sequence(own)
            limits = [*[None] * (len(own) - 1), limit]
            chain[:0] = [Stretch(name, cut) for name, cut in zip(own, limits, strict=True)]
            if opened is None or not opened.previous_segment:
                break
            before = segment_numbers(opened.previous_segment)
            limit = opened.previous_bytes
            if not (self._folder / opened.previous_segment).exists():
                break
        return chain

    def begins_at_start(self) -> bool:
        """Whether the history reaches back to the run's first record."""
        chain = self.history()
        if not chain:
            return True
        opened = self._opened(chain[0].segment)
        return opened is not None and not opened.previous_segment

    def records(self, start: Position | None = None) -> Iterator[Entry]:
        """Records from `start` (default: the first kept) to the end of the history.

        A torn tail, where a crash interrupted a write, ends its segment silently.

        Raises:
            JournalCorrupt: A record is damaged and others follow it, `start` is not there, or a
                segment was trimmed meanwhile.
        """
        chain = self.history()
        if start is not None:
            segments = [stretch.segment for stretch in chain]
            if start.segment not in segments:
                raise JournalCorrupt(
                    f"journal segment {start.segment} is missing in {self._folder}",
                    hint="restore the file, or resume from an older checkpoint",
                )
            chain = chain[segments.index(start.segment) :]
        for number, stretch in enumerate(chain):
            following = chain[number + 1] if number + 1 < len(chain) else None
            whole = following is not None and _same_incarnation(stretch, following)
            offset = start.offset if start is not None and number == 0 else 0
            yield from self._segment(stretch, offset, must_be_whole=whole)

    def entry(self, position: Position) -> Entry:
        """The record at a position.

        Raises:
            JournalCorrupt: It is damaged, or its segment was trimmed meanwhile.
        """
        path = self._folder / position.segment
        with _unless_trimmed(path), path.open("rb") as file:
            file.seek(position.offset)
            data = file.read(PREFIX_BYTES)
            if len(data) == PREFIX_BYTES:
                data += file.read(frame_bytes(data) - PREFIX_BYTES)
        frame = read_frame(data, 0)
        if isinstance(frame, str):
            raise _corrupt(path, position.offset, frame, data)
        return self._entry(position.segment, frame, base=position.offset)

    def corrupt(self, entry: Entry, reason: str) -> RecordCorrupt:
        """The error that says what is wrong with a record that was read."""
        rollout_id = entry.record.rollout_id if isinstance(entry.record, Arrived) else ""
        segment, offset = entry.position
        return RecordCorrupt(self._folder / segment, offset, reason, rollout_id=rollout_id)

    def end(self) -> Position | None:
        """Behind the last whole record; None when there is no history."""
        chain = self.history()
        if not chain:
            return None
        last = chain[-1]
        end = 0
        for entry in self._segment(last, 0, must_be_whole=False):
            end = entry.end.offset
        return Position(last.segment, end)

    def _opened(self, name: str) -> Opened | None:
        """The first record, if it is an `Opened`; None too when a crash tore it."""
        path = self._folder / name
        with _unless_trimmed(path):
            data = path.read_bytes()
        try:
            frame = next(read_frames(data), None)
        except DamagedFrame as damage:
            if damage.torn:
                return None
            raise RecordCorrupt(path, damage.offset, str(damage)) from None
        record = None if frame is None else self._entry(name, frame).record
        return record if isinstance(record, Opened) else None

    def _segment(self, stretch: Stretch, offset: int, *, must_be_whole: bool) -> Iterator[Entry]:
        path = self._folder / stretch.segment
        with _unless_trimmed(path):
            data = path.read_bytes()
        if stretch.limit is not None:
            if len(data) < stretch.limit:
                raise RecordCorrupt(path, len(data), f"{stretch.limit} bytes were there before")
            data = data[: stretch.limit]
        try:
            for frame in read_frames(data, offset):
                yield self._entry(stretch.segment, frame)
        except DamagedFrame as damage:
            if damage.torn and not must_be_whole and stretch.limit is None:
                return
            raise _corrupt(path, damage.offset, str(damage), data[damage.offset :]) from None

    def _entry(self, name: str, frame: Frame, *, base: int = 0) -> Entry:
        try:
            record = _RECORD.validate_json(frame.header)
        except ValidationError as error:
            raise RecordCorrupt(self._folder / name, base + frame.offset, str(error)) from None
        position = Position(name, base + frame.offset)
        return Entry(record, frame.body, position, Position(name, base + frame.end))


@contextmanager
def _unless_trimmed(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SegmentTrimmed(path) from None


def _same_incarnation(one: Stretch, other: Stretch) -> bool:
    return segment_numbers(one.segment)[0] == segment_numbers(other.segment)[0]


def _check_sequence(names: list[str]) -> None:
    for earlier, later in pairwise(names):
        if segment_numbers(later)[1] != segment_numbers(earlier)[1] + 1:
            raise JournalCorrupt(
                f"a journal segment between {earlier} and {later} is missing",
                hint="restore the file: what arrived in between is known nowhere else",
            )


def _corrupt(path: Path, offset: int, reason: str, data: bytes) -> RecordCorrupt:
    """Of a frame that begins with `data`: whose it is, its header may still tell."""
    following = data.find(MAGIC, len(MAGIC))
    found = _ROLLOUT_ID.search(data[: following if following > 0 else None])
    return RecordCorrupt(path, offset, reason, rollout_id=found[1].decode() if found else "")
