"""Every metric that Warren tells, in one table: `README.md` beside this file shows it.

`python -m infra.observe.metrics.catalog` prints that page; a test compares the two, and the table
with what a run really writes.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from infra.observe.metrics.beats import BEATS
from infra.observe.metrics.lines import ENDS, EVALS, STEPS
from infra.observe.metrics.metric import Metric, Source

CATALOG: tuple[Metric, ...] = (*STEPS, *EVALS, *ENDS, *BEATS)
PAGE = Path(__file__).with_name("README.md")

_EXACT = {metric.name: metric for metric in CATALOG if not metric.labels}
_PATTERNS = [(metric.pattern, metric) for metric in CATALOG if metric.labels]

_HEAD = """\
# Metrics

Each name is what `metrics.jsonl`, TensorBoard, W&B and trackio use; the last column is what the
Prometheus endpoint of its role serves, with the labels `run` and `worker`. A `{part}` of a name
stands for one of several; Prometheus has it as a label, and a histogram is a gauge for each of its
buckets. Counters begin at 0 with their process unless they say otherwise.
"""
_TITLES = {
    Source.STEP: "Of a step (trainer; a line of kind `step`)",
    Source.EVAL: "Of an evaluation (trainer; a line of kind `eval`)",
    Source.END: "Of the whole run (trainer; the line of kind `end`)",
    Source.HEARTBEAT: "Of a process (heartbeats of every role, every two seconds)",
}


def find(name: str) -> tuple[Metric, dict[str, str]] | None:
    """The entry of a name, and what its parts are; None when the catalogue has none."""
    if (metric := _EXACT.get(name)) is not None:
        return metric, {}
    for pattern, metric in _PATTERNS:
        if matched := pattern.fullmatch(name):
            return metric, dict(zip(metric.labels, matched.groups(), strict=True))
    return None


def page() -> str:
    """The catalogue as Markdown."""
    parts = [_HEAD]
    for source, title in _TITLES.items():
        parts += [f"\n## {title}\n\n", *_table(m for m in CATALOG if m.source is source)]
    return "".join(parts)


def _table(metrics: Iterable[Metric]) -> Iterable[str]:
    yield "| name | kind | unit | meaning | Prometheus |\n|---|---|---|---|---|\n"
    for one in metrics:
        served = "" if one.source is Source.END else f"`{one.prometheus}`"
        yield f"| `{one.name}` | {one.kind} | {one.unit} | {one.meaning} | {served} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
