"""What a run came to, computed from its folder alone."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.roles.fleet.run_folder import write_atomically
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import newest_lines, read_metrics
from schemas.journal import Batch

MEMBERS = ("failed", "replaced", "reissued", "late", "requeued")
LEDGER = ("issued", "trained", "filtered", "stale", "dead", "open", "balanced")


def write_summary(folder: RunFolder) -> dict[str, Any]:
    """Compute `summary.json` and write it.

    Raises:
        OSError: The folder cannot be read or written.
        ValueError: A line of it is not what it should be.
    """
    summary = summarise(folder)
    write_atomically(folder.summary, json.dumps(summary, indent=2) + "\n")
    return summary


def summarise(folder: RunFolder) -> dict[str, Any]:
    """The numbers of `summary.json`. What the run did not measure is None.

    Cuts are counted over every rollout that came in; in a run without an end, over the trained.
    """
    config = json.loads(folder.config.read_text(encoding="utf-8"))
    steps = list(newest_lines(folder.metrics, "step", "step").values())
    evals = list(newest_lines(folder.metrics, "eval", "version").values())
    ends = list(read_metrics(folder.metrics, "end"))
    resources = _resources(folder.resources)
    versions = [int(line["version"]) for line in (*steps, *evals, *ends) if "version" in line]
    staleness = [line["staleness/mean"] for line in steps if "staleness/mean" in line]
    return {
        "run": config["run"]["name"],
        "steps": len(steps),
        "reward_start": evals[0].get("eval/reward") if evals else None,
        "reward_final": evals[-1].get("eval/reward") if evals else None,
        "weight_versions": max(versions, default=0),
        **_cuts(steps, ends[-1] if ends else {}),
        "staleness_mean": sum(staleness) / len(staleness) if staleness else None,
        "staleness_max": max((line.get("staleness/max", 0) for line in steps), default=None),
        "ledger": _ledger(ends[-1]) if ends else None,
        "members": _members(ends[-1]) if ends else None,
        "trained_twice": trained_twice(folder),
        "wall_seconds": _wall_seconds(resources),
        "peak_pss_bytes": max((line["pss_bytes"] for line in resources), default=None),
        "engine": config["rollout"]["engine"],
        "seed": config["run"]["seed"],
    }


def trained_twice(folder: RunFolder) -> int:
    """Rollouts that the journal puts into the batches of two different steps."""
    members: dict[int, tuple[str, ...]] = {}
    for entry in JournalReader(folder.journal).records():
        if isinstance(entry.record, Batch):
            members[entry.record.step] = entry.record.members
    counts = Counter(rollout_id for batch in members.values() for rollout_id in batch)
    return sum(count > 1 for count in counts.values())


def show_summary(summary: Mapping[str, Any]) -> str:
    """As a table for the screen."""
    rows: list[tuple[str, str]] = []
    for key, value in summary.items():
        if key == "ledger" and value is not None:
            counts = " ".join(f"{name} {value[name]}" for name in LEDGER if name != "balanced")
            rows.append((key, f"{counts} {'balanced' if value['balanced'] else 'NOT BALANCED'}"))
        elif key == "members" and value is not None:
            rows.append((key, " ".join(f"{name} {count}" for name, count in value.items())))
        elif key == "peak_pss_bytes" and value is not None:
            rows.append((key, f"{value} ({value / 2**30:.2f} GiB)"))
        else:
            rows.append((key, _shown(value)))
    width = max(len(key) for key, _ in rows)
    return "\n" + "".join(f"  {key:<{width}}  {value}\n" for key, value in rows) + "\n"


def _cuts(steps: Sequence[Mapping[str, Any]], end: Mapping[str, Any]) -> dict[str, Any]:
    """A finished rollout's cut is a snapshot that somebody resumed.

    `prefix_hit_rate` is the share of the requests' tokens that engines found in their caches.
    """

    def count(name: str) -> int:
        if "total/trajectories" in end:
            return int(end.get(f"total/{name}", 0) + end.get(f"total/eval/{name}", 0))
        return int(sum(line.get(f"batch/{name}", 0) for line in steps))

    prefilled, cached = count("tokens_prefilled"), count("tokens_cached")
    return {
        "interruptions": count("interruptions"),
        "snapshots_resumed": count("interruptions"),
        "snapshots_resumed_elsewhere": count("resumed_elsewhere"),
        "tokens_carried": count("tokens_carried"),
        "tokens_reprefilled": count("tokens_reprefilled"),
        "tokens_prefilled": prefilled,
        "prefix_hit_rate": cached / (prefilled + cached) if prefilled + cached else None,
    }


def _members(end: Mapping[str, Any]) -> dict[str, int]:
    """Rollouts that failed, were asked for once more, were lost, came when decided, or were
    tried again by a person."""
    return {name: int(end.get(f"total/{name}", 0)) for name in MEMBERS}


def _ledger(end: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: end.get(f"ledger/{name}", 0) for name in LEDGER}
    return {name: bool(v) if name == "balanced" else int(v) for name, v in found.items()}


def _resources(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def _wall_seconds(resources: Sequence[Mapping[str, Any]]) -> float | None:
    """Of all starts together: the clock of a resumed run begins again."""
    total, last = 0.0, 0.0
    for line in resources:
        if line["elapsed_s"] < last:
            total += last
        last = line["elapsed_s"]
    return round(total + last, 1) if resources else None


def _shown(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
