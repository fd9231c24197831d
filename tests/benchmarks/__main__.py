"""`make bench`: CPU per rollout of the whole path, by role and operation, and how it grows.

`python -m tests.benchmarks [codec|help|path|growth|ledger|replay] [--rollouts N]`
`python -m tests.benchmarks weights_memory [--engine E]`: a worker's memory over weight updates.
`python -m tests.benchmarks joining`: a worker joins from a keyframe and deltas, one is killed.
`python -m tests.benchmarks interruption [--engine E] [--syncs N]`: what a weight update costs what
is in flight. `python -m tests.benchmarks bf16_cuts [--engine E]`: how often a cut changes a token.
`python -m tests.benchmarks soak [--minutes 60] [--folder DIR]`: exit code 1 when anything grows;
`--read DIR/soak.jsonl` shows the table of a former one.
`python -m tests.benchmarks page`: the page on 10,000 rollouts, in a real browser.
`python -m tests.benchmarks observing [--pairs 5] [--steps 40] [--parts recording,monitor]`: what
recording, a monitor, Prometheus and TensorBoard cost the demo.
`python -m tests.benchmarks diagnosis`: seconds until the monitor names each of ten faults.
`python -m tests.benchmarks deltas [--steps 30] [--folder DIR]`: a model, fetched into DIR, trained.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import (
    codec,
    diagnosis,
    joining,
    ledger,
    path,
    raw_pika,
    replay,
    soak,
    weights_memory,
)
from tests.benchmarks.deltas.show import show_deltas
from tests.benchmarks.interruption import show as interruption
from tests.benchmarks.observing import show as observing
from tests.benchmarks.sampler import OPERATIONS

BUDGET_MS = 1.5
KNOWN = (
    "codec, help, path, growth, ledger, replay, deltas, weights_memory, joining, interruption, "
    "bf16_cuts, soak, page, observing, diagnosis"
)
ENGINES = ("vllm", "transformers")
OURS = ("producer", "rollout", "reward", "broker")


def show_codec() -> None:
    """One trajectory of 32,768 tokens."""
    print("codec · one trajectory of 32,768 tokens")
    for name, value in codec.measure(32_768).items():
        print(f"  {name:26s} {value:12,.3f}" if value < 1000 else f"  {name:26s} {value:12,.0f}")


def show_help() -> None:
    """Wall time of `run.py --help`, best of five."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        subprocess.run([sys.executable, "run.py", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.monotonic() - started)
    print(f"run.py --help · best of five {min(times):.3f} s (aim: 0.5 s)")


