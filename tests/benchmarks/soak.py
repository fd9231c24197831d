"""An hour of an undisturbed run: nothing in it may grow with time.

    run.py up (storm recipe, simulated engine, unhurried) -> every 10 s a sample of each process,
    the broker and the run folder -> soak.jsonl -> a straight line through each quantity -> verdict

The last half is judged. In the first, bounded memories fill: pydantic's cache of strings (16,384
places), a rollout worker's memory of settled messages (4,096), the broker's first write-ahead log
(64 MiB). What fills is steep at first and level afterwards, what leaks goes on at its pace: the
slope of the first half is shown beside. Where that memory is not full by the half, the run is too
short to tell the one from the other, and is not called flat.

A quantity of bytes is flat when it grows by less than 5 % of its mean an hour, a count when by
less than one an hour, or by less than three standard errors. Where three are more than the bound,
the line says `noisy`: a leak of less than that would not be seen there. Shown and not judged: the
proportional set size, which changes with whoever else uses the same libraries; messages settled;
the run folder, where metrics and logs grow with the steps, the journal up to
`checkpoint.journal_bytes`.
"""

import asyncio
import json
import math
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
from tests.benchmarks.soak_sample import SETTLED, Eyes, Sample
from tests.benchmarks.soak_trend import COUNT_BOUND, RELATIVE_BOUND, SIGMAS, Trend, trend

RECIPE = Path(__file__).resolve().parents[2] / "infra/recipes/storm.toml"
FRONT_DOOR = RECIPE.parents[2] / "run.py"
PERIOD_S = 10.0
REPORT_S = 300.0
WARM_UP = 0.5
"""Of the time."""
REMEMBERED = 4096
"""Settled messages that a rollout worker remembers: its largest memory of our own."""
UNHURRIED = (
    "run.name=soak",
    "run.steps=1000000",
    "rollout.slots=8",
    "rollout.engine_options={ mean_tokens = 20, spread = 0.6, token_s = 0.1, tick_s = 0.25 }",
)
_BEGIN_S = 240.0
_LEAVE_S = 120.0
_MAKE_S = 300.0
_MEBI = 1024.0**2
_SHOWN_ONLY = ("pss_bytes", SETTLED)

Row = tuple[float, Sample]
"""Seconds since the first sample, and what was seen."""


async def soak(minutes: float, scratch: Path) -> bool:
    """Run, watch, print; whether everything was flat and nothing ended.

    Args:
        minutes: How long samples are taken.
        scratch: Becomes the folder of run folders; a former soak in it is purged.
    """
    making = [sys.executable, "-m", prepare.__name__, "--runs", str(scratch)]
    subprocess.run(making, check=True, timeout=_MAKE_S)  # apart: it imports half a gigabyte
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
        if listening.done():
            await listening  # it must not end: what is not heard any more seems flat
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
        False, too, when there are too few samples, or not enough was done before, to tell.
    """
    until = rows[-1][0] if rows else 0.0
    early = [row for row in rows if row[0] < WARM_UP * until]
    late = rows[len(early) :]
    print(f"soak · {until / 60:.1f} min · {num_steps:,} steps · {len(late)} samples judged")
    heads = "".join(f"{name:>12s}" for name in ("first", "last", "slope/h"))
    print(f"  {'':32s}{heads}{'± s.e.':>10s}{'before/h':>12s}{'bound':>10s}")
    names = sorted({(who, what) for _, seen in late for who in seen for what in seen[who]})
    verdicts = [_show_one(early, late, who, what) for who, what in names]
    verdicts.append(_filled(late))
    flat = bool(names) and all(verdicts)
    print("  flat" if flat else "  NOT FLAT", flush=True)
    return flat


def _filled(late: Sequence[Row]) -> bool:
    """Whether every rollout worker remembers all it can before the judged half begins."""
    settled: dict[str, float] = {}
    for _, seen in late:
        for who, values in seen.items():
            if SETTLED in values:
                settled.setdefault(who, values[SETTLED])
    if not settled:
        print("  no rollout worker said what it had settled: its memory may not have been full")
        return False
    least = min(settled.values())
    if least >= REMEMBERED:
        return True
    print(f"  too short: a worker had settled {least:,.0f} of {REMEMBERED:,} messages by the half")
    return False


def _line(rows: Sequence[Row], who: str, what: str) -> Trend | None:
    found = [(t, seen[who][what]) for t, seen in rows if what in seen.get(who, {})]
    return trend([t for t, _ in found], [value for _, value in found])


def _show_one(early: Sequence[Row], late: Sequence[Row], who: str, what: str) -> bool:
    """One line; whether it is flat."""
    judged = who != "folder" and what not in _SHOWN_ONLY
    before, line = _line(early, who, what), _line(late, who, what)
    if line is None:
        print(f"  {who:12s}{what:20s}  too few samples")
        return not judged
    unit = _MEBI if what.endswith("_bytes") else 1.0
    relative = what.endswith("_bytes") or what == "num_blocks"
    bound = RELATIVE_BOUND * line.mean if relative else COUNT_BOUND
    grows = judged and line.grows(bound)
    digits = 2 if unit == _MEBI else 1
    values = (line.first, line.last, line.slope, line.error, before.slope if before else math.nan)
    widths = (12, 12, 12, 10, 12)
    figures = "".join(
        f"{value / unit:{width},.{digits}f}" for value, width in zip(values, widths, strict=True)
    )
    limit = f"{bound / unit:10,.{digits}f}" if judged else f"{'apart':>10s}"
    noisy = judged and SIGMAS * line.error > bound
    remark = "  GROWS" if grows else "  noisy" if noisy else ""
    label = f"{what.removesuffix('_bytes')} MiB" if unit == _MEBI else what.removeprefix("num_")
    print(f"  {who:12s}{label:20s}{figures}{limit}{remark}")
    return not grows
