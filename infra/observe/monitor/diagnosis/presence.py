"""Who is not there: the broker, the trainer, a worker, everybody of a role."""

from collections.abc import Iterator

from infra.observe.monitor.clean import human_seconds
from infra.observe.monitor.diagnosis.finding import Fault, Finding, Severity
from infra.observe.monitor.scene import SILENT_S, Scene, WorkerSeen

_WAITS_IN = {
    "producer": ("credits",),
    "rollout": ("prompts", "cancel_queue"),
    "reward": ("rollouts",),
}
_FULL = ("no space left", "disk is full", "disk full", "disk quota", "enospc")


def broker_gone(scene: Scene) -> Iterator[Finding]:
    """Nobody answers at its address, or it refuses."""
    broker = scene.broker
    if broker.missing:
        yield Finding(
            fault=Fault.NO_RUN,
            severity=Severity.PROBLEM,
            who=scene.run.name,
            what=f"the broker at {broker.address} has no run {scene.run.name!r}",
            do="start it with run.py up RECIPE, or correct run.name or WARREN_BROKER_URL",
        )
    elif not broker.connected:
        yield Finding(
            fault=Fault.BROKER_GONE,
            severity=Severity.NOTICE if scene.over else Severity.PROBLEM,
            who=broker.address,
            what=f"the broker at {broker.address} is not reached for "
            f"{human_seconds(broker.since_s)}: {broker.error}",
            do="nothing: the run is over, and a private broker ends with it"
            if scene.over
            else "start it again, or correct WARREN_BROKER_URL; this monitor keeps trying, and the "
            "roles find it by themselves",
        )


def broker_alarm(scene: Scene) -> Iterator[Finding]:
    """It takes no message, heartbeats included."""
    if scene.broker.alarms:
        yield Finding(
            fault=Fault.BROKER_ALARM,
            severity=Severity.PROBLEM,
            who=scene.broker.address,
            what=f"the broker has an alarm ({', '.join(scene.broker.alarms)}): every publisher "
            "waits, and nobody is heard",
            do="free memory or disk space at the broker, or raise its vm_memory_high_watermark or "
            "lower its disk_free_limit; the run goes on by itself then, nothing is lost",
        )


def all_silent(scene: Scene) -> Iterator[Finding]:
    """The reason is not with any of them."""
    if not _unexplained(scene) or not _everybody_silent(scene):
        return
    if not scene.workers:
        yield Finding(
            fault=Fault.ALL_SILENT,
            severity=Severity.PROBLEM,
            who="",
            what="nobody of this run is heard: no process of it runs, or none reaches this broker",
            do="start it: run.py up RECIPE, with --resume if it had begun",
        )
    else:
        yield Finding(
            fault=Fault.ALL_SILENT,
            severity=Severity.PROBLEM,
            who="",
            what=f"none of {len(scene.workers)} processes is heard any more, and the broker "
            "answers: it takes no messages (an alarm?), or the run was killed as a whole",
            do="look at the broker's alarms (management UI), then at the roles' logs",
        )


def trainer_silent(scene: Scene) -> Iterator[Finding]:
    """No heartbeat of a trainer."""
    if not _unexplained(scene) or _everybody_silent(scene) or scene.trainer is not None:
        return
    if any(one.role == "trainer" and one.state in ("failed", "leaving") for one in scene.workers):
        return
    silent = [one.heard_s for one in scene.workers if one.role == "trainer"]
    if not silent and scene.run.heard_s is not None:
        silent = [scene.run.heard_s]
    if silent and min(silent) < SILENT_S:
        return
    if not silent and scene.listened_s < SILENT_S:
        return
    since = f"for {human_seconds(min(silent))}" if silent else "since this monitor listens"
    yield Finding(
        fault=Fault.TRAINER_SILENT,
        severity=Severity.PROBLEM,
        who="trainer",
        what=f"no trainer is heard {since}; newest known: step {scene.run.step}, version "
        f"{scene.run.version}",
        do="look at the trainer's log, then start it again: run.py up RECIPE --resume, or "
        "run.py trainer RECIPE --resume beside roles that still run; nothing is lost meanwhile",
    )


def worker_silent(scene: Scene) -> Iterator[Finding]:
    """One that was heard before."""
    if not _unexplained(scene) or _everybody_silent(scene):
        return
    for one in scene.workers:
        if one.silent and one.state != "failed" and one.role != "trainer" and scene.of(one.role):
            yield Finding(
                fault=Fault.WORKER_SILENT,
                severity=Severity.WARNING,
                who=one.name,
                what=f"{one.role} worker {one.name} on {one.host} is not heard for "
                f"{human_seconds(one.heard_s)}, last {one.slots_used} in hand",
                do="if it is gone, start another; if it hangs, kill it: the broker gives what it "
                "held to others, nothing is lost",
            )


