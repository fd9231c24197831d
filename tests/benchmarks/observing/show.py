"""The pairs, and what they say together."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tests.benchmarks.observing.arm import PARTS, Figures, measure, settings

AIM = 0.97
"""Throughput of an observed run, as a share of a bare one's."""
_Pair = tuple[Figures, Figures]


def show(pairs: int, steps: int, folder: Path | None, parts: Collection[str] = PARTS) -> None:
    """Print each pair, then medians with their spread, then who spent the CPU time.

    Args:
        pairs: One run of each kind; which goes first alternates.
        steps: Of a run.
        folder: For run folders; None for one that is thrown away.
        parts: What watches the observed one.
    """
    with tempfile.TemporaryDirectory(prefix="warren-observing-") as scratch:
        runs = (folder or Path(scratch)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        prepare = [sys.executable, "-m", "infra.recipes.demo.prepare", "--seed", "0"]
        subprocess.run([*prepare, "--runs", str(runs)], check=True, stdout=subprocess.DEVNULL)
        print(
            f"observing · the demo, {steps} steps, {pairs} pairs · {os.cpu_count()} cores\n"
            f"  bare {' '.join(settings(()))}\n  observed {' '.join(parts)}\n"
            f"  {'pair':4s}{'bare/s':>9s}{'observed/s':>12s}{'ratio':>8s}"
            f"{'bare ms':>10s}{'observed ms':>13s}{'ratio':>8s}{'load':>7s}",
            flush=True,
        )
        found = [_pair(number, runs, steps, parts) for number in range(pairs)]
    _sum("throughput", [seen.rate / bare.rate for bare, seen in found], f"aim: {AIM}")
    ratios = [seen.total_cpu_ms / bare.total_cpu_ms for bare, seen in found]
    _sum("CPU per rollout", ratios, "any load")
    _spenders(found)


def _pair(number: int, runs: Path, steps: int, parts: Collection[str]) -> _Pair:
    load = os.getloadavg()[0]
    kinds: dict[str, Collection[str]] = {"bare": (), "observed": parts}
    order = list(kinds)[:: 1 if number % 2 == 0 else -1]
    found = {kind: measure(runs, f"observing-{kind}", kinds[kind], steps=steps) for kind in order}
    bare, seen = found["bare"], found["observed"]
    print(
        f"  {number + 1:4d}{bare.rate:9.1f}{seen.rate:12.1f}{seen.rate / bare.rate:8.3f}"
        f"{bare.total_cpu_ms:10.2f}{seen.total_cpu_ms:13.2f}"
        f"{seen.total_cpu_ms / bare.total_cpu_ms:8.3f}{load:7.1f}",
        flush=True,
    )
    return bare, seen


def _sum(what: str, ratios: list[float], note: str) -> None:
    print(
        f"  {what}, observed to bare: median {statistics.median(ratios):.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f} ({note})",
        flush=True,
    )


def _spenders(found: Sequence[_Pair]) -> None:
    print(f"  {'CPU ms per rollout':20s}{'bare':>9s}{'observed':>10s}{'more':>9s}  (medians)")
    total = statistics.median(bare.total_cpu_ms for bare, _ in found)
    for who in sorted({who for _, seen in found for who in seen.cpu_ms}):
        before = _median(bare.cpu_ms.get(who, 0.0) for bare, _ in found)
        after = _median(seen.cpu_ms.get(who, 0.0) for _, seen in found)
        more = (after - before) / total
        print(f"  {who:20s}{before:9.3f}{after:10.3f}{more:9.2%}", flush=True)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
