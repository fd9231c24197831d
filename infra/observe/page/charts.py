"""Columns of the metrics file for charts: every number of every step, thinned to what a screen
can show."""

import math
from typing import Any

from infra.observe.page.rollout import spread
from infra.observe.page.runs import Run, number_in
from infra.runs.metrics import newest_lines

MAX_POINTS = 400
_NOT_DRAWN = frozenset({"step", "kind"})


def chart_columns(run: Run) -> dict[str, Any]:
    """`steps` and `evals`: an x axis and a column for each name; None where there is no value.

    Long runs are thinned: each point is the mean of `every` steps in a row.
    """
    steps = list(newest_lines(run.folder.metrics, "step", "step").values())
    evals = list(newest_lines(run.folder.metrics, "eval", "version").values())
    every = math.ceil(len(steps) / MAX_POINTS) or 1
    return {
        "every": every,
        "steps": _columns(steps, "step", every),
        "evals": _columns(evals, "step", 1),
    }


def _columns(lines: list[dict[str, Any]], axis: str, every: int) -> dict[str, Any]:
    names = {name: None for line in lines for name, value in line.items() if _drawn(name, value)}
    chunks = [lines[start : start + every] for start in range(0, len(lines), every)]
    columns = {name: [_mean(name, chunk) for chunk in chunks] for name in names}
    return {"x": [number_in(chunk[-1], axis) or 0 for chunk in chunks], "columns": columns}


def _drawn(name: str, value: Any) -> bool:
    return name not in _NOT_DRAWN and isinstance(value, int | float) and not isinstance(value, bool)


def _mean(name: str, chunk: list[dict[str, Any]]) -> float | None:
    values = [line[name] for line in chunk if isinstance(line.get(name), int | float)]
    finite = [float(value) for value in values if math.isfinite(value)]
    mean = spread(finite)["mean"]
    return None if mean is None else float(f"{mean:.6g}")