def stopped_producer(scene: Scene) -> Iterator[Finding]:
    """Credits wait for somebody to turn them into tasks."""
    yield from _nobody(scene, "producer", Fault.STOPPED_PRODUCER)


def no_worker(scene: Scene) -> Iterator[Finding]:
    """The same of rollout and reward workers."""
    yield from _nobody(scene, "rollout", Fault.NO_WORKER)
    yield from _nobody(scene, "reward", Fault.NO_WORKER)


def fewer_workers(scene: Scene) -> Iterator[Finding]:
    """Than the recipe starts."""
    if not _unexplained(scene) or scene.listened_s < SILENT_S:
        return
    wanted = {"rollout": scene.expected.rollout_workers, "reward": scene.expected.reward_workers}
    for role, number in wanted.items():
        heard = len(scene.of(role))
        known = any(one.role == role and not one.alive for one in scene.workers)
        if 0 < heard < number and not known:
            yield Finding(
                fault=Fault.FEWER_WORKERS,
                severity=Severity.NOTICE,
                who=role,
                what=f"{heard} of {number} {role} workers are heard",
                do=f"the recipe starts {number} ([{role}] workers); one more: run.py {role} RECIPE",
            )


def role_failed(scene: Scene) -> Iterator[Finding]:
    """One that ended by an error just now, or did before it was started again."""
    for one in scene.workers:
        error = _error(one)
        if error and not is_full(error) and not _of_engine(one, error):
            what, _, hint = error.partition(" -> ")
            told = "failed" if one.error else "was started again after"
            yield Finding(
                fault=Fault.ROLE_FAILED,
                severity=Severity.NOTICE if one.alive else Severity.PROBLEM,
                who=one.name,
                what=f"{one.name} {told}: {what}",
                do=hint or f"look at its log: logs/ in the run folder on {one.host}",
            )


def dead_engine_process(scene: Scene) -> Iterator[Finding]:
    """A rollout worker that ended because its engine did."""
    for one in scene.workers:
        error = _error(one)
        if error and _of_engine(one, error):
            what, _, _ = error.partition(" -> ")
            gone = "its supervisor starts it again" if not one.alive else "it runs again"
            yield Finding(
                fault=Fault.DEAD_ENGINE,
                severity=Severity.WARNING if one.alive else Severity.PROBLEM,
                who=one.name,
                what=f"the engine of {one.name} died: {what}",
                do=f"{gone}, its rollouts are with others; if it dies again, look at "
                f"logs/{one.name}.log for memory, driver or model errors",
            )


def is_full(text: str) -> bool:
    """Whether an error is about a disk without space."""
    low = text.lower()
    return any(words in low for words in _FULL)


def _error(one: WorkerSeen) -> str:
    """Its own last word, or what its supervisor saw of the process before it."""
    if one.state == "failed":
        return one.error or "no reason given"
    return one.before


def _of_engine(one: WorkerSeen, error: str) -> bool:
    return one.role == "rollout" and "engine" in error.lower()


def _unexplained(scene: Scene) -> bool:
    """Whether silence would be somebody's fault."""
    return scene.broker.connected and not scene.broker.alarms and not scene.over


def _everybody_silent(scene: Scene) -> bool:
    """Where there were several; or nobody was ever heard for long enough."""
    if not scene.workers:
        return scene.listened_s >= SILENT_S
    return len(scene.workers) > 1 and all(one.silent for one in scene.workers)


def _nobody(scene: Scene, role: str, fault: Fault) -> Iterator[Finding]:
    if not _unexplained(scene) or scene.of(role) or _everybody_silent(scene):
        return
    if scene.run.wanted == "" or scene.listened_s < SILENT_S:
        known = [one for one in scene.workers if one.role == role]
        if not known or any(not one.silent and one.state != "leaving" for one in known):
            return
    queues = _WAITS_IN[role]
    waiting = scene.waiting(*queues)
    yield Finding(
        fault=fault,
        severity=Severity.PROBLEM,
        who=role,
        what=f"no {role} is heard: {waiting} messages wait in {' and '.join(queues)}",
        do=f"start one: run.py {role} RECIPE (with WARREN_BROKER_URL, on any machine)",
    )