def show_path(num_rollouts: int) -> None:
    """The path with one worker, split by role and operation, beside raw pika."""
    print(f"path · {num_rollouts:,} short rollouts, one worker, an engine that answers at once")
    with path.Session(workers=1, num_tokens=8) as session:
        (figures,) = asyncio.run(session.drive([1], num_rollouts))
    print("  CPU ms per rollout")
    print(f"  {'':16s}{'total':>8s}" + "".join(f"{name:>13s}" for name in OPERATIONS))
    for role, spent in figures.cpu_ms.items():
        counts = figures.samples.get(role, {})
        num_samples = sum(counts.values())
        split = [spent * counts.get(name, 0) / num_samples for name in OPERATIONS if num_samples]
        print(f"  {role:16s}{spent:8.3f}" + "".join(f"{part:13.3f}" for part in split))
    total = sum(figures.cpu_ms[role] for role in OURS)
    print(f"  in all {total:.3f} ms, without the trainer's side (aim: {BUDGET_MS} ms)")
    size = figures.bodies["trajectory"]
    rate, cpu_ms = raw_pika.measure((size // 2, size, size), num_rollouts)
    print(
        f"  {figures.rate:,.0f} rollouts/s · raw pika, same bodies: {rate:,.0f}/s at "
        f"{cpu_ms:.3f} ms · {figures.rate / rate:.2f} of it"
    )


def show_growth(num_rollouts: int) -> None:
    """More workers, longer rollouts."""
    print("growth · CPU ms per rollout in all, rollouts/s")
    counts = (1, 2, 4, 8, 16)
    with path.Session(workers=counts[-1], num_tokens=100) as session:
        for workers, figures in zip(
            counts, asyncio.run(session.drive(counts, num_rollouts)), strict=True
        ):
            show_sum(f"{workers:3d} workers,    100 tokens", figures)
    for num_tokens in (100, 1_000, 10_000):
        with path.Session(workers=1, num_tokens=num_tokens) as session:
            (figures,) = asyncio.run(session.drive([1], num_rollouts))
        show_sum(f"  1 worker, {num_tokens:6,d} tokens", figures)


def show_sum(what: str, figures: path.Figures) -> None:
    """One line."""
    total = sum(figures.cpu_ms[role] for role in OURS)
    print(f"  {what} {total:8.3f} ms {figures.rate:8,.0f}/s", flush=True)


def show_ledger(num_groups: int = 10_000_000) -> None:
    """Ten million closed groups."""
    print(f"ledger · {num_groups:,} closed groups (aim: 3 MB)")
    for name, value in ledger.measure(num_groups).items():
        print(f"  {name:26s} {value:12,.3f}")


def show_replay(num_steps: int = 40) -> None:
    """Going through a journal again."""
    print(f"replay · {num_steps} steps of a tiny model (aim: at least as fast as at first)")
    for name, value in replay.measure(num_steps).items():
        print(f"  {name:26s} {value:12,.3f}")


def show_page(num_rollouts: int) -> None:
    """In Chromium, from the navigation to the painted frame."""
    from tests.benchmarks import page  # the browser's driver is for developers only

    print(f"page · {num_rollouts:,} rollouts, seconds (aim: first paint in about 1)")
    for name, value in page.measure(num_rollouts).items():
        print(f"  {name:36s} {value:8.2f}", flush=True)


def show_bf16_cuts(engines: Sequence[str]) -> None:
    """Rounding, not weights, changes these tokens."""
    from tests.benchmarks import bf16_cuts  # torch takes seconds to import

    bf16_cuts.show(engines)


def show_soak(minutes: float, folder: Path | None, former: Path | None) -> None:
    """A run whose memory, channels, tasks and files are to stay as they are."""
    if former is not None:
        flat = soak.show_again(former)
    elif folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        flat = asyncio.run(soak.soak(minutes, folder))
    else:
        with tempfile.TemporaryDirectory(prefix="warren-soak-") as scratch:
            flat = asyncio.run(soak.soak(minutes, Path(scratch)))
    if not flat:
        sys.exit(1)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("what", nargs="*", default=["codec", "help", "path", "growth"])
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--syncs", type=int, default=20, help="weight updates in each mode")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the soak")
    parser.add_argument("--pairs", type=int, default=5, help="of runs, observed and not")
    parser.add_argument("--parts", default="", help="of observing, comma-separated; all")
    parser.add_argument(
        "--folder", type=Path, help="of the soak's run, the deltas' model, or the observed runs"
    )
    parser.add_argument("--steps", type=int, help="of the deltas' model (30), or observed (40)")
    parser.add_argument("--read", type=Path, help="samples of a former soak, to show again")
    parser.add_argument("--engine", action="append", help="one of several; may be repeated")
    options = parser.parse_args()
    for what in options.what:
        match what:
            case "codec":
                show_codec()
            case "help":
                show_help()
            case "path":
                show_path(options.rollouts)
            case "growth":
                show_growth(max(250, options.rollouts // 20))
            case "ledger":
                show_ledger()
            case "replay":
                show_replay()
            case "deltas":
                show_deltas(options.steps or 30, options.folder)
            case "weights_memory":
                weights_memory.show(tuple(options.engine or ("transformers", "vllm")))
            case "joining":
                joining.show()
            case "interruption":
                interruption.measure(options.engine or ENGINES, options.syncs)
            case "bf16_cuts":
                show_bf16_cuts(options.engine or ENGINES)
            case "page":
                show_page(options.rollouts)
            case "observing":
                parts = [part for part in options.parts.split(",") if part] or observing.PARTS
                observing.show(options.pairs, options.steps or 40, options.folder, parts)
            case "diagnosis":
                sys.exit(0 if diagnosis.show() else 1)
            case "soak":
                show_soak(options.minutes, options.folder, options.read)
            case _:
                parser.error(f"{what!r} is none of {KNOWN}")


if __name__ == "__main__":
    main()
