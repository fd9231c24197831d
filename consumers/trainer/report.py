"""What a step came to: one line for people, one for machines."""

import logging
from collections.abc import Mapping
from typing import Any

from consumers.trainer.books.balance import Books

logger = logging.getLogger(__name__)


def step_line(values: Mapping[str, Any], *, num_steps: int, before: float | None) -> str:
    """One grep-able line.

    Args:
        values: The step's metrics.
        num_steps: Of the run.
        before: The reward that the line before showed, for the arrow.

    The reward is of all trajectories that arrived since the step before: those trained on are
    only the groups with unequal rewards, whose mean hides how well the policy does.
    """
    get = values.get
    reward = get("arrived/reward", get("reward/mean", 0.0))
    arrow = "" if before is None or reward == before else " ▲" if reward > before else " ▼"
    trained = int(get("groups/trained", 0))
    closed = trained + int(get("groups/filtered", 0) + get("groups/stale", 0))
    closed += int(get("groups/dead", 0))
    parts = [
        f"Step {values['step']:4d}/{num_steps}",
        f"{get('time/step_s', 0.0):.1f}s",
        f"reward {reward:.3f}{arrow}",
        f"trainable {trained}/{closed}",
        f"staleness {get('staleness/mean', 0.0):.1f} max {get('staleness/max', 0.0):.0f}",
        f"interrupted {int(get('arrived/interruptions', 0))}",
        f"loss {get('train/loss', 0.0):.4f}",
        f"entropy {get('train/entropy', 0.0):.2f}",
        f"kl {get('train/kl', 0.0):.1e}",
        f"grad {get('train/grad_norm', 0.0):.2f}",
        f"{_thousands(get('perf/tokens_per_s', 0.0))} tok/s",
        f"wait {get('time/wait_s', 0.0):.1f}s",
    ]
    return " | ".join(parts)


def eval_line(values: Mapping[str, Any]) -> str:
    """One grep-able line of an evaluation."""
    other = int(values.get("eval/num_other_version", 0))
    scored, asked = values["eval/num_scored"], values["eval/num_asked"]
    line = f"Eval v{values['version']} | reward {values['eval/reward']:.3f} | {scored}/{asked}"
    line += " scored" if scored == asked else " scored (incomplete)"
    return f"{line} | {other} of other versions" if other else line


def closing_line(books: Books, *, step: int, num_steps: int) -> str:
    """How the run stands when the trainer leaves. Groups stay open where more were asked for than
    `run.steps` steps took, as in a run that is resumed with fewer."""
    if step < num_steps:
        how = f"stopped at step {step} of {num_steps}"
    elif books.open:
        how = (
            f"step {step} is behind the last one, run.steps is {num_steps}: {books.open} groups "
            "stay open until the run is resumed with more steps"
        )
    else:
        how = "the run is complete"
    return (
        f"{how}: {books.issued} groups issued = {books.trained} trained + {books.filtered} "
        f"filtered + {books.stale} stale + {books.dead} dead + {books.open} open"
    )


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
