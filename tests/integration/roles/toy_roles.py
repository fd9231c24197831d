"""A front door with toy roles on the real life cycle: `python toy_roles.py up RECIPE ...`.

What a worker does is told by `rollout.engine_options.<worker>`:
`wait` (default), `die`, `die-once`, `leave-once`, `raise`, `deaf` (ignores SIGTERM),
`spawn` (leaves a grandchild), `spawn-once` (and dies), `config` (a misconfiguration).
The trainer begins when all have joined, and ends early when a file `enough` is in the run folder.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.roles.command.cli import main
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from infra.roles.lifecycle import serve
from infra.runs.metrics import MetricsFile
from schemas.config import RunConfig
from schemas.control import RunState, Wanted


async def broadcast(context: RoleContext, state: RunState) -> None:
    envelope, body = encode(
        state, app_id=context.app_id, correlation_id="state", headers={"run_id": state.run_id}
    )
    await context.broker.publish(
        Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
    )


def first_time(context: RoleContext) -> bool:
    """Whether this worker asks for the first time in this run."""
    mark = context.folder.root / f"{context.worker}.was-here"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def stopped_within(context: RoleContext, seconds: float) -> bool:
    """Sleep; True, and early, when the role was told to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await context.stop.wait()
    return context.stop.is_set()


def everybody_joined(context: RoleContext) -> bool:
    """Whether each process that `up` started has found its run, in one life at least."""
    config = context.config
    roles = {"producer": 1, "rollout": config.rollout.workers, "reward": config.reward.workers}
    names = [f"{role}-{number}" for role, count in roles.items() for number in range(1, count + 1)]
    return all(f"joined {context.known_run_id}" in said_by(context, name) for name in names)


def said_by(context: RoleContext, name: str) -> str:
    logs = context.folder.logs.glob(f"attempt_*/{name}*.log")
    return "".join(path.read_text() for path in logs)


async def train(context: RoleContext) -> None:
    mark = context.folder.root / "toy-run-id"
    if "--resume" not in sys.argv or not mark.exists():
        mark.write_text(uuid.uuid4().hex)
    run_id = mark.read_text()
    print(" ".join(["trains", *sys.argv]), flush=True)
    context.set_run_id(run_id)
    metrics = MetricsFile(context.folder.metrics)
    steps = context.config.run.steps
    metrics.append("eval", {"version": 0, "eval/reward": 0.25})
    mode = context.config.rollout.engine_options.get(context.worker, "wait")
    while not everybody_joined(context):  # who comes later would not hear of the end
        await broadcast(context, RunState(run_id=run_id, number=0))
        if await stopped_within(context, 0.1):
            return
    for step in range(1, steps + 1):
        if (context.folder.root / "enough").exists():
            break
        await broadcast(context, RunState(run_id=run_id, number=step, step=step))
        if mode == "die-once" and step == 3 and first_time(context):
            os.kill(os.getpid(), signal.SIGKILL)
        values = {"step": step, "version": step - 1, "staleness/mean": 0.5, "staleness/max": step}
        metrics.append("step", {**values, "batch/interruptions": 2})
        if await stopped_within(context, 0.2):
            return
    metrics.append("eval", {"version": steps, "eval/reward": 0.75})
    books = {"issued": 4, "trained": 3, "filtered": 1, "balanced": True}
    metrics.append("end", {"step": steps} | {f"ledger/{k}": v for k, v in books.items()})
    over = RunState(run_id=run_id, number=steps + 1, step=steps, wanted=Wanted.STOPPED)
    await broadcast(context, over)


async def work(context: RoleContext) -> None:
    mode = context.config.rollout.engine_options.get(context.worker, "wait")
    if not await context.unless_stopped(context.run_id()):
        return
    print(f"joined {context.known_run_id}", flush=True)
    if mode.endswith("-once") and first_time(context):
        if mode == "leave-once":
            return
        if mode == "spawn-once":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "raise":
        raise ZeroDivisionError("the toy broke")
    if mode == "config":
        await be_misconfigured(context)
    if mode == "deaf":
        time.sleep(600)
    if mode == "spawn":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    await context.stop.wait()


async def publish_states(context: RoleContext) -> None:
    """Alone: says its own state until told to stop."""
    context.set_run_id("alone")
    print("ready", flush=True)
    number = 0
    while not await stopped_within(context, 0.05):
        number += 1
        await broadcast(context, RunState(run_id="alone", number=number))


async def linger(context: RoleContext) -> None:
    """Does not leave when told to."""
    print("ready", flush=True)
    await asyncio.sleep(600)


async def fail_now(context: RoleContext) -> None:
    """A bug."""
    raise ZeroDivisionError("at once")


async def be_misconfigured(context: RoleContext) -> None:
    """A user's error."""
    raise ConfigError("the toy is misconfigured", hint="configure it")


BODIES = {
    "trainer": train,
    "publish": publish_states,
    "linger": linger,
    "fail-now": fail_now,
    "misconfigured": be_misconfigured,
}


def run(config: RunConfig, *, worker: str | None = None, **flags: object) -> int:
    role = sys.argv[1]
    body = BODIES.get(config.rollout.engine_options.get("body", role), work)
    patience_s = float(config.rollout.engine_options.get("connect_s", 60.0))
    return asyncio.run(serve(role, config, body, worker=worker, connect_timeout_s=patience_s))


def check(config: RunConfig) -> list[str]:
    if config.rollout.engine == "sglang":
        raise ConfigError("no such toy engine", hint="take another")
    return [f"{config.run.steps} toy steps"]


ROLES = dict.fromkeys(("producer", "rollout", "reward", "trainer"), __name__)

if __name__ == "__main__":
    sys.modules["toy_roles"] = sys.modules["__main__"]
    ROLES = dict.fromkeys(ROLES, "toy_roles")
    sys.exit(main(sys.argv[1:], roles=ROLES, entry=Path(__file__).resolve()))
