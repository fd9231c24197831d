"""The pairs, and what they say together."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.observing.arm import BARE, OBSERVED, Figures, measure

AIM = 0.97
"""Throughput of an observed run, as a share of a bare one's."""


def show(pairs: int, steps: int, folder: Path | None) -> None:
    """Print each pair, then medians with their spread.

    Args:
        pairs: One run of each kind; which goes first alternates.
        steps: Of a run.
        folder: For run folders; None for one that is thrown away.
    """
    with tempfile.TemporaryDirectory(prefix="warren-observing-") as scratch:
        runs = (folder or Path(scratch)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        prepare = [sys.executable, "-m", "infra.recipes.demo.prepare", "--seed", "0"]
        subprocess.run([*prepare, "--runs", str(runs)], check=True, stdout=subprocess.DEVNULL)
        print(
            f"observing · the demo, {steps} steps, {pairs} pairs · {os.cpu_count()} cores\n"
            f"  bare {' '.join(BARE)}\n  observed {' '.join(OBSERVED)}, monitor, Prometheus\n"
            f"  {'pair':4s}{'bare/s':>9s}{'observed/s':>12s}{'ratio':>8s}"
            f"{'bare ms':>10s}{'observed ms':>13s}{'ratio':>8s}{'load':>7s}",
            flush=True,
        )
        found = [_pair(number, runs, steps) for number in range(pairs)]
    _sum("throughput", [seen.rate / bare.rate for bare, seen in found], f"aim: {AIM}")
    _sum("CPU per rollout", [seen.cpu_ms / bare.cpu_ms for bare, seen in found], "any load")


def _pair(number: int, runs: Path, steps: int) -> tuple[Figures, Figures]:
    load = os.getloadavg()[0]
    kinds = {"bare": (BARE, False), "observed": (OBSERVED, True)}
    order = list(kinds)[:: 1 if number % 2 == 0 else -1]
    found = {}
    for kind in order:
        settings, watched = kinds[kind]
        found[kind] = measure(runs, f"observing-{kind}", settings, steps=steps, watched=watched)
    bare, seen = found["bare"], found["observed"]
    print(
        f"  {number + 1:4d}{bare.rate:9.1f}{seen.rate:12.1f}{seen.rate / bare.rate:8.3f}"
        f"{bare.cpu_ms:10.2f}{seen.cpu_ms:13.2f}{seen.cpu_ms / bare.cpu_ms:8.3f}{load:7.1f}",
        flush=True,
    )
    return bare, seen


def _sum(what: str, ratios: list[float], note: str) -> None:
    print(
        f"  {what}, observed to bare: median {statistics.median(ratios):.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f} ({note})",
        flush=True,
    )
