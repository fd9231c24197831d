"""One storm from its broker's start to its verdict."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from urllib.parse import urlsplit

from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Delivery
from infra.amqp.topology import WORK_QUEUES
from infra.amqp.url import make_url
from infra.roles.errors import ExitCode, WarrenError
from infra.roles.fleet.run_folder import write_atomically
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalCorrupt
from infra.storm.executor import Executor
from infra.storm.judge.recount import recounted
from infra.storm.proxy import Proxy
from infra.storm.runs import UpProcess, with_run, write_recipe
from infra.storm.schedule import plan
from infra.storm.screen import say, show
from infra.storm.verdict import judge
from infra.storm.watch import Watch
from infra.storm.world import World
from schemas.config import RunConfig
from schemas.storm import FaultKind, StormReport

logger = logging.getLogger(__name__)

ENDLESS_STEPS = 1_000_000
LAST_STEPS = 4
"""Steps that the run takes after the storm, resumed."""
_BROKER_START_S = 120.0
_FIRST_STEP_S = 240.0
_LEAVE_S = 240.0
_END_S = 600.0
_MEND_S = 300.0
"""For what was open in the storm to end; longer where the recipe is slow to ask again."""
_GLANCE_S = 1.0
_DRAIN_S = 0.5
_DRAIN_TIMEOUT_S = 60.0
_EVALUATION_QUEUES = ("eval_prompts", "evaluations")


class Storm:
    """A run, its broker behind the proxy, and the faults.

    Args:
        config: The run, with a supervisor that does not tire.
        folder: Of the run; empty.
        own: Folder for the broker and for what the run's processes say.
        seed: Of the schedule.
        minutes: How long faults are injected.
        kinds: Which.
        kills: SIGKILLs among them.
        entry: The front door.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        own: Path,
        *,
        seed: int,
        minutes: float,
        kinds: Collection[FaultKind],
        kills: int,
        entry: Path,
    ) -> None:
        self._config = config
        self._folder = folder
        self._own = own
        self._seed = seed
        self._minutes = minutes
        self._kinds = kinds
        self._kills = kills
        self._entry = entry
        self._dead: list[Delivery] = []
        self._breaches: list[str] = []
        self._due = 0
        """Groups issued when the last fault was over: all of them must end."""

    async def run(self, calm: Path, *, again: str) -> int:
        """Everything; the exit code.

        Args:
            calm: Folder of the undisturbed run.
            again: The command that repeats this storm.

        Raises:
            WarrenError: The run did not even begin.
        """
        self._own.mkdir(parents=True)
        async with self._surroundings() as world:
            executor = await self._weather(world)
        report = self._judge(executor, calm, repeated=sum(world.repeated.values()))
        write_atomically(self._folder.root / "storm.json", report.model_dump_json(indent=1) + "\n")
        say(show(report, again=again))
        say(f"run folder: {self._folder.root}")
        return ExitCode.FAILED if report.breaches else ExitCode.DONE

    @contextlib.asynccontextmanager
    async def _surroundings(self) -> AsyncIterator[World]:
        """Broker, proxy, a client of ours and its eyes."""
        name, node = self._config.run.name, LocalBroker(self._own / "broker")
        try:
            url = await asyncio.to_thread(node.start, _BROKER_START_S)
            assert node.ports is not None
            proxy = Proxy(node.ports.amqp)
            proxy.start()
            client = Broker(url, run=name, app_id="storm/hostile", heartbeat_s=20)
            await client.start(recording=self._config.broker.recording)
            watch = Watch(client, self._folder)
            helpers = [
                asyncio.create_task(watch.run(), name="watch"),
                asyncio.create_task(self._collect(client), name="dead letters"),
            ]
            try:
                yield World(
                    config=self._config,
                    folder=self._folder,
                    entry=self._entry,
                    own=self._own,
                    node=node,
                    proxy=proxy,
                    roles_url=_through(url, proxy.port),
                    hostile=client,
                    watch=watch,
                    processes=processes_of(self._config),
                    queues=queues_of(self._config),
                )
                await self._last_dead_letters(client)
                for helper in helpers:
                    if helper.done():
                        raise WarrenError(f"the storm lost its {helper.get_name()}: {helper}")
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
                await client.close(1.0)
                proxy.stop()
        finally:
            await asyncio.to_thread(node.kill)  # nothing that matters waits in it any more
            node.stop()

    async def _weather(self, world: World) -> Executor:
        """The run under faults, then left alone until its end."""
        executor = Executor(world, say=say)
        process = self._up(world, ENDLESS_STEPS)
        try:
            await self._begun(world, process)
            await self._faults(world, process, executor)
            await self._mended(process)
            process.leave()
            code = await process.ended(_LEAVE_S)
            if code != ExitCode.INTERRUPTED:
                self._breaches.append(f"`up`, told to leave after the faults: {_words(code)}")
            process.kill()
            steps = world.watch.step() + LAST_STEPS
            say(f"the faults are over; the run goes on to step {steps}")
            process = self._up(world, steps, "--resume")
            code = await process.ended(_END_S)
            if code != ExitCode.DONE:
                self._breaches.append(f"`up --resume` after the storm: {_words(code)}")
        finally:
            process.kill()
        return executor

    def _up(self, world: World, steps: int, *flags: str) -> UpProcess:
        self._config = with_run(self._config, steps=steps)
        recipe = write_recipe(self._config, self._own / "recipe.json")
        return UpProcess(
            self._entry,
            recipe,
            *flags,
            log=self._own / "up.log",
            environment=world.roles_environment(dict(os.environ)),
        )

    async def _begun(self, world: World, process: UpProcess) -> None:
        """Until the first step.

        Raises:
            WarrenError: The run did not get there.
        """
        say(f"the run begins in {self._folder.root}")

        def begun() -> bool:
            return process.exit_code is not None or world.watch.step() > 0

        if not await world.watch.until(begun, _FIRST_STEP_S) or process.exit_code is not None:
            raise WarrenError(
                f"the run made no step before the storm ({_words(process.exit_code)})",
                hint=f"what it said is in {self._own / 'up.log'} and {self._folder.logs}",
            )

    async def _faults(self, world: World, process: UpProcess, executor: Executor) -> None:
        """The schedule, unless the run ends under it."""
        planned = plan(
            seed=self._seed,
            duration_s=60.0 * self._minutes,
            kills=self._kills,
            kinds=self._kinds,
            processes=world.processes,
            queues=world.queues,
            heartbeat_s=self._config.broker.heartbeat,
        )
        say(f"{len(planned)} faults in {self._minutes:g} minutes, seed {self._seed}")
        faults = asyncio.create_task(executor.run(planned))
        ending = asyncio.create_task(process.ended(float("inf")))
        await asyncio.wait([faults, ending], return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            self._breaches.append(f"`up` ended during the storm: {_words(ending.result())}")
        faults.cancel()
        ending.cancel()
        for result in await asyncio.gather(faults, ending, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _collect(self, client: Broker) -> None:
        """Dead letters as they come: a wiped broker would take them with it."""
        async for delivery in client.subscribe("dead_letters", prefetch=64):
            self._dead.append(delivery)
            client.ack(delivery)

    async def _last_dead_letters(self, client: Broker) -> None:
        known = -1
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while known != len(self._dead) or (await client.depth("dead_letters"))[0]:
                    known = len(self._dead)
                    await asyncio.sleep(_DRAIN_S)
        except TimeoutError:
            self._breaches.append(f"dead letters still come {_DRAIN_TIMEOUT_S:.0f} s after the run")

    async def _mended(self, process: UpProcess) -> None:
        """Until every group issued by now has ended; who has not by the deadline is judged lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(_MEND_S, 3 * self._config.deadlines.reissue_after)
        while process.exit_code is None and loop.time() < deadline:
            with contextlib.suppress(OSError, JournalCorrupt):  # the trainer tidies up: look again
                recount = await asyncio.to_thread(recounted, self._config, self._folder)
                self._due = self._due or recount.num_issued
                if all(number >= self._due for number in recount.groups):
                    return
            await asyncio.sleep(_GLANCE_S)

    def _judge(self, executor: Executor, calm: Path, *, repeated: int) -> StormReport:
        """The verdict from the folder, and what only the storm has seen."""
        faults = sorted(executor.faults, key=lambda fault: fault.at)
        report = judge(
            self._config,
            faults,
            seed=self._seed,
            drained=self._dead,
            undisturbed=calm,
            tokens_repeated=repeated,
            due=self._due,
        )
        unsurvived = [
            f"{fault.kind} of {fault.target} at {fault.at:.1f} s was not survived: "
            f"{fault.detail or 'nothing worked again in time'}"
            for fault in faults
            if not fault.survived
        ]
        breaches = (*report.breaches, *self._breaches, *unsurvived)
        return report.model_copy(update={"breaches": breaches})


def processes_of(config: RunConfig) -> tuple[str, ...]:
    """Names of the role processes that `up` starts."""
    rollout, reward = config.rollout.workers, config.reward.workers
    return (
        "trainer",
        "producer-1",
        *(f"rollout-{number}" for number in range(1, rollout + 1)),
        *(f"reward-{number}" for number in range(1, reward + 1)),
    )


def queues_of(config: RunConfig) -> tuple[str, ...]:
    """Work queues that this recipe uses."""
    unused = () if config.data.eval else _EVALUATION_QUEUES
    return tuple(name for name in WORK_QUEUES if name not in unused)


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return make_url(
        user=parts.username or "", password=parts.password or "", host="127.0.0.1", port=port
    )


def _words(code: int | None) -> str:
    return "it did not end in time" if code is None else f"exit code {code}"
