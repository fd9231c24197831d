"""The figures of every engine and mode, as a table."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers.utils import logging as transformers_logging

from infra.amqp.local_broker import LocalBroker
from tests.benchmarks.interruption.play import IN_FLIGHT, Course, Play, build_demo_model, settled

ENGINES = ("vllm", "transformers")
MODES = ("republish", "in_flight", "drain")
AIM_MS = 250
_PHASES = {
    "heard-told": ("heard", "told"),
    "told-stopped": ("told", "stopped"),
    "stopped-confirmed": ("stopped", "loading"),
    "heard-confirmed": ("heard", "loading"),
    "swap": ("loading", "swapped"),
    "to first token": ("swapped", "first_token"),
    "stopped-first token": ("stopped", "first_token"),
}


def measure(engines: Sequence[str], num_syncs: int) -> None:
    """Print a table for each engine."""
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        node = LocalBroker(Path(scratch) / "broker")
        node.start(timeout_s=120.0)
        try:
            model_folder = Path(scratch) / "model"
            model, size = build_demo_model(model_folder)
            for engine in engines:
                print(f"interruption · {engine} · {size:,} parameters, {IN_FLIGHT} in flight")
                print(f"  ms, p50/p95  {''.join(f'{name:>20s}' for name in _PHASES)}", flush=True)
                for mode in MODES:
                    folder = Path(scratch) / f"{engine}-{mode}"
                    play = Play(
                        folder, model_folder, model, engine=engine, on_sync=mode, url=node.url
                    )
                    course = asyncio.run(play.run(num_syncs))
                    print(f"  {mode:13s}{_row(course, mode)}\n{_books(course)}", flush=True)
        finally:
            node.kill()


def _row(course: Course, mode: str) -> str:
    """Turns that happen to end are no stop where none is asked for."""
    cells = ""
    for begin, end in _PHASES.values():
        if mode == "in_flight" and "stopped" in (begin, end):
            cells += f"{'-':>20s}"
            continue
        times = [
            1000 * (sync[end] - sync[begin])
            for sync in settled(course)
            if sync[begin] and sync[end] >= sync[begin]
        ]
        cell = "-"
        if times:
            half, most = np.percentile(times, [50, 95])
            cell = f"{half:,.0f}/{most:,.0f}"
        cells += f"{cell:>20s}"
    return cells


def _books(course: Course) -> str:
    syncs = settled(course)
    lost = course.num_sampled - course.num_kept
    in_flight = np.median([sync["in_flight"] for sync in syncs])
    again = course.num_reprefilled + course.num_recomputed
    return (
        f"    {len(syncs)} syncs with {in_flight:.0f} in flight (median) · "
        f"{course.num_interrupted} rollouts cut · {course.num_rollouts} finished, "
        f"{course.num_repeated} of them twice\n"
        f"    {course.num_sampled:,} tokens sampled, {course.num_kept:,} kept, {lost:,} lost · "
        f"{again:,} prefilled again ({course.num_recomputed:,} of them in the engine), "
        f"{again / len(syncs):,.0f} per sync · {course.num_sampled / course.wall_s:,.0f} tokens/s"
    )
