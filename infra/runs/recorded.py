"""Rollouts in the trainer's journal: what arrived, byte for byte."""

from collections.abc import Iterator

from infra.amqp.codec import decode
from infra.amqp.message import Envelope
from infra.roles.errors import ConfigError
from infra.runs.journal_reader import Entry, JournalReader
from schemas.journal import Arrived
from schemas.work import Trajectory


def arrived_trajectories(reader: JournalReader) -> Iterator[tuple[Arrived, Entry]]:
    """Every trajectory that is kept, in the order of arrival."""
    for entry in reader.records():
        if isinstance(entry.record, Arrived) and entry.record.reward is not None:
            yield entry.record, entry


def find_trajectory(reader: JournalReader, rollout_id: str) -> tuple[Arrived, Trajectory]:
    """The first arrival of a rollout: the one that counted.

    Raises:
        ConfigError: It is not in the journal (any more).
        BadMessage: It is not the one that was journaled.
    """
    for record, entry in arrived_trajectories(reader):
        if record.rollout_id == rollout_id:
            return record, trajectory_of(record, entry.body)
    raise ConfigError(
        f"no trajectory of rollout {rollout_id!r} in the journal",
        hint="ids are GROUP.INDEX, as in 17.3, or eval20.5; the journal is kept since the oldest "
        "checkpoint, and longer by checkpoint.journal_bytes",
    )


def trajectory_of(record: Arrived, body: bytes) -> Trajectory:
    """Decode a journaled trajectory.

    Raises:
        BadMessage: It is not the one that was journaled.
    """
    envelope = Envelope(
        message_id=record.message_id,
        type=record.type,
        correlation_id="",
        app_id="",
        headers=record.headers,
        content_encoding=record.content_encoding,
        timestamp=0,
    )
    return decode(envelope, body, Trajectory)
