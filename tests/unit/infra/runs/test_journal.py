"""The journal: torn tails, flipped bytes, linear history over incarnations."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.runs.frames import DamagedFrame, encode_frame, read_frames
from infra.runs.journal import Journal, JournalUnwritable
from infra.runs.journal_reader import (
    JournalCorrupt,
    JournalReader,
    Position,
    SegmentTrimmed,
    segment_name,
)
from schemas.journal import Confirmed, Issued, Opened


def opened(incarnation: int, previous: Position | None = None) -> Opened:
    """The first record of an incarnation."""
    return Opened(
        run_id="r",
        incarnation=incarnation,
        step=0,
        previous_segment=previous.segment if previous else "",
        previous_bytes=previous.offset if previous else 0,
    )


def issued(number: int) -> Issued:
    """A record that can be told from others."""
    return Issued(groups=(number,))


def write(folder: Path, incarnation: int, numbers: range) -> Journal:
    """An incarnation that continues what is there, and issues credits."""
    journal = Journal(folder, opened(incarnation, JournalReader(folder).end()))
    for number in numbers:
        journal.append(issued(number), b"body %d" % number)
    journal.close()
    return journal


def numbers(folder: Path, start: Position | None = None) -> list[int]:
    """Credits of the history, in order."""
    entries = JournalReader(folder).records(start)
    return [e.record.groups[0] for e in entries if isinstance(e.record, Issued)]


@given(st.lists(st.tuples(st.binary(max_size=60), st.binary(max_size=200)), max_size=6))
def test_frames_come_back(records: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(encode_frame(header, body) for header, body in records)
    frames = list(read_frames(data))
    assert [(frame.header, frame.body) for frame in frames] == records
    assert [frame.end for frame in frames[:-1]] == [frame.offset for frame in frames[1:]]


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_every_torn_tail_ends_at_the_last_whole_frame(cut: int) -> None:
    whole = [encode_frame(b"header %d" % n, b"x" * 20 * n) for n in range(4)]
    data = b"".join(whole)
    data = data[: cut % len(data)]
    expected = 0
    while sum(map(len, whole[: expected + 1])) <= len(data):
        expected += 1
    found = 0
    try:
        for _ in read_frames(data):
            found += 1
    except DamagedFrame as damage:
        assert damage.torn
    assert found == expected


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(place: int, bit: int) -> None:
    """Every frame before the flip is read; the one that holds it never is."""
    whole = [encode_frame(b"header %d" % n, b"x" * 10 * n) for n in range(4)]
    data = bytearray(b"".join(whole))
    place %= len(data)
    data[place] ^= 1 << bit
    broken = next(n for n in range(4) if place < sum(map(len, whole[: n + 1])))
    found = []
    with pytest.raises(DamagedFrame) as caught:
        found.extend(frame.header for frame in read_frames(bytes(data)))
    assert found == [b"header %d" % n for n in range(broken)]
    assert caught.value.torn == (broken == 3)


def test_records_and_bodies_come_back(tmp_path: Path) -> None:
    write(tmp_path, 1, range(3))
    reader = JournalReader(tmp_path)
    entries = list(reader.records())
    assert [entry.body for entry in entries] == [b"", b"body 0", b"body 1", b"body 2"]
    for entry in entries:
        assert reader.entry(entry.position) == entry
    assert numbers(tmp_path, entries[1].end) == [1, 2]
    assert reader.end() == entries[-1].end


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_a_torn_tail_is_cut_and_history_goes_on(tmp_path: Path, lost: int) -> None:
    write(tmp_path, 1, range(3))
    segment = tmp_path / segment_name(1, 1)
    segment.write_bytes(segment.read_bytes()[:-lost])
    assert numbers(tmp_path) == [0, 1]
    write(tmp_path, 2, range(10, 12))
    assert numbers(tmp_path) == [0, 1, 10, 11]


def test_damage_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    write(tmp_path, 1, range(3))
    position = list(JournalReader(tmp_path).records())[2].position
    segment = tmp_path / position.segment
    data = bytearray(segment.read_bytes())
    data[position.offset + 40] ^= 4
    segment.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=rf"damaged at byte {position.offset}: the checksum"):
        numbers(tmp_path)
    with pytest.raises(JournalCorrupt):
        JournalReader(tmp_path).end()


def test_what_a_thawed_trainer_writes_is_ignored(tmp_path: Path) -> None:
    """The first goes on after the second began: nobody reads it."""
    thawed = Journal(tmp_path, opened(1))
    thawed.append(issued(0))
    write(tmp_path, 2, range(10, 12))
    thawed.append(issued(1))
    thawed.close()
    assert numbers(tmp_path) == [0, 10, 11]
    write(tmp_path, 3, range(20, 21))
    assert numbers(tmp_path) == [0, 10, 11, 20]


def test_an_incarnation_that_died_at_once_leaves_no_gap(tmp_path: Path) -> None:
    write(tmp_path, 1, range(2))
    (tmp_path / segment_name(2, 1)).write_bytes(b"")
    (tmp_path / segment_name(3, 1)).write_bytes(encode_frame(b"{}")[:9])
    assert numbers(tmp_path) == [0, 1]
    write(tmp_path, 4, range(5, 6))
    assert numbers(tmp_path) == [0, 1, 5]


async def test_rotation_and_removal(tmp_path: Path) -> None:
    journal = Journal(tmp_path, opened(1))
    for number in range(4):
        journal.append(issued(number))
        await journal.rotate()
    middle = journal.end
    journal.append(issued(4))
    await journal.commit()
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    assert journal.remove_before(middle.segment) == 0
    assert JournalReader(tmp_path).begins_at_start()
    assert journal.remove_before(middle.segment, keep_bytes=0) == 4
    assert numbers(tmp_path) == [4]
    assert numbers(tmp_path, middle) == [4]
    assert not JournalReader(tmp_path).begins_at_start()
    with pytest.raises(JournalCorrupt, match=r"000001-000002\.journal is missing"):
        numbers(tmp_path, Position(segment_name(1, 2), 0))
    journal.close()


async def test_a_segment_trimmed_while_it_is_read_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path, opened(1))
    await journal.rotate()
    journal.append(issued(0))
    await journal.commit()
    reader = JournalReader(tmp_path)
    entries = reader.records()
    first = next(entries)
    journal.remove_before(journal.end.segment, keep_bytes=0)
    (tmp_path / journal.end.segment).unlink()
    with pytest.raises(SegmentTrimmed, match=r"000001-000002\.journal was trimmed meanwhile"):
        next(entries)
    with pytest.raises(SegmentTrimmed, match=r"(?s)000001-000001\.journal was .*run it again"):
        reader.entry(first.position)
    journal.close()


async def test_a_missing_middle_segment_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path, opened(1))
    await journal.rotate()
    await journal.rotate()
    journal.close()
    (tmp_path / segment_name(1, 2)).unlink()
    with pytest.raises(JournalCorrupt, match="between 000001-000001"):
        numbers(tmp_path)


async def test_commits_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, opened(1))
    await journal.commit()
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), real(fd))[1])

    async def one(number: int) -> None:
        journal.append(issued(number))
        await journal.commit()

    await asyncio.gather(*(one(number) for number in range(50)))
    assert 1 <= len(synced) <= 2
    assert numbers(tmp_path) == list(range(50))
    journal.close()


async def test_a_full_disk_is_said_and_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a write that got half through leaves a journal that can be read."""
    journal = Journal(tmp_path, opened(1))
    journal.append(issued(0))
    real = os.write

    def half(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real(fd, bytes(data)[: len(data) // 2])

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(JournalUnwritable, match="No space left on device"):
        journal.append(issued(1))
    monkeypatch.setattr(os, "write", real)
    with pytest.raises(JournalUnwritable):
        journal.append(issued(2))
    journal.close()
    assert numbers(tmp_path) == [0]
    write(tmp_path, 2, range(7, 8))
    assert numbers(tmp_path) == [0, 7]


async def test_a_segment_that_cannot_be_begun_ends_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old file is closed by then: whoever gets that number next must not find records in it."""
    journal = Journal(tmp_path / "journal", opened(1))
    journal.append(issued(0))
    real = os.open

    def full(path: Path, *rest: int) -> int:
        if Path(path).suffix == ".journal":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *rest)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(JournalUnwritable, match="No space left on device"):
        await journal.rotate()
    monkeypatch.undo()
    other = tmp_path / "other"
    with other.open("w"):
        with pytest.raises(JournalUnwritable):
            journal.append(issued(1))
        journal.close()
    assert other.read_bytes() == b""
    assert numbers(tmp_path / "journal") == [0]


async def test_no_commit_succeeds_after_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a lost page once: the next fsync would succeed, and prove nothing."""
    journal = Journal(tmp_path, opened(1))
    journal.append(issued(0))
    real, failed = os.fsync, []

    def once(fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", once)
    outcomes = await asyncio.gather(
        journal.commit(), journal.commit(), journal.rotate(), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [JournalUnwritable] * 3
    journal.close()


def test_what_the_predecessor_left_to_the_kernel_is_made_durable_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its killer did not wait for an fsync; what its successor does depends on those records."""
    killed = Journal(tmp_path, opened(1))
    killed.append(issued(0))
    end = JournalReader(tmp_path).end()
    assert end is not None
    seen: list[tuple[str, list[str]]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        seen.append((path.name, sorted(p.name for p in tmp_path.iterdir())))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    Journal(tmp_path, opened(2, end)).close()
    assert seen[0] == (segment_name(1, 1), [segment_name(1, 1)])


def test_history_that_shrank_is_refused(tmp_path: Path) -> None:
    """A successor built on records that the disk then lost: not a torn tail, but a hole."""
    write(tmp_path, 1, range(3))
    write(tmp_path, 2, range(10, 12))
    segment = tmp_path / segment_name(1, 1)
    whole = [e.position.offset for e in JournalReader(tmp_path).records()][3]
    size = segment.stat().st_size
    os.truncate(segment, whole)
    with pytest.raises(JournalCorrupt, match=f"byte {whole}: {size} bytes were there before"):
        numbers(tmp_path)


def test_an_incarnation_writes_once(tmp_path: Path) -> None:
    write(tmp_path, 1, range(1))
    with pytest.raises(JournalUnwritable, match="File exists"):
        Journal(tmp_path, opened(1))


def test_confirmations_are_records_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path, opened(1))
    where = journal.append(Confirmed(groups=(1, 2), attempt=3))
    journal.close()
    assert JournalReader(tmp_path).entry(where).record == Confirmed(groups=(1, 2), attempt=3)
