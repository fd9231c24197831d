"""A replay for the terminal. Whatever came from outside is escaped."""

from collections.abc import Sequence

from consumers.rollout.replay.steps import Difference, Step
from infra.observe.columns import trimmed
from infra.observe.harmless import harmless
from schemas.work import Rollout, Trajectory

WIDTH = 100
_PHASE, _TOKENS = 17, 9


def headline(trajectory: Trajectory) -> str:
    """Which rollout it is, and what became of it."""
    rollout = trajectory.rollout
    progress = rollout.progress
    rewards = ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.items())
    parts = [
        f"rollout {rollout.rollout_id}",
        rollout.purpose,
        f"row {rollout.row}",
        f"{len(progress.tokens)} tokens, {progress.tokens.num_sampled} sampled",
        f"reward {trajectory.reward:g}" + (f" ({rewards})" if rewards else ""),
    ]
    return harmless(" · ".join(parts)) + "\n"


def walk(steps: Sequence[Step]) -> str:
    """One line for each step, under the worker that took it."""
    lines = [f"   # {'state':<{_PHASE}} turn {'tokens':>{_TOKENS}}  what happened"]
    for number, step in enumerate(steps, 1):
        tokens = f"{step.start}-{step.stop}" if step.start != step.stop else str(step.stop)
        begin = f"{number:>4} {step.phase:<{_PHASE}} {step.turn:>4} {tokens:>{_TOKENS}}  "
        lines.append(begin + _said(step, WIDTH - len(begin)))
    return trimmed("\n".join(lines) + "\n")


def verdict(rollout: Rollout, difference: Difference | None) -> str:
    """Equal, with all that was compared; or the first difference."""
    if difference is not None:
        return (
            f"NOT EQUAL: {harmless(difference.where)}\n"
            f"  recorded  {harmless(difference.recorded, limit=400)}\n"
            f"  replayed  {harmless(difference.replayed, limit=400)}\n"
        )
    progress = rollout.progress
    counts = [
        f"{len(progress.tokens)} tokens with mask, versions and log-probabilities",
        counted(len(progress.turns), "turn"),
        counted(len(progress.messages), "message"),
        counted(len(progress.tool_results), "tool result"),
        counted(len(progress.interruptions), "cut"),
    ]
    end = f"{rollout.status}: {rollout.finish_reason}"
    return f"equal: {', '.join(counts)}, {harmless(end)}\n"


def counted(number: int, what: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _said(step: Step, room: int) -> str:
    detail = harmless(step.detail)
    match step.event:
        case "taken":
            what = f"{step.worker} takes it up"
        case "appended":
            what = f"{step.detail}: {step.text!r}"
        case "sampled":
            what = f"v{step.version}: {step.text!r}"
        case "tool":
            what = f"{detail} -> {step.text!r}"
        case "reply":
            what = f"user: {step.text!r}" if step.text else f"user: {detail}"
        case "cut":
            what = f"CUT: {detail}"
        case "ended":
            what = detail
    return harmless(what, limit=max(20, room))
