"""What a run came to, read from its folder: journal, newest checkpoint, weight store, metrics."""

import json
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.ledger import Ledger
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import read_metrics
from infra.weights.local.weights import LocalWeights
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from schemas.headers import Purpose
from schemas.journal import (
    Arrived,
    Batch,
    Evaluated,
    Issued,
    JournalRecord,
    Published,
    Stepped,
)


class Comparable:
    """A dataclass that says where it differs."""

    def differences(self, other: Self) -> list[str]:
        """Each field that differs, with both values."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{name}: {one} instead of {two}" for name, one, two in pairs if one != two]


@dataclass(frozen=True)
class Final(Comparable):
    """The end state: what checkpoint, weight store and metrics say."""

    weights_sha256: str
    """Of the newest checkpoint."""
    checkpoint_step: int
    stored: tuple[tuple[int, int, str], ...]
    """Version, step, fingerprint of every manifest."""
    joined: str
    """Fingerprint of the newest version as a worker reads it that joins."""
    books: dict[str, int]
    """Of the ledger in the newest checkpoint."""
    ends: dict[int, str]
    """By group, of the same ledger."""
    metrics: dict[str, Any]
    """Steps and evaluations that have a line, and what the last line says of the books."""

    @classmethod
    def read(cls, config: RunConfig) -> Self:
        """Read a run folder whose trainer has ended."""
        folder = RunFolder.of(config)
        store = WeightStore.at(folder.weights(config))
        newest = store.newest()
        assert newest is not None
        manifests = [store.manifest(version) for version in range(newest.version + 1)]
        checkpoint = max(folder.checkpoints.glob("step_*"), key=lambda path: int(path.name[5:]))
        state = json.loads((checkpoint / "state" / "state.json").read_text())
        ledger = Ledger.from_json(state["extra"]["ledger"], Rules.of(config))
        ends = {number: ledger.ends.get(number) for number in range(ledger.num_issued)}
        return cls(
            weights_sha256=state["weights_sha256"],
            checkpoint_step=state["step"],
            stored=tuple((m.version, m.step, m.fingerprint) for m in manifests if m is not None),
            joined=_read(store, newest, Path(config.model.path)),
            books=_books(ledger),
            ends={number: end.value for number, end in ends.items() if end is not None},
            metrics=_metrics(folder),
        )


@dataclass(frozen=True)
class Told(Comparable):
    """The whole history, as the journal tells it."""

    steps: tuple[tuple[int, float, float, str], ...]
    """Number, loss, gradient norm, hash of the weights."""
    published: tuple[tuple[int, int, str], ...]
    """Version, step, fingerprint."""
    batches: tuple[tuple[int, int, tuple[int, ...], tuple[str, ...]], ...]
    """Step, version, groups, members."""
    ends: dict[int, str]
    """By group; each must have ended once."""
    books: dict[str, int]
    """Of the ledger that the records give."""
    issued: tuple[tuple[str, int, int], ...]
    """Credits: purpose, group (or version) and attempt."""
    arrived: tuple[tuple[str, float | None], ...]
    """Members to train on that counted, with their rewards, by name."""
    evaluated: tuple[tuple[int, int, int, float], ...]
    """Version, scored, asked, reward."""

    @classmethod
    def read(cls, config: RunConfig) -> Self:
        """Read a journal from its first record."""
        reader = JournalReader(RunFolder.of(config).journal)
        assert reader.begins_at_start()
        records = [entry.record for entry in reader.records()]
        ledger = Ledger(Rules.of(config))
        for record in records:
            ledger.apply(record)
        return cls(
            steps=tuple(
                (r.step, r.loss, r.grad_norm, r.weights_sha256)
                for r in records
                if isinstance(r, Stepped)
            ),
            published=tuple(
                (r.version, r.step, r.fingerprint) for r in records if isinstance(r, Published)
            ),
            batches=tuple(
                (r.step, r.version, r.groups, r.members) for r in records if isinstance(r, Batch)
            ),
            ends=_ends(records),
            books=_books(ledger),
            issued=_issued(records),
            arrived=tuple(
                sorted(
                    (r.rollout_id, r.reward)
                    for r in records
                    if isinstance(r, Arrived) and r.purpose is Purpose.TRAIN
                )
            ),
            evaluated=tuple(
                (r.version, r.num_scored, r.num_asked, r.reward)
                for r in records
                if isinstance(r, Evaluated)
            ),
        )


def _ends(records: list[JournalRecord]) -> dict[int, str]:
    ends: dict[int, str] = {}
    for record in records:
        for closed in getattr(record, "closed", ()):
            assert closed.group not in ends, f"group {closed.group} ended twice"
            ends[closed.group] = closed.end
    return dict(sorted(ends.items()))


def _issued(records: list[JournalRecord]) -> tuple[tuple[str, int, int], ...]:
    credits = [
        (record.purpose.value, group, record.attempt)
        for record in records
        if isinstance(record, Issued)
        for group in record.groups
    ]
    return tuple(sorted(credits))


def _books(ledger: Ledger) -> dict[str, int]:
    books = ledger.books()
    assert books.balanced
    return {
        "issued": books.issued,
        "open": books.open,
        "step": ledger.step,
        "version": ledger.version,
        "published_step": ledger.published_step,
        **{end.value: count for end, count in ledger.ends.counts.items()},
    }


def _read(store: WeightStore, published: WeightsPublished, model_folder: Path) -> str:
    with tempfile.TemporaryDirectory() as cache:
        weights = LocalWeights(store, model_folder=model_folder, cache=cache)
        try:
            return weights.prepare(published).fingerprint
        finally:
            weights.close()


def _metrics(folder: RunFolder) -> dict[str, Any]:
    end = list(read_metrics(folder.metrics, "end"))[-1]
    ends = ("issued", "open", "trained", "filtered", "stale", "dead")
    names = (*(f"ledger/{name}" for name in ends), "step", "version")
    evaluations = {x["version"]: x["eval/reward"] for x in read_metrics(folder.metrics, "eval")}
    return {
        "steps": sorted({line["step"] for line in read_metrics(folder.metrics, "step")}),
        "evaluations": dict(sorted(evaluations.items())),
        **{name: end[name] for name in names},
    }
