"""The verdict on a run: did it stand? Found from outside, from what lies in its folder.

journal -> recount -----+--> lost, trained twice, off by
checkpoint, metrics ----+
manifests, tokens ------+--> versions
dead letters, faults ---+--> unexplained
undisturbed run --------+--> lengths (Kolmogorov-Smirnov)
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.amqp.message import Delivery
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalCorrupt
from infra.storm.judge import versions
from infra.storm.judge.books import differences, last_line
from infra.storm.judge.history import History, read_history
from infra.storm.judge.letters import explain
from infra.storm.judge.recount import Recount
from infra.storm.judge.smirnov import p_value
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.storm import Fault, FaultCount, FaultKind, StormReport

LEAST_P = 0.001
"""Below it, the lengths are not those of an undisturbed run."""
MAX_WORDS = 200
"""Breaches that are spelled out; further ones are counted."""
KILLS = (FaultKind.KILL, FaultKind.BROKER_KILL)
_BROKER = (
    FaultKind.BROKER_KILL,
    FaultKind.BROKER_TERM,
    FaultKind.BROKER_WIPE,
)
_VERSION = re.compile(r"v(\d+)/")
"""Of the target of a fault of the weights."""
_WEIGHTS = (FaultKind.WEIGHTS_TRUNCATE, FaultKind.WEIGHTS_FLIP)
_ROLES = {"worker": "rollout", "reward": "reward", "producer": "producer", "trainer": "trainer"}
_LEAST_STEPS = 20


def judge(
    config: RunConfig,
    faults: Sequence[Fault],
    *,
    seed: int,
    drained: Sequence[Delivery],
    undisturbed: Path | None,
    tokens_repeated: int = 0,
    due: int = 0,
) -> StormReport:
    """Judge the run folder that a recipe names, of a run that is over or dead.

    Args:
        config: The recipe that it ran with.
        faults: What was done to it. Whether each was survived is the storm's to say.
        seed: Of the storm.
        drained: Everything that lay in `dead_letters`.
        undisturbed: Run folder of the same recipe and seed without a storm, to compare lengths
            with; None: they are not compared.
        tokens_repeated: Seen by the storm.
        due: So many groups, the first ones, had the time to end after the last fault.
    """
    folder = RunFolder.of(config)
    history = _history(config, folder)
    recount = history.recount
    lost = [*recount.lost, *recount.left_behind(due)]
    twice = recount.twice()
    off, words = _imbalance(history, folder)
    calm, missing = _calm(config, undisturbed)
    raises = calm is None or calm.recount.failures > 0
    letters = explain(drained, faults, history.run_id, code_raises=raises)
    p, unequal = (None, missing) if calm is None else _lengths(history, calm)
    breaches = [
        *(f"lost: {name}" for name in lost),
        *(f"trained twice: {name}" for name in twice),
        *words,
        *history.wrong,
        *(f"unexplained dead letter: {name}" for name in letters.unexplained),
        *_versions(config, history, folder, faults),
        *unequal,
        *_unfinished(config, recount, folder),
        *_reward(config, history, calm),
    ]
    return StormReport(
        seed=seed,
        kills=sum(fault.kind in KILLS for fault in faults),
        faults=_counted(faults),
        generated=recount.generated,
        trained=sum(recount.trained.values()),
        lost=len(lost),
        trained_twice=len(twice),
        ledger_imbalance=off,
        dead_letters=letters.num_letters,
        unexplained_dead_letters=len(letters.unexplained),
        ks_p=p,
        recovery_seconds=recoveries(faults),
        tokens_repeated=tokens_repeated,
        breaches=_shortened(breaches),
    )


def recoveries(faults: Sequence[Fault]) -> dict[str, float | None]:
    """Median seconds from a kill to work flowing again, by what was killed; for the broker, from
    any of its ends. None where nothing was."""
    medians = {
        name: _median(
            fault
            for fault in faults
            if fault.kind is FaultKind.KILL and fault.target.partition("-")[0] == role
        )
        for name, role in _ROLES.items()
    }
    return medians | {"broker": _median(fault for fault in faults if fault.kind in _BROKER)}


def _median(faults: Iterable[Fault]) -> float | None:
    found = [f.recovery_seconds for f in faults if f.recovery_seconds is not None]
    return statistics.median(found) if found else None


def _counted(faults: Sequence[Fault]) -> dict[FaultKind, FaultCount]:
    injected = Counter(fault.kind for fault in faults)
    survived = Counter(fault.kind for fault in faults if fault.survived)
    return {
        kind: FaultCount(injected=injected[kind], survived=survived[kind])
        for kind in FaultKind
        if kind in injected
    }


def _history(config: RunConfig, folder: RunFolder) -> History:
    try:
        return read_history(config, folder.root)
    except JournalCorrupt as error:
        return History(Recount(config), wrong=[str(error)])


def _imbalance(history: History, folder: RunFolder) -> tuple[int, list[str]]:
    """Groups by which the books are off: contradictions, the checkpoint, the run's last words."""
    recount = history.recount
    counts = recount.counts()
    ended = counts.trained + counts.filtered + counts.stale + counts.dead
    off = abs(counts.issued - counts.open - ended) + len(recount.contradictions)
    words = [f"the books contradict themselves: {text}" for text in recount.contradictions]
    if counts.issued != counts.open + ended:
        words.append(f"{counts.issued} groups issued, {counts.open} open and {ended} ended")
    said = last_line(folder)
    if said is not None:
        by, texts = differences(counts, said, "the run's last line")
        off, words = off + by, words + texts
    return off + history.imbalance, words


