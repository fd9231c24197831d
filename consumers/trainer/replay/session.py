"""One call of `replay step`: from a plan that works to rows on the screen and an exit code."""

import json
import sys
from collections.abc import Sequence

from consumers.trainer.learn.checkpoints import CheckpointUnusable
from consumers.trainer.replay import text
from consumers.trainer.replay.again import Again, Row
from consumers.trainer.replay.choice import Plan, plans
from consumers.trainer.replay.wanted import Wanted
from consumers.trainer.replay.what_if import Changes
from infra.observe.columns import trimmed
from infra.observe.harmless import harmless
from infra.roles.command.target import Target
from infra.roles.errors import ExitCode, WarrenError
from infra.runs.metrics import newest_lines
from schemas.journal import Skipped, Stepped


class Session:
    """Replays steps of a run, telling each as soon as it is done.

    Args:
        found: The run.
        changes: What is tried instead of compared.
        as_json: One object at the end; what happens meanwhile goes to standard error.
    """

    def __init__(self, found: Target, changes: Changes | None, *, as_json: bool) -> None:
        self._found = found
        self._changes = changes
        self._as_json = as_json
        self._name = found.config.run.name
        self._metrics = newest_lines(found.folder.metrics, "step", "step") if changes else {}

    def run(self, wanted: Wanted) -> ExitCode:
        """0 when all are equal, or nothing was compared; else 1."""
        for plan in plans(self._found.folder, wanted):
            again = Again(self._found.config, self._found.folder, plan, self._changes, _say)
            try:
                rows = self._rows(again)
            except CheckpointUnusable as error:
                _say(f"{error}".partition("\n")[0])
                continue
            self._conclude(again, rows)
            if plan.damage is not None:
                raise plan.damage
            equal = all(row.verdict is None or row.verdict.equal for row in rows)
            return ExitCode.DONE if equal else ExitCode.FAILED
        raise WarrenError(
            "none of the checkpoints before this step can be read",
            hint="restore one, or replay a copy of the run folder that has one",
        )

    def _rows(self, again: Again) -> list[Row]:
        """Tells each row as soon as it is there."""
        rows: list[Row] = []
        left = _skipped(again.plan)
        for row in again.rows():
            if not rows:
                self._write(text.title(again, name=self._name))
                self._write(text.machine(row.again.ran_on) + "\n")
                self._write("" if self._changes else text.HEADER + "\n")
            while left and left[0].step < row.batch.step:
                self._write(text.skipped_text(left.pop(0)))
            rows.append(row)
            self._tell(again, row)
        for skipped in left:
            self._write(text.skipped_text(skipped))
        return rows

    def _tell(self, again: Again, row: Row) -> None:
        if self._as_json:
            _say(f"step {row.batch.step} taken again ({row.seconds:.1f} s)")
        elif self._changes is not None:
            metrics = self._metrics.get(row.batch.step, {})
            self._write(text.what_if_text(row, metrics, self._changes))
        else:
            self._write(text.row_text(row, alone=again.plan.first == again.plan.last))

    def _conclude(self, again: Again, rows: Sequence[Row]) -> None:
        if not self._as_json:
            self._write(text.summary_text(again, rows))
            return
        told = text.to_json(
            again, rows, name=self._name, metrics=self._metrics, skipped=_skipped(again.plan)
        )
        sys.stdout.write(json.dumps(told) + "\n")

    def _write(self, words: str) -> None:
        if not self._as_json:
            sys.stdout.write(trimmed(harmless(words, lines=True)))
            sys.stdout.flush()


def _skipped(plan: Plan) -> list[Skipped]:
    wanted = (plan.recorded.get(step) for step in range(plan.first, plan.last + 1))
    return [one for one in wanted if one is not None and not isinstance(one, Stepped)]


def _say(words: str) -> None:
    sys.stderr.write(f"{harmless(words, lines=True)}\n")
    sys.stderr.flush()
