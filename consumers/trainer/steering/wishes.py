"""What the operator wanted last, kept in the run folder: a trainer that comes back still knows."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from infra.runs.durable import sync
from schemas.control import WISHES, Command, Wanted

logger = logging.getLogger(__name__)

MAX_OPERATORS = 64
"""Remembered, newest last: a command that comes again is not obeyed again."""
_KEPT = (Wanted.RUNNING, Wanted.PAUSED, Wanted.DRAINING)


@dataclass(slots=True)
class Wishes:
    """The wanted state and the commands that led to it."""

    path: Path
    wanted: Wanted = Wanted.RUNNING
    by: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    """Operator -> number of the newest command obeyed."""

    @classmethod
    def read(cls, path: Path) -> "Wishes":
        """What was kept; nothing where nothing was, or where it cannot be read."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            numbers = {str(by): int(number) for by, number in data["numbers"].items()}
            return cls(path, Wanted(data["wanted"]), str(data["by"]), numbers)
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, the run goes on: %s", path, error)
            return cls(path)

    def obey(self, command: Command) -> bool:
        """Take a command, unless it was obeyed before; `keep` makes it last."""
        if command.number <= self.numbers.get(command.by, -1):
            return False
        self.wanted, self.by = WISHES[command.verb], command.by
        self.numbers.pop(command.by, None)
        self.numbers[command.by] = command.number
        for oldest in list(self.numbers)[:-MAX_OPERATORS]:
            del self.numbers[oldest]
        return True

    def keep(self) -> None:
        """Write it down, durable. A stop is obeyed once: whoever resumes the run wants it to run.

        Raises:
            OSError: The disk did not take it.
        """
        wanted = self.wanted if self.wanted in _KEPT else Wanted.RUNNING
        text = json.dumps({"wanted": wanted, "by": self.by, "numbers": self.numbers})
        draft = self.path.with_suffix(".tmp")
        draft.write_text(text + "\n", encoding="utf-8")
        sync(draft)
        draft.replace(self.path)
        sync(self.path.parent)
