"""Faults of the rollout side: engines, tools, versions, poison, slots."""

from collections.abc import Iterator

from infra.observe.monitor.clean import clean, human_seconds
from infra.observe.monitor.diagnosis.finding import Fault, Finding, Severity
from infra.observe.monitor.diagnosis.presence import is_full
from infra.observe.monitor.scene import Scene

ENGINE_S = 8.0
"""Without a token to anybody, once it has given some."""
FIRST_TOKEN_S = 60.0
"""Before the first one: engines compile."""
TOOL_S = 5.0
TOOL_TIMES = 5.0
"""A call that takes so many times what its tool usually takes is stuck."""
BEHIND_S = 8.0
BEHIND_TIMES = 4.0
"""The same of an update of weights."""
BACKLOG = 2.0
"""Rollouts that wait, per slot, from which slots are too few."""
EVALUATED_S = 5.0
"""An evaluation goes first: what waited for it needs so long to be taken up."""
_RECENT_S = 60.0


def silent_engine(scene: Scene) -> Iterator[Finding]:
    """One that gives no token to anybody."""
    for one in scene.of("rollout"):
        report = one.rollout
        if report is None or not report.generating:
            continue
        began = one.counters.get("tokens_generated", 0.0) > 0
        if report.token_age_s < (ENGINE_S if began else FIRST_TOKEN_S):
            continue
        yield Finding(
            fault=Fault.DEAD_ENGINE,
            severity=Severity.PROBLEM,
            who=one.name,
            what=f"the {clean(report.engine)} engine of {one.name} on {one.host} gave no token for "
            f"{human_seconds(report.token_age_s)} to {report.generating} rollouts",
            do=f"kill the worker (process {one.pid}): its rollouts go to others; left alone, it "
            f"gives up after [rollout] stall_timeout, {human_seconds(report.stall_timeout_s)}",
        )


def stuck_tool(scene: Scene) -> Iterator[Finding]:
    """A call that takes far longer than its tool usually does."""
    for one in scene.of("rollout"):
        tool = one.rollout.tool if one.rollout is not None else None
        if tool is None:
            continue
        if not tool.given_up and tool.running_s < max(TOOL_S, TOOL_TIMES * tool.usual_s):
            continue
        usual = f", usually {human_seconds(tool.usual_s)}" if tool.usual_s else ""
        was = "was given up after" if tool.given_up else "has run for"
        yield Finding(
            fault=Fault.STUCK_TOOL,
            severity=Severity.WARNING,
            who=clean(tool.name, 80),
            what=f"tool {clean(tool.name, 80)!r} {was} {human_seconds(tool.running_s)}{usual} "
            f"(rollout {clean(tool.rollout_id, 40)} on {one.name})",
            do=f"see what it waits for; each such call holds a slot until [rollout] tool_timeout, "
            f"{human_seconds(tool.limit_s)}: lower it, or mend the tool",
        )


def version_skew(scene: Scene) -> Iterator[Finding]:
    """A worker that does not get to the newest version."""
    newest = scene.run.version
    for one in scene.of("rollout"):
        report = one.rollout
        refusal = report.refusal if report is not None else ""
        if report is None or one.version < 0 or is_full(refusal):
            continue
        if one.refuses >= 0 and refusal:
            why = f"it cannot serve version {one.refuses}: {clean(refusal)}"
            do = "look at the file or the store that it names; the version before serves on, and "
            do += "the next one is tried again"
        elif report.behind_s >= BEHIND_S + BEHIND_TIMES * report.usual_update_s:
            why = f"behind for {human_seconds(report.behind_s)}"
            if report.usual_update_s:
                why += f", an update usually takes {human_seconds(report.usual_update_s)}"
            doing = f" (it waits for {one.waiting_for})" if one.waiting_for else ""
            do = f"see why loading takes so long on {one.host}{doing}: the way to the weight "
            do += "store, its disk, or its engine"
        else:
            continue
        lag = f", {newest - one.version} behind" if newest > one.version else ""
        yield Finding(
            fault=Fault.VERSION_SKEW,
            severity=Severity.WARNING,
            who=one.name,
            what=f"{one.name} serves version {one.version}, the newest is {newest}{lag}: {why}",
            do=f"{do}; beyond max_version_lag ({scene.expected.max_version_lag}) it takes no work",
        )


def poison_prompt(scene: Scene) -> Iterator[Finding]:
    """Rollouts that take down who takes them."""
    reports = [one.trainer for one in scene.of("trainer")]
    told = [*(one.rollout for one in scene.of("rollout")), *reports]
    returns: dict[str, int] = {}
    for report in told:
        for suspect in report.suspects if report is not None else ():
            name = clean(suspect.rollout_id, 40)
            returns[name] = max(returns.get(name, 0), suspect.returns)
    if not returns:
        return
    worst, times = max(returns.items(), key=lambda entry: (entry[1], entry[0]))
    others = f" (beside it: {len(returns) - 1} more)" if len(returns) > 1 else ""
    yield Finding(
        fault=Fault.POISON_PROMPT,
        severity=Severity.WARNING,
        who=worst,
        what=f"rollout {worst} came back {times} times without progress{others}: workers that "
        "take it die or give it back",
        do=f"look at the prompt of group {worst.partition('.')[0]} and at what its tools do; from "
        "3 returns on it runs alone, after 6 it is a dead letter and its group goes on without it",
    )


def member_died(scene: Scene) -> Iterator[Finding]:
    """One that was given up just now."""
    for one in scene.of("trainer"):
        last = one.trainer.given_up if one.trainer is not None else None
        if last is None or last.ago_s > _RECENT_S:
            continue
        total = one.counters.get("failed", 0.0)
        returned = "came back" in last.error and "without progress" in last.error
        yield Finding(
            fault=Fault.POISON_PROMPT if returned else Fault.MEMBER_DIED,
            severity=Severity.WARNING if returned else Severity.NOTICE,
            who=clean(last.rollout_id, 40),
            what=f"rollout {clean(last.rollout_id, 40)} was given up: {clean(last.error)} "
            f"({total:.0f} in all)",
            do="run.py dead list shows each with its reason; its group goes on without it",
        )


def too_few_slots(scene: Scene) -> Iterator[Finding]:
    """Work waits for slots, the trainer for work."""
    used, slots = scene.slots
    waiting = scene.ready("prompts", "cancel_queue")
    trainer = scene.trainer
    if not slots or used < 0.9 * slots or waiting < BACKLOG * slots or trainer is None:
        return
    if scene.run.evaluated_s is not None and scene.run.evaluated_s < EVALUATED_S:
        return
    share = scene.share("wait_s")
    if trainer.waiting_s < 2.0 and (share is None or share < 0.5):
        return
    workers = len(scene.of("rollout"))
    yield Finding(
        fault=Fault.TOO_FEW_SLOTS,
        severity=Severity.WARNING,
        who="rollout",
        what=f"{used} of {slots} slots are used and {waiting} rollouts wait for one, while the "
        "trainer waits for a batch",
        do=f"raise [rollout] slots (now {slots // max(1, workers)} a worker) as far as memory "
        "allows, or start more workers: run.py rollout RECIPE",
    )
