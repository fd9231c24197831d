"""One pass over a run's journal: everything that the verdict is made of."""

from dataclasses import dataclass, field
from pathlib import Path

from infra.runs.folder import RunFolder
from infra.runs.journal_reader import Entry, JournalReader
from infra.storm.judge.books import SavedBooks, compare, newest_checkpoint, read_saved
from infra.storm.judge.recount import Recount
from infra.storm.judge.spoken import Spoken, Unreadable, read
from infra.storm.judge.versions import Numbers
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.journal import Arrived, Opened, Published


@dataclass(slots=True)
class History:
    """A journal, counted."""

    recount: Recount
    numbers: Numbers = field(default_factory=Numbers)
    run_id: str = ""
    incarnations: int = 0
    came: dict[str, Spoken] = field(default_factory=dict)
    """Every training rollout that came back, the first report of each."""
    imbalance: int = 0
    """Groups by which the newest checkpoint differs from the journal before it."""
    wrong: list[str] = field(default_factory=list)

    @property
    def reached(self) -> set[int]:
        """Groups that reached the filter: trained or filtered."""
        return {n for n, end in self.recount.ends.items() if end in ("trained", "filtered")}

    def lengths(self, up_to: int | None = None) -> list[int]:
        """Response lengths of the groups that reached the filter, by id.

        Args:
            up_to: The last group that counts; None: all.
        """
        reached = {n for n in self.reached if up_to is None or n <= up_to}
        return [
            spoken.response_length
            for name, spoken in sorted(self.came.items())
            if int(name.partition(".")[0]) in reached
        ]


def read_history(config: RunConfig, root: Path) -> History:
    """Read the journal and the newest checkpoint of a run folder.

    Raises:
        JournalCorrupt: A record in the middle of the journal is damaged.
    """
    folder = RunFolder(root)
    history = History(Recount(config))
    saved = _saved(folder, history)
    reader = JournalReader(folder.journal)
    if not reader.begins_at_start():
        history.wrong.append("the journal does not reach back to the run's start: not all is seen")
    for place, entry in enumerate(reader.records()):
        if saved is not None and entry.position >= saved.position:
            _compare(history, saved)
            saved = None
        _take(history, place, entry)
    if saved is not None:
        _compare(history, saved)
    return history


def _take(history: History, place: int, entry: Entry) -> None:
    record = entry.record
    history.recount.take(record)
    if isinstance(record, Opened):
        if history.run_id not in ("", record.run_id):
            history.wrong.append(f"the journal is of runs {history.run_id} and {record.run_id}")
        history.run_id = record.run_id
        history.incarnations += 1
    elif isinstance(record, Published):
        history.numbers.published.append((place, record))
    elif isinstance(record, Arrived) and record.reward is not None:
        _read_body(history, place, record, entry.body)


def _read_body(history: History, place: int, record: Arrived, body: bytes) -> None:
    try:
        spoken = read(record, body)
    except Unreadable as error:
        history.wrong.append(f"{record.rollout_id} in the journal cannot be read: {error}")
        return
    if (spoken.rollout_id, spoken.reward) != (record.rollout_id, record.reward):
        history.wrong.append(
            f"the journal says {record.rollout_id} with reward {record.reward}, its body "
            f"{spoken.rollout_id} with {spoken.reward}"
        )
    if record.purpose is Purpose.TRAIN:
        history.came.setdefault(record.rollout_id, spoken)
        history.numbers.came.append((place, spoken))


def _saved(folder: RunFolder, history: History) -> SavedBooks | None:
    path = newest_checkpoint(folder)
    if path is None:
        return None
    try:
        return read_saved(path)
    except ValueError as error:
        history.wrong.append(str(error))
        history.imbalance += 1
        return None


def _compare(history: History, saved: SavedBooks) -> None:
    imbalance, words = compare(history.recount, saved)
    history.imbalance += imbalance
    history.wrong += words
