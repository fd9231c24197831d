"""The life of a role, from its first line to its exit code.

    broker url -> connect -> +-- control loop: sync -> context, stop --+
                             +-- heartbeats every 2 s                 --+-> first to end decides
                             +-- watch: broker, trainer, leaving      --+
                             +-- the role's body                      --+
    SIGTERM, first SIGINT -> context.stop -> the body hands over and returns

This is the boundary at which an error becomes one line and an exit code.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from infra.observe.logs import set_up_logging
from infra.observe.waits import Waits
from infra.roles.acks import answer_commands, say_done_with_stop
from infra.roles.broker_url import find_url
from infra.roles.context import TRAINER, RoleContext
from infra.roles.control import listen, watch_silence
from infra.roles.errors import ExitCode, LeftWithoutHandover, WarrenError
from infra.roles.fleet.processes import leave_at_once
from infra.roles.heartbeats import say_left, send_heartbeats
from infra.roles.outages import watch_broker
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

if TYPE_CHECKING:
    from infra.observe.metrics.exporter import Exporter

logger = logging.getLogger(__name__)

WORKER_VARIABLE = "WARREN_WORKER"
_GC_THRESHOLD = 20_000
_LEAVE_MARGIN_S = 15.0
_END_S = 30.0
"""For tasks and threads that are left when a role has ended."""

Body = Callable[[RoleContext], Awaitable[None]]


def worker_name(role: str, given: str | None = None) -> str:
    """`--name`, else `WARREN_WORKER`, else role, host and process id."""
    return (
        given
        or os.environ.get(WORKER_VARIABLE)
        or f"{role}-{socket.gethostname().split('.')[0]}-{os.getpid()}"
    )


def run_role(serving: Coroutine[Any, Any, int], *, collect_rarely: bool = True) -> int:
    """Run `serve(...)` in an event loop of its own; returns its exit code.

    A thread that hangs (over a dead disk, say) would keep the loop from closing and this process
    from ending, with nothing left to say so: then it ends at once, with the same code.

    Args:
        collect_rarely: Look for reference cycles after many messages instead of a few: each look
            walks what hundreds of messages under way have allocated. Not where a cycle may hold
            a model's tensors.
    """
    if collect_rarely:
        gc.set_threshold(_GC_THRESHOLD)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(serving)
        overdue = threading.Timer(_END_S, _leave_behind, (code,))
        overdue.daemon = True
        overdue.start()
    overdue.cancel()
    return code


def _leave_behind(code: int) -> None:
    logger.warning("a thread or a task does not end: leaving without it")
    leave_at_once(code)


async def serve(
    role: str,
    config: RunConfig,
    body: Body,
    *,
    worker: str | None = None,
    connect_timeout_s: float = 30.0,
) -> int:
    """Run a role until its body returns; the caller exits with what this returns.

    Args:
        role: `producer`, `rollout`, `reward` or `trainer`.
        config: The run's configuration.
        body: The role itself. It watches `context.stop` and returns.
        worker: Name that is unique in the run.
        connect_timeout_s: How long the broker may take to answer.

    Returns:
        An `ExitCode`; errors have been logged, none is raised.
    """
    name = worker_name(role, worker)
    set_up_logging(name)
    try:
        await _connected(role, name, config, body, connect_timeout_s)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        return report(error)
    logger.info("left")
    return ExitCode.DONE


def _reason(error: BaseException) -> BaseException:
    """The error that a group of them is about."""
    while isinstance(error, BaseExceptionGroup):
        ours = [inner for inner in error.exceptions if isinstance(inner, WarrenError)]
        error = ours[0] if ours else error.exceptions[0]
    return error


def report(error: BaseException) -> ExitCode:
    """Log an error as one readable line, and say with which code to exit.

    The traceback of an error that is not ours follows it; of ours, at DEBUG.
    """
    error = _reason(error)
    if isinstance(error, WarrenError):
        logger.error("%s", error)
        logger.debug("traceback:", exc_info=error)
        return error.exit_code
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(place[0].filename).name}:{place[0].lineno})" if place else ""
    logger.error("%s: %s%s", type(error).__name__, error, where, exc_info=error)
    return ExitCode.FAILED


async def _connected(
    role: str, name: str, config: RunConfig, body: Body, connect_timeout_s: float
) -> None:
    from infra.amqp.connection import Broker

    folder = RunFolder.of(config)
    stop = asyncio.Event()
    with _signals(stop):
        url = find_url(config, folder)
        app_id = f"{role}/{name}"
        broker = Broker(
            url, run=config.run.name, app_id=app_id, heartbeat_s=config.broker.heartbeat
        )
        context = RoleContext(
            role=role,
            worker=name,
            config=config,
            folder=folder,
            broker=broker,
            waits=Waits(
                warn_after_s=config.deadlines.warn_after, on_deadline=config.deadlines.on_deadline
            ),
            stop=stop,
            exporter=_exporter(config, name),
        )
        failure = ""
        try:
            starting = broker.start(connect_timeout_s, recording=config.broker.recording)
            if not await context.unless_stopped(starting):
                return  # nothing was taken up yet
            await _run_body(context, body)
            await say_done_with_stop(context)
        except Exception as error:  # `serve` logs it; the last heartbeat tells who watches
            reason = _reason(error)
            failure = f"{type(reason).__name__}: {reason}"
            raise
        finally:
            with contextlib.suppress(WarrenError):  # a broker that is given up takes no word
                await say_left(context, error=failure)
            await broker.close()
            if context.exporter is not None:
                await asyncio.to_thread(context.exporter.close)


def _exporter(config: RunConfig, worker: str) -> "Exporter | None":
    if not config.tracking.prometheus_port:
        return None
    from infra.observe.metrics.exporter import start_exporter

    return start_exporter(config, worker=worker)


async def _run_body(context: RoleContext, body: Body) -> None:
    """Body beside its helpers. A helper that fails ends the role: nothing dies silently."""

    async def the_body() -> None:
        stall = context.config.deadlines.stall
        async with context.waits("the broker to bind us to 'sync'", deadline_s=stall):
            bound = await context.unless_stopped(context.bound.wait())
        if bound:
            await body(context)

    work = asyncio.create_task(the_body(), name="body")
    helpers = [
        asyncio.create_task(listen(context), name="control"),
        asyncio.create_task(send_heartbeats(context), name="heartbeats"),
        asyncio.create_task(answer_commands(context), name="answers"),
        asyncio.create_task(watch_broker(context), name="broker"),
        asyncio.create_task(_bound_leaving(context, work), name="leaving"),
    ]
    if context.role != TRAINER:
        helpers.append(asyncio.create_task(watch_silence(context), name="silence"))
    tasks = [work, *helpers]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            work.cancel()
            await asyncio.wait([work], timeout=_patience_s(context))
        for task in sorted(done, key=lambda task: task is work):
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        _, deaf = await asyncio.wait(tasks, timeout=_patience_s(context))
        for task in deaf:
            logger.warning("%s does not end: left behind", task.get_name())


def _patience_s(context: RoleContext) -> float:
    return context.config.rollout.grace + _LEAVE_MARGIN_S


async def _bound_leaving(context: RoleContext, work: "asyncio.Task[None]") -> None:
    """A body that does not return after it was told to stop is ended.

    The trainer is only named: it finishes its step and saves, which takes what it takes.

    Raises:
        LeftWithoutHandover: It had its grace and more.
    """
    await context.stop.wait()
    trains = context.role == TRAINER
    patience = _patience_s(context)
    what = "the step to end and be saved" if trains else "the role to hand over its work and leave"
    async with context.waits(what):
        await asyncio.wait([work], timeout=None if trains else patience)
    if not work.done():
        raise LeftWithoutHandover(
            f"did not hand over within {patience:.0f} s",
            hint="the broker gives what was held to others; [rollout] grace sets the time",
        )
    await asyncio.Event().wait()


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        if number is signal.SIGINT and stop.is_set():
            logger.warning("interrupted again: leaving at once")
            leave_at_once(ExitCode.INTERRUPTED)
        logger.info("%s: handing over and leaving", number.name)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, told, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
