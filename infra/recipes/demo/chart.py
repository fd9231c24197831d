"""The reward curve of a run as PNG and as lines of text, from `metrics.jsonl`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BAR = 40


def read_curve(metrics: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps and evaluations in order; of what a resumed run wrote twice, the last.

    Raises:
        OSError: There is no such file.
    """
    steps: dict[int, dict[str, Any]] = {}
    evals: dict[int, dict[str, Any]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed
        match entry.get("kind"):
            case "step":
                steps[int(entry["step"])] = entry
            case "eval":
                evals[int(entry["version"])] = entry
    return [steps[n] for n in sorted(steps)], [evals[n] for n in sorted(evals)]


def draw(metrics: Path, png: Path, *, title: str) -> None:
    """Write the curve: reward while training, how often the tool was used, held-out points.

    Raises:
        OSError: A file cannot be read or written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, evals = read_curve(metrics)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    x = [step["step"] for step in steps]
    for key, label, style in _series(steps):
        points = [(n, s[key]) for n, s in zip(x, steps, strict=True) if s.get(key) is not None]
        axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2)
    if evals:
        axes.plot(
            [_step_of(entry, steps) for entry in evals],
            [entry["eval/reward"] for entry in evals],
            "o-",
            color="black",
            label="held-out reward",
        )
    axes.set(xlabel="step", ylabel="mean", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(png)
    pyplot.close(figure)


def table(evals: Sequence[Mapping[str, Any]]) -> str:
    """Held-out reward by version, one bar a line."""
    lines = ["  version   held-out reward"]
    for entry in evals:
        reward = float(entry["eval/reward"])
        bar = "#" * round(reward * _BAR)
        lines.append(f"  {entry['version']:>7}   {reward:.3f}  {bar}")
    return "\n".join(lines)


def _series(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    found = [("arrived/reward", "reward of all rollouts", "C0-")]
    called = sorted({key for step in steps for key in step if key.endswith("/called")})
    found += [(key, "calculator asked", "C1--") for key in called[:1]]
    return [entry for entry in found if any(s.get(entry[0]) is not None for s in steps)]


def _step_of(entry: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> int:
    """An evaluated version is drawn where it had been trained to."""
    if "step" in entry:
        return int(entry["step"])
    behind = [s["step"] for s in steps if int(s.get("version", s["step"])) <= entry["version"]]
    return int(max(behind, default=0)) if entry["version"] else 0
