"""An hour of an undisturbed run: nothing in it may grow with time.

    run.py up (storm recipe, simulated engine, unhurried) -> every 10 s a sample of each process,
    the broker and the run folder -> soak.jsonl -> a straight line through each quantity -> verdict

The first tenth is warm-up. In it and for some minutes after, bounded memories fill: pydantic's
cache of strings (16,384), a worker's memory of settled messages (4,096), the broker's first
write-ahead log (64 MiB). A run of some minutes is therefore called not flat.

A quantity of bytes is flat when it grows by less than 5 % of its mean an hour, a count when by
less than one an hour, or by less than three standard errors. The slope over the last half alone
is shown, too: what fills a memory bends, what leaks does not. Shown and not judged: the
proportional set size, which changes with whoever else uses the same libraries; the run folder,
where metrics and logs grow with the steps, the journal up to `checkpoint.journal_bytes`.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from infra.amqp.admin import Management
from infra.amqp.connection import Broker
from infra.amqp.errors import ManagementUnreachable
from infra.amqp.url import management_url
from infra.recipes.storm import prepare
from infra.roles.errors import ExitCode
from infra.roles.settings import load_config
from infra.runs.folder import RunFolder
from infra.storm.runs import UpProcess, write_recipe
from infra.storm.watch import StepReader, Watch
from tests.benchmarks.soak_sample import Eyes, Sample
from tests.benchmarks.soak_trend import COUNT_BOUND, RELATIVE_BOUND, trend

RECIPE = Path(__file__).resolve().parents[2] / "infra/recipes/storm.toml"
FRONT_DOOR = RECIPE.parents[2] / "run.py"
PERIOD_S = 10.0
REPORT_S = 300.0
WARM_UP = 0.1
"""Of the time."""
UNHURRIED = (
    "run.name=soak",
    "run.steps=1000000",
    "rollout.slots=8",
    "rollout.engine_options={ mean_tokens = 20, spread = 0.6, token_s = 0.1, tick_s = 0.25 }",
)
_BEGIN_S = 240.0
_LEAVE_S = 120.0
_MEBI = 1024.0**2

Row = tuple[float, Sample]
"""Seconds since the first sample, and what was seen."""


async def soak(minutes: float, scratch: Path) -> bool:
    """Run, watch, print; whether everything was flat and nothing ended.

    Args:
        minutes: How long samples are taken.
        scratch: Becomes the folder of run folders; a former soak in it is purged.
    """
    making = [sys.executable, "-m", prepare.__name__, "--runs", str(scratch)]
    subprocess.run(making, check=True)  # apart: it imports half a gigabyte
    folder = scratch / prepare.NAME
    settings = [
        *UNHURRIED,
        f"run.dir={scratch}",
        f"model.path={folder / 'model'}",
        f"data.train.0.path={folder / 'train.jsonl'}",
    ]
    config = load_config(RECIPE, settings)
    recipe = write_recipe(config, scratch / "soak-recipe.json")
    run = RunFolder.of(config)
    run.broker_url.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = scratch / "soak-up.log"
    process = UpProcess(FRONT_DOOR, recipe, "--purge", log=log, environment=environment)
    try:
        async with _eyes(process, run, config.run.name) as (eyes, watch):
            breaches, rows = await _sample(process, eyes, watch, scratch, 60.0 * minutes)
        flat = show(rows, num_steps=watch.step())
        process.leave()
        code = await process.ended(_LEAVE_S)
        if code != ExitCode.INTERRUPTED:
            breaches.append(f"`up`, told to leave: {code}")
    finally:
        process.kill()
    for breach in breaches:
        print(f"  BREACH {breach}")
    return flat and not breaches


@asynccontextmanager
async def _eyes(process: UpProcess, run: RunFolder, name: str) -> AsyncIterator[tuple[Eyes, Watch]]:
    """Once the run steps."""
    deadline = time.monotonic() + _BEGIN_S
    while not run.broker_url.exists():
        _still_begins(process, deadline)
        await asyncio.sleep(0.5)
    url = run.broker_url.read_text(encoding="utf-8").strip()
    client = Broker(url, run=name, app_id="soak", heartbeat_s=60)
    await client.start()
    watch = Watch(client, run)
    listening = asyncio.gather(watch.run(), _hear_broadcasts(client))
    try:
        while watch.step() < 1:
            _still_begins(process, deadline)
            await asyncio.sleep(0.5)
        management = Management(management_url(url), timeout_s=30.0)
        yield (
            Eyes(up=process.pid, folder=run, run=name, management=management, watch=watch),
            watch,
        )
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await client.close(1.0)


async def _hear_broadcasts(client: Broker) -> None:
    """Every client has a queue of them, which would fill."""
    async for _ in client.control():
        pass


def _still_begins(process: UpProcess, deadline: float) -> None:
    """Raises: RuntimeError: It ended, or takes too long."""
    if process.exit_code is not None or time.monotonic() > deadline:
        raise RuntimeError(f"the run did not begin (exit code {process.exit_code})")


async def _sample(
    process: UpProcess, eyes: Eyes, watch: Watch, scratch: Path, duration_s: float
) -> tuple[list[str], list[Row]]:
    """What must not have happened, and the samples."""
    breaches: list[str] = []
    rows: list[Row] = []
    began, fleet, step, reported = time.monotonic(), dict(eyes.fleet()), watch.step(), 0.0
    with (scratch / "soak.jsonl").open("w", encoding="utf-8") as file:
        while (elapsed := time.monotonic() - began) < duration_s:
            if process.exit_code is not None:
                breaches.append(f"`up` ended after {elapsed:.0f} s, exit code {process.exit_code}")
                break
            try:
                rows.append((elapsed, await eyes.look()))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
            except ManagementUnreachable as error:
                print(f"  after {elapsed:.0f} s no sample: {error}", flush=True)
            if (now := dict(eyes.fleet())) != fleet:
                breaches.append(f"after {elapsed:.0f} s other processes: {fleet} -> {now}")
                fleet = now
            if elapsed - reported >= REPORT_S:
                reported = elapsed
                show(rows, num_steps=watch.step())
                if watch.step() == step:
                    breaches.append(f"no step in {REPORT_S:.0f} s before {elapsed:.0f} s")
                step = watch.step()
            await asyncio.sleep(PERIOD_S - (time.monotonic() - began) % PERIOD_S)
    return breaches, rows


def show_again(samples: Path) -> bool:
    """The table of a former soak, from its `soak.jsonl`."""
    rows: list[Row] = [
        (elapsed, sample) for elapsed, sample in map(json.loads, samples.read_text().splitlines())
    ]
    metrics = samples.parent / "soak" / "metrics.jsonl"
    return show(rows, num_steps=StepReader(metrics).newest())


def show(rows: Sequence[Row], *, num_steps: int) -> bool:
    """Print the table; whether everything is flat.

    Returns:
        False, too, when there are too few samples to tell.
    """
    until = rows[-1][0] if rows else 0.0
    kept = [row for row in rows if row[0] >= WARM_UP * until]
    print(f"soak · {until / 60:.1f} min · {num_steps:,} steps · {len(kept)} samples after warm-up")
    heads = "".join(f"{name:>12s}" for name in ("first", "last", "slope/h"))
    print(f"  {'':32s}{heads}{'± s.e.':>10s}{'last half/h':>13s}{'bound':>10s}")
    names = [
        (who, what) for who, seen in (kept[-1][1] if kept else {}).items() for what in sorted(seen)
    ]
    verdicts = [_show_one(kept, who, what) for who, what in names]
    print("  flat" if verdicts and all(verdicts) else "  NOT FLAT", flush=True)
    return bool(verdicts) and all(verdicts)


def _show_one(rows: Sequence[Row], who: str, what: str) -> bool:
    """One line; whether it is flat."""
    found = [(t, seen[who][what]) for t, seen in rows if what in seen.get(who, {})]
    line = trend([t for t, _ in found], [value for _, value in found])
    half = found[len(found) // 2 :]
    late = trend([t for t, _ in half], [value for _, value in half])
    if line is None or late is None:
        print(f"  {who:12s}{what:20s}  too few samples")
        return False
    unit = _MEBI if what.endswith("_bytes") else 1.0
    relative = what.endswith("_bytes") or what == "num_blocks"
    bound = RELATIVE_BOUND * line.mean if relative else COUNT_BOUND
    judged = who != "folder" and what != "pss_bytes"
    grows = judged and line.grows(bound)
    digits = 2 if unit == _MEBI else 1
    figures = "".join(
        f"{value / unit:{width},.{digits}f}"
        for value, width in (
            (line.first, 12),
            (line.last, 12),
            (line.slope, 12),
            (line.error, 10),
            (late.slope, 13),
        )
    )
    limit = f"{bound / unit:10,.{digits}f}" if judged else f"{'apart':>10s}"
    label = f"{what.removesuffix('_bytes')} MiB" if unit == _MEBI else what.removeprefix("num_")
    print(f"  {who:12s}{label:20s}{figures}{limit}{'  GROWS' if grows else ''}")
    return not grows
