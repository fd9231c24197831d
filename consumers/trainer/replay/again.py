"""Taking recorded steps again, one after the other, from a run folder that stays as it is.

plan --> learner as at its base --> walk through the journal --> a `Row` for each wanted step
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.batch.groups import Group
from consumers.trainer.books.balance import Rules
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.learn.lora import load_policy
from consumers.trainer.replay.choice import Plan
from consumers.trainer.replay.compare import Verdict, compare, differences
from consumers.trainer.replay.machine import be_like, ran_on
from consumers.trainer.replay.what_if import Changes
from consumers.trainer.saving import SavedState, load
from consumers.trainer.stepping import take_step
from consumers.trainer.walk import Taken, Walk
from infra.roles.errors import ConfigError
from infra.runs.code_version import code_version
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.weights.fingerprint import entries_of, of_entries
from infra.weights.publication import casted
from schemas.config import RunConfig
from schemas.journal import Batch, Opened, Published, RanOn, Skipped, Stepped


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A wanted step, beside its record."""

    batch: Batch
    num_tokens: int
    """Of all members."""
    num_sampled: int
    """Those that the policy sampled."""
    recorded: Stepped
    again: StepResult
    verdict: Verdict | None
    """None with changes: another recipe never compares as equal."""
    seconds: float


@dataclass(slots=True)
class Again:
    """Steps of a run, taken again.

    Args:
        config: The run folder's recipe; its `model.path` says where the starting model is now.
        folder: Of the run, or a copy.
        plan: From `plans`.
        changes: What is tried from the first wanted step on.
        say: Told what is done on the way, for whoever waits.
    """

    config: RunConfig
    folder: RunFolder
    plan: Plan
    changes: Changes | None
    say: Callable[[str], None]
    unlike: dict[str, None] = field(default_factory=dict)
    """What computed the steps so far and is another here, each told once."""
    notes: list[str] = field(default_factory=list)
    """What else a difference may come from."""
    codes: dict[str, None] = field(default_factory=dict)
    """Versions of the code that recorded steps, other than this one."""
    here: RanOn | None = None
    _took_s: float = 0.0

    def rows(self) -> Iterator[Row]:
        """The wanted steps, each as soon as it is done; one that was skipped has none.

        Raises:
            CheckpointUnusable: The base is damaged; before the first row.
            ConfigError: The model or the recipe is not the run's.
            JournalCorrupt: What a step was trained on is not there any more.
            StepFailed: A step fails that was taken.
        """
        plan = self.plan
        config = self._recipe(plan.config)
        learner, state = self._learner(config)
        reader = JournalReader(self.folder.journal)
        walk = Walk(learner, Shelf(reader), state, self._take)
        for entry in reader.records(state.position):
            record = entry.record
            taken = walk.apply(entry)
            if isinstance(record, Opened) and record.config:
                self._follow(record, walk, learner)
            elif isinstance(record, Published) and record.step == learner.step_done == 0:
                self._check_start(learner, record)
            if taken is not None and (row := self._row(taken)) is not None:
                yield row
            if isinstance(record, Stepped | Skipped) and record.step >= plan.last:
                return

    def _learner(self, config: RunConfig) -> tuple[Learner, SavedState]:
        base = self.plan.base
        self.say(f"loading {base}")
        if not Path(config.model.path).is_dir():
            raise ConfigError(
                f"the starting model is not at model.path={config.model.path!r}, seen from "
                f"{Path.cwd()}",
                hint="replay where the run was started, or say --set model.path=...",
            )
        recorded = [one for one in self.plan.recorded.values() if isinstance(one, Stepped)]
        device = be_like(recorded[-1].ran_on if recorded else None)
        learner = Learner(config, load_policy(config, device=device))
        self.here = ran_on(learner.policy.device)
        rules = Rules.of(config)
        if base.checkpoint is None:
            return learner, SavedState.at_start(rules)
        return learner, load(base.checkpoint, learner, rules)

    def _recipe(self, recorded: dict[str, object]) -> RunConfig:
        """As it was recorded; the starting model may lie elsewhere now."""
        if not recorded:
            return self.config
        try:
            config = RunConfig.model_validate(recorded)
        except ValidationError as error:
            raise ConfigError(
                f"the recipe that was recorded in {self.folder.root} is none of this release: "
                f"{error.errors(include_url=False)[0]['msg']}",
                hint="replay the run with the release that made it",
            ) from None
        path = self.config.model.path
        return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})

    def _follow(self, opened: Opened, walk: Walk, learner: Learner) -> None:
        """A trainer began here, perhaps under another recipe than the one before."""
        if opened.code and opened.code != str(code_version()):
            self.codes.setdefault(opened.code)
        config = self._recipe(opened.config)
        before, now = learner.config, config
        changed = [
            f"{section}.{key} {old!r} -> {new!r}"
            for section in ("trainer", "algorithm")
            for key, old in getattr(before, section).model_dump().items()
            if (new := getattr(getattr(now, section), key)) != old
        ]
        if changed and self.changes is None:
            note = f"trainer {opened.incarnation} went on behind step {learner.step_done} with "
            self.notes.append(note + ", ".join(changed))
        learner.use(config)
        walk.state.ledger.follow(Rules.of(config))

    def _check_start(self, learner: Learner, published: Published) -> None:
        dtype = learner.config.model.dtype
        tensors = casted(learner.policy.published_tensors(dtype), dtype)
        if of_entries(entries_of(tensors)) != published.fingerprint:
            raise ConfigError(
                f"model.path={learner.config.model.path!r} holds other weights than those that "
                f"the run began with",
                hint="--set model.path=... says where they are now",
            )

    def _take(
        self,
        learner: Learner,
        groups: Sequence[Group],
        *,
        step: int,
        version: int,
        done_before: bool = False,
    ) -> StepResult:
        if self.changes is not None and step >= self.plan.first:
            learner.use(self.changes.applied(learner.config))
        began = time.monotonic()
        result = take_step(learner, groups, step=step, version=version)
        self._took_s = time.monotonic() - began
        return result

    def _row(self, taken: Taken) -> Row | None:
        step, recorded = taken.batch.step, taken.recorded
        if recorded is None:
            return None
        for words in differences(recorded.ran_on, taken.result.ran_on):
            self.unlike.setdefault(words)
        verdict = compare(recorded, taken.result, tolerant=bool(self.unlike))
        if step < self.plan.first:
            told = "equal" if verdict.equal else f"DIFFERS: {verdict.first_difference}"
            self.say(f"step {step} on the way: {told} ({self._took_s:.1f} s)")
            if not verdict.equal:
                self.notes.append(f"step {step}, on the way here, differs already")
            return None
        tokens = [one.rollout.progress.tokens for group in taken.groups for one in group.members]
        return Row(
            batch=taken.batch,
            num_tokens=sum(len(one) for one in tokens),
            num_sampled=sum(one.num_sampled for one in tokens),
            recorded=recorded,
            again=taken.result,
            verdict=None if self.changes is not None else verdict,
            seconds=self._took_s,
        )
