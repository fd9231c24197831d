"""Faults of scoring, of groups and of the trainer's place."""

from collections.abc import Iterator

from infra.observe.monitor.clean import clean, human_bytes, human_seconds
from infra.observe.monitor.diagnosis.finding import Fault, Finding, Severity
from infra.observe.monitor.diagnosis.presence import is_full
from infra.observe.monitor.scene import Scene

SLOW_CALL_S = 2.0
BACKLOG_S = 10.0
"""Scoring all that waits takes so long, from which scoring is slow."""
HANGING_S, HANGING_TIMES = 5.0, 10.0
BARREN_S, MIN_BARREN, MAX_BARREN, BARREN_BATCHES = 3.0, 16, 64, 8
"""Groups filtered in a row: so many batches of them, but no fewer and no more than this. (Where one
group in six can be trained, 64 in a row are filtered once in 70,000 times.)"""
DISK_BYTES, DISK_VERSIONS = 64 * 1024**2, 3
"""Space that a disk must have left: bytes, and versions of the weights."""


def slow_reward(scene: Scene) -> Iterator[Finding]:
    """Rollouts wait to be scored, or a call hangs."""
    reports = [one.reward for one in scene.of("reward") if one.reward is not None]
    if not reports:
        return
    processes = max(1, sum(one.processes for one in reports))
    longest = max(one.longest_s for one in reports)
    usual = max(one.usual_s for one in reports)
    call_s = max(longest, usual)
    held = sum(one.queued + one.scoring for one in reports)
    backlog = held + scene.ready("rollouts")
    drain_s = backlog * call_s / processes
    hangs = longest >= max(HANGING_S, HANGING_TIMES * usual)
    if not hangs and (call_s < SLOW_CALL_S or drain_s < BACKLOG_S):
        return
    names = ", ".join(clean(name, 60) for one in reports[:1] for name in one.functions)
    limit_s = max(one.timeout_s for one in reports)
    usually = f" (usually {human_seconds(usual)})" if usual else ""
    yield Finding(
        fault=Fault.SLOW_REWARD,
        severity=Severity.WARNING,
        who=names,
        what=f"scoring is slow: a call of {names} takes {human_seconds(call_s)}{usually}, "
        f"{backlog} rollouts wait for {processes} processes",
        do=f"more reward workers (run.py reward RECIPE, or [reward] workers), or a faster "
        f"function; a call is killed after [reward] timeout, {human_seconds(limit_s)}",
    )


def zero_variance(scene: Scene) -> Iterator[Finding]:
    """Groups end without anything to learn from."""
    for one in scene.of("trainer"):
        report = one.trainer
        if report is None or report.barren_s < BARREN_S:
            continue
        batches = BARREN_BATCHES * scene.expected.groups_per_step
        if report.barren < max(MIN_BARREN, min(MAX_BARREN, batches)):
            continue
        reason = f": {clean(report.barren_reason, 120)}" if report.barren_reason else ""
        yield Finding(
            fault=Fault.ZERO_VARIANCE,
            severity=Severity.PROBLEM,
            who=one.name,
            what=f"{report.barren} groups in a row had zero variance and were filtered, none to "
            f"train on for {human_seconds(report.barren_s)}{reason}",
            do="check the reward (run.py check scores a gold answer), raise [rollout] temperature "
            "or [algorithm] group_size, or take prompts that are neither too hard nor too easy",
        )


def full_store(scene: Scene) -> Iterator[Finding]:
    """No space for weights, journal or a worker's copy of the weights."""
    seen: set[str] = set()
    trainer = next((one.trainer for one in scene.of("trainer") if one.trainer is not None), None)
    needed = max(DISK_BYTES, DISK_VERSIONS * (trainer.version_bytes if trainer else 0))
    for one in scene.workers:
        refusal = one.rollout.refusal if one.rollout is not None else ""
        texts = (one.error, refusal, one.before)
        error = next((clean(text) for text in texts if is_full(text)), "")
        if error:
            what, _, hint = error.partition(" -> ")
            yield Finding(
                fault=Fault.FULL_STORE,
                severity=Severity.PROBLEM,
                who=one.name,
                what=f"no space left for {one.name} on {one.host}: {what}",
                do=hint
                or "free some space, lower [weights] keep and [checkpoint] keep, or move "
                "[weights] store; the run goes on with --resume",
            )
            seen.add(one.host)
        free = one.counters.get("disk_free_bytes")
        if free is not None and free < needed and one.host not in seen:
            seen.add(one.host)
            yield Finding(
                fault=Fault.FULL_STORE,
                severity=Severity.WARNING,
                who=one.host,
                what=f"the disk of the run folder on {one.host} has {human_bytes(free)} left",
                do="free some space, lower [weights] keep and [checkpoint] keep, or move "
                "[weights] store before the trainer stops for it",
            )


def books(scene: Scene) -> Iterator[Finding]:
    """They must balance at any moment."""
    for one in scene.of("trainer"):
        if one.counters.get("balanced", 1.0) < 1.0:
            yield Finding(
                fault=Fault.BOOKS,
                severity=Severity.PROBLEM,
                who=one.name,
                what="the ledger does not balance: a group was lost or counted twice",
                do="stop the run and keep its folder: run.py ledger shows the record",
            )


def dead_letters(scene: Scene) -> Iterator[Finding]:
    """For people to look at."""
    if count := scene.ready("dead_letters"):
        yield Finding(
            fault=Fault.DEAD_LETTERS,
            severity=Severity.NOTICE,
            who="dead_letters",
            what=f"{count} dead letters wait for somebody to look at them",
            do="run.py dead list",
        )


def paused(scene: Scene) -> Iterator[Finding]:
    """Because an operator wished it."""
    if scene.run.wanted in ("paused", "draining") and scene.broker.connected:
        yield Finding(
            fault=Fault.PAUSED,
            severity=Severity.NOTICE,
            who="",
            what=f"the run is {scene.run.wanted}, as an operator asked",
            do="run.py control resume",
        )