def _versions(
    config: RunConfig, history: History, folder: RunFolder, faults: Sequence[Fault]
) -> list[str]:
    algorithm = config.algorithm
    targets = [_VERSION.match(fault.target) for fault in faults if fault.kind in _WEIGHTS]
    damaged = {int(target[1]) for target in targets if target is not None}
    found, wrong = versions.manifests_of(WeightStore.at(folder.weights(config)).manifests)
    published = [record for _, record in history.numbers.published]
    return [
        *wrong,
        *versions.check_manifests(found, history.run_id),
        *versions.check_published(published, found),
        *versions.check_arrivals(history.numbers, list(found)),
        *versions.check_damaged(history.numbers, damaged),
        *versions.check_batches(
            list(history.recount.batches.values()),
            history.came,
            published,
            on_policy=algorithm.max_staleness == 0 and algorithm.steps_per_publish == 1,
        ),
    ]


def _calm(config: RunConfig, undisturbed: Path | None) -> tuple[History | None, list[str]]:
    if undisturbed is None:
        return None, []
    try:
        calm = read_history(config, undisturbed)
    except JournalCorrupt as error:
        return None, [f"lengths cannot be compared with {undisturbed}: {error}"]
    if not calm.reached:
        return None, [f"lengths cannot be compared with {undisturbed}: no group reached the filter"]
    return calm, []


def _lengths(history: History, calm: History) -> tuple[float | None, list[str]]:
    """Over the prompts that both runs came to: what a policy learns later changes its lengths.

    All groups up to there, not those that both have: a storm that loses the long ones is found. Of
    the calm run, only up to the first group that is open: what is done behind it is done early,
    and short.
    """
    if not history.reached:
        return None, ["no group reached the filter: there are no lengths to compare"]
    ended = min(calm.recount.groups, default=calm.recount.num_issued) - 1
    horizon = min(max(history.reached), ended)
    both = history.lengths(horizon), calm.lengths(horizon)
    if not all(both):
        return None, [f"no lengths to compare up to group {horizon}: more run.steps are needed"]
    p = p_value(*both)
    if p > LEAST_P:
        return p, []
    means = [statistics.mean(lengths) for lengths in both]
    return p, [
        f"response lengths differ from an undisturbed run's: p = {p:.2g}, mean {means[0]:.1f} "
        f"against {means[1]:.1f} tokens"
    ]


def _unfinished(config: RunConfig, recount: Recount, folder: RunFolder) -> list[str]:
    """A run must reach its last step, or say that it was told to end."""
    if recount.step >= config.run.steps or last_line(folder) is not None:
        return []
    return [f"the run did not end: step {recount.step} of {config.run.steps}"]


def _reward(config: RunConfig, history: History, calm: History | None) -> list[str]:
    """With a real engine the reward rises, where it does without a storm."""
    rise = _rise(history)
    if config.rollout.engine == "simulated" or rise is None or rise.last > rise.first:
        return []
    undisturbed = _rise(calm) if calm is not None else None
    if undisturbed is not None and not undisturbed.certain:
        return []
    return [f"the reward does not rise: {rise.first:.3f} at first, {rise.last:.3f} at last"]


@dataclass(frozen=True, slots=True)
class _Rise:
    """Mean reward of a step, over the first and the last quarter of the steps."""

    first: float
    last: float
    error: float
    """Standard error of the difference."""

    @property
    def certain(self) -> bool:
        return self.last - self.first > 3 * self.error


def _rise(history: History) -> _Rise | None:
    """None where there are too few steps to tell."""
    steps = [
        statistics.mean(rewards)
        for batch in history.recount.batches.values()
        if (rewards := [history.came[m].reward for m in batch.members if m in history.came])
    ]
    if len(steps) < _LEAST_STEPS:
        return None
    quarter = len(steps) // 4
    first, last = steps[:quarter], steps[-quarter:]
    spread = statistics.variance(first) + statistics.variance(last)
    return _Rise(statistics.mean(first), statistics.mean(last), math.sqrt(spread / quarter))


def _shortened(breaches: Sequence[str]) -> tuple[str, ...]:
    if len(breaches) <= MAX_WORDS:
        return tuple(breaches)
    return (*breaches[:MAX_WORDS], f"and {len(breaches) - MAX_WORDS} more")
