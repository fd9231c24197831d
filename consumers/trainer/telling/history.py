"""The ledger of a run, live or stopped, from its folder alone. Nothing is locked or changed.

newest checkpoint whose journal is there --> its ledger --> records behind it --> the ledger now
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn.durable_folders import step_folders
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalCorrupt, JournalReader, Position, segment_numbers
from schemas.config import RunConfig
from schemas.journal import Opened, Skipped, Stepped

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE_S = 0.3


@dataclass(slots=True, kw_only=True)
class History:
    """What journal and checkpoint say."""

    run_id: str
    incarnation: int
    """Of the newest trainer."""
    written_s: float
    """Seconds since the journal's newest segment was written to."""
    ledger: Ledger
    evaluations: Evaluations
    num_steps: int
    """Of the recipe."""
    stepped: int
    """Newest step that was taken or skipped: one less than decided while one is being taken."""


def read_history(config: RunConfig, folder: RunFolder | None = None) -> History:
    """Read a run's folder: the one that its recipe names, or a copy of it.

    Raises:
        ConfigError: There is no run.
        JournalCorrupt: Its journal is damaged, or does not reach back to a checkpoint.
        LedgerError: Its records contradict each other.
    """
    folder = folder or RunFolder.of(config)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _read(folder, config)
        except (FileNotFoundError, JournalCorrupt):  # a living trainer drops what it needs no more
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError


def _read(folder: RunFolder, config: RunConfig) -> History:
    reader = JournalReader(folder.journal)
    stretches = reader.history()
    if not stretches:
        raise ConfigError(
            f"no run {config.run.name!r} in {folder.root}: no trainer has written a journal there",
            hint="check run.name and run.dir; a run appears when its trainer has started",
        )
    rules, num_steps = _terms(folder, config)
    segments = [stretch.segment for stretch in stretches]
    saved = _newest_saved(folder.checkpoints, segments)
    if saved is None and not reader.begins_at_start():
        raise JournalCorrupt(
            f"{folder.journal} begins after the run's start and no checkpoint reaches it",
            hint="restore a checkpoint or the older segments",
        )
    run_id, start, stepped = "", None, 0
    ledger, evaluations = Ledger(rules), Evaluations()
    if saved is not None:
        extra = saved["extra"]
        run_id, start, stepped = extra["run_id"], Position(*extra["position"]), saved["step"]
        ledger = Ledger.from_json(extra["ledger"], rules)
        evaluations = Evaluations.from_json(extra["evaluations"])
    for entry in reader.records(start):
        ledger.apply(entry.record, entry.position)
        evaluations.apply(entry.record)
        match entry.record:
            case Opened():
                run_id = entry.record.run_id
            case Stepped() | Skipped():
                stepped = entry.record.step
            case _:
                pass
    return History(
        run_id=run_id,
        incarnation=segment_numbers(segments[-1])[0],
        written_s=max(0.0, time.time() - (folder.journal / segments[-1]).stat().st_mtime),
        ledger=ledger,
        evaluations=evaluations,
        num_steps=num_steps,
        stepped=stepped,
    )


def _terms(folder: RunFolder, config: RunConfig) -> tuple[Rules, int]:
    """Of the run itself where it says so: the recipe may have been edited since."""
    try:
        own = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        own = config
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read, the recipe is used: %s", folder.config, error)
        own = config
    return Rules.of(own), own.run.steps


def _newest_saved(checkpoints: Path, segments: list[str]) -> dict[str, Any] | None:
    for path in reversed(step_folders(checkpoints)):
        try:
            state: dict[str, Any] = json.loads((path / "state" / "state.json").read_text("utf-8"))
            if state["extra"]["position"][0] in segments:
                return state
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("the checkpoint %s is left out: %s", path.name, error)
    return None
