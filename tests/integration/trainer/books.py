"""What a run's files say once its trainer has ended."""

from collections import Counter
from typing import Any

from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import read_metrics
from schemas.config import RunConfig
from schemas.journal import Batch, JournalRecord


def records_of(config: RunConfig) -> list[JournalRecord]:
    """The journal's history."""
    return [entry.record for entry in JournalReader(RunFolder.of(config).journal).records()]


def check_books(config: RunConfig, *, steps: int) -> dict[str, Any]:
    """Balanced, every step once, nothing trained twice; returns the end line."""
    end = list(read_metrics(RunFolder.of(config).metrics, "end"))[-1]
    assert end["ledger/balanced"] and end["ledger/open"] == 0
    assert end["ledger/trained"] == steps * config.algorithm.groups_per_step
    batches = [record for record in records_of(config) if isinstance(record, Batch)]
    assert [batch.step for batch in batches] == list(range(1, steps + 1))
    members = Counter(member for batch in batches for member in batch.members)
    assert set(members.values()) == {1}
    return end
