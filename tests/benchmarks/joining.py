"""A worker joins in the middle of a run, from a keyframe and deltas; another is killed.

Real workers on a real broker, with weights of 247 MB of which a new version comes every few
seconds; their engines keep the pace of one (`paced_worker`). This process plays the trainer.
"""

import asyncio
import re
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

from infra.amqp.local_broker import LocalBroker
from tests.benchmarks.weights_memory import model, said, world
from tests.integration.rollout.rollout_world import World

_PHASE_S = 24.0
_PASS_S = 4.0
"""Rollouts that end in the first seconds of a phase were begun before it."""
_VERSION_S = 4.0
_KEYFRAMES = 5
_WAITING = 200
_MADE = re.compile(r"version (\d+) is made from (keyframe .*)")


@dataclass(frozen=True, slots=True)
class Phase:
    """What came out between two events."""

    what: str
    tokens_per_s: float
    by_worker: dict[str, float]
    """The same, each."""


class Trainer:
    """Publishes, asks and listens until its tasks are cancelled."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.version = 0
        self._ended: list[tuple[float, str, int]] = []

    async def publish(self) -> None:
        """A new version every few seconds, in full now and then."""
        while True:
            await asyncio.sleep(_VERSION_S)
            version = self.version + 1
            await asyncio.to_thread(self.world.nudge, version, lambda _name: True, 0.01)
            del self.world.models[self.version]
            await self.world.publish_weights(version, keyframe=version % _KEYFRAMES == 0)
            self.version = version

    async def ask(self) -> None:
        """Keep some tasks waiting."""
        while True:
            waiting, _ = await self.world.broker.depth("prompts")
            if waiting < _WAITING:
                await self.world.put_tasks(50)
            await asyncio.sleep(0.2)

    async def listen(self, *, until_done: bool = False) -> None:
        """Take what comes out."""
        while not until_done or self.world.missing():
            number = len(self.world.rollouts)
            await self.world.collect(lambda: len(self.world.rollouts) > number)  # noqa: B023
            rollout = self.world.rollouts[-1]
            tokens = int(rollout.progress.tokens.mask_array.sum())
            self._ended.append((time.monotonic(), rollout.worker, tokens))

    async def phase(self, what: str) -> Phase:
        """Let it run for a while."""
        await asyncio.sleep(_PASS_S)
        began = time.monotonic()
        await asyncio.sleep(_PHASE_S - _PASS_S)
        seconds = time.monotonic() - began
        tokens: Counter[str] = Counter()
        for at, worker, number in self._ended:
            if at >= began:
                tokens[worker] += number
        rates = {worker: number / seconds for worker, number in sorted(tokens.items())}
        return Phase(what, sum(rates.values()), rates)


def show() -> None:
    """Print the figures."""
    print("joining · 247 MB of weights, a new version every 4 s, full ones every 5 versions")
    with tempfile.TemporaryDirectory(prefix="warren-node-") as folder:
        node = LocalBroker(folder)
        node.start(timeout_s=120.0)
        try:
            asyncio.run(_run(node.url))
        finally:
            node.kill()


async def _run(url: str) -> None:
    async with world(url, "joining", model) as made:
        trainer = Trainer(made)
        await made.publish_weights(0)
        for name in ("a", "b"):
            await _start(made, name)
        loops = [
            asyncio.create_task(one()) for one in (trainer.publish, trainer.ask, trainer.listen)
        ]
        try:
            _print(await trainer.phase("a and b"))
            began = time.monotonic()
            await _start(made, "c")
            ready_s = time.monotonic() - began
            newest = trainer.version
            print(f"  c serves after {ready_s:.1f} s of starting; the newest is then {newest}")
            for version, plan in _MADE.findall((made.folder / "c.log").read_text()):
                print(f"    version {version} from {plan}")
            _print(await trainer.phase("a, b and c"))
            await made.stop("b", signal.SIGKILL)
            print("  b is killed")
            _print(await trainer.phase("a and c"))
            for loop in loops[:2]:
                loop.cancel()
            loops.append(asyncio.create_task(trainer.listen(until_done=True)))
            loops[2].cancel()
            await loops[-1]
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        codes = [await made.stop(name) for name in list(made.workers)]
        missing, repeated = len(made.missing()), len(made.repeated())
        print(
            f"  {len(made.tasks)} tasks, {missing} missing, {repeated} came twice"
            f" · {trainer.version} versions · exit codes {codes}"
        )
        for name in ("a", "b", "c"):
            print(f"  {name}: {_swaps((made.folder / f'{name}.log').read_text())}")


async def _start(made: World, name: str) -> None:
    await made.start(name, module="tests.benchmarks.paced_worker", slots=16)
    while "serving version" not in (made.folder / f"{name}.log").read_text():
        await said(made, "")
        await asyncio.sleep(0.05)


def _print(phase: Phase) -> None:
    each = ", ".join(f"{name} {rate:,.0f}" for name, rate in phase.by_worker.items())
    print(f"  {phase.what:11s} {phase.tokens_per_s:7,.0f} tokens/s · {each}", flush=True)


def _swaps(log: str) -> str:
    swaps = re.findall(r"version \d+ -> \d+ .*fetch ([\d.]+) s.*swap ([\d.]+) s", log)
    if not swaps:
        return "no swap"
    fetch, swap = ([float(one[at]) for one in swaps] for at in (0, 1))
    return (
        f"{len(swaps)} swaps · at most {max(fetch):.2f} s to fetch and verify beside generation, "
        f"{max(swap):.2f} s to swap"
    )
