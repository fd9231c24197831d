"""What a run came to, read from its folder: journal, newest checkpoint, weight store, metrics."""

import json
from dataclasses import dataclass, fields
from typing import Any

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.ledger import Ledger
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import read_metrics
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.journal import Arrived, Batch, Evaluated, Issued, JournalRecord, Published, Stepped


@dataclass(frozen=True)
class Outcome:
    """Everything that must not depend on where the trainer died."""

    weights_sha256: str
    """Of the newest checkpoint."""
    checkpoint_step: int
    steps: tuple[tuple[int, float, float, str], ...]
    """Number, loss, gradient norm, hash of the weights."""
    published: tuple[tuple[int, int, str], ...]
    """Version, step, fingerprint: from the journal."""
    stored: tuple[tuple[int, int, str], ...]
    """The same, from the manifests."""
    files: tuple[tuple[str, int, str], ...]
    """Of the newest version: name, size, SHA-256."""
    batches: tuple[tuple[int, int, tuple[int, ...], tuple[str, ...]], ...]
    """Step, version, groups, members."""
    ends: dict[int, str]
    """By group; each must have ended once."""
    books: dict[str, int]
    """Of the ledger that the journal gives."""
    saved_books: dict[str, int]
    """Of the ledger in the newest checkpoint."""
    issued: tuple[tuple[str, int, int], ...]
    """Credits: purpose, group (or version) and attempt."""
    arrived: tuple[tuple[str, float | None], ...]
    """Members to train on that counted, with their rewards, by name."""
    evaluated: tuple[tuple[int, int, int, float], ...]
    """Version, scored, asked, reward."""
    metrics: dict[str, Any]
    """Steps and evaluations that have a line, and what the last line says of the books."""

    def differences(self, other: "Outcome") -> list[str]:
        """Each field that differs, with both values."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{name}: {mine} instead of {theirs}" for name, mine, theirs in pairs if mine != theirs
        ]


def read_outcome(config: RunConfig) -> Outcome:
    """Read a run folder whose trainer has ended."""
    folder = RunFolder.of(config)
    records = [entry.record for entry in JournalReader(folder.journal).records()]
    store = WeightStore(folder.weights(config))
    newest = store.newest()
    assert newest is not None
    manifests = [store.manifest(version) for version in range(newest.version + 1)]
    state_file = max(folder.checkpoints.glob("step_*"), key=lambda p: int(p.name[5:]))
    state = json.loads((state_file / "state" / "state.json").read_text())
    saved = Ledger.from_json(state["extra"]["ledger"], Rules.of(config))
    return Outcome(
        weights_sha256=state["weights_sha256"],
        checkpoint_step=state["step"],
        steps=tuple(
            (r.step, r.loss, r.grad_norm, r.weights_sha256)
            for r in records
            if isinstance(r, Stepped)
        ),
        published=tuple(
            (r.version, r.step, r.fingerprint) for r in records if isinstance(r, Published)
        ),
        stored=tuple((m.version, m.step, m.fingerprint) for m in manifests if m is not None),
        files=tuple((file.name, file.size_bytes, file.sha256) for file in newest.files),
        batches=tuple(
            (r.step, r.version, r.groups, r.members) for r in records if isinstance(r, Batch)
        ),
        ends=_ends(records),
        books=_books(_ledger(config, records)),
        saved_books=_books(saved),
        issued=tuple(
            sorted(
                (r.purpose.value, group, r.attempt)
                for r in records
                if isinstance(r, Issued)
                for group in r.groups
            )
        ),
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
        metrics=_metrics(folder),
    )


def _ends(records: list[JournalRecord]) -> dict[int, str]:
    ends: dict[int, str] = {}
    for record in records:
        for closed in getattr(record, "closed", ()):
            assert closed.group not in ends, f"group {closed.group} ended twice"
            ends[closed.group] = closed.end
    return dict(sorted(ends.items()))


def _ledger(config: RunConfig, records: list[JournalRecord]) -> Ledger:
    ledger = Ledger(Rules.of(config))
    for record in records:
        ledger.apply(record)
    return ledger


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


def _metrics(folder: RunFolder) -> dict[str, Any]:
    end = list(read_metrics(folder.metrics, "end"))[-1]
    names = ("issued", "open", "trained", "filtered", "stale", "dead", "step", "version")
    evaluations = {x["version"]: x["eval/reward"] for x in read_metrics(folder.metrics, "eval")}
    return {
        "steps": sorted({line["step"] for line in read_metrics(folder.metrics, "step")}),
        "evaluations": dict(sorted(evaluations.items())),
        **{name: end[name] for name in names},
    }
