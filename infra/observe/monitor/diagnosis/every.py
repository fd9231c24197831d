"""Every fault that is looked for, the most important first."""

from collections.abc import Callable, Iterator

from infra.observe.monitor.diagnosis import presence, rollouts, training
from infra.observe.monitor.diagnosis.finding import Finding, Severity
from infra.observe.monitor.scene import Scene

RULES: tuple[Callable[[Scene], Iterator[Finding]], ...] = (
    presence.broker_gone,
    presence.broker_alarm,
    presence.all_silent,
    training.full_store,
    training.books,
    presence.trainer_silent,
    presence.dead_engine_process,
    rollouts.silent_engine,
    presence.stopped_producer,
    presence.no_worker,
    training.zero_variance,
    presence.role_failed,
    rollouts.poison_prompt,
    rollouts.stuck_tool,
    training.slow_reward,
    rollouts.version_skew,
    rollouts.too_few_slots,
    presence.worker_silent,
    rollouts.member_died,
    training.paused,
    presence.fewer_workers,
    training.dead_letters,
)
_ORDER = {severity: place for place, severity in enumerate(Severity)}


def diagnose(scene: Scene) -> tuple[Finding, ...]:
    """What is wrong, problems first."""
    found = [finding for rule in RULES for finding in rule(scene)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))
