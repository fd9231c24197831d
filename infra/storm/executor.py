"""Carries a schedule out: each fault at its time, its recovery watched beside the next ones."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from infra.amqp.errors import PublishTimeout
from infra.roles.errors import WarrenError
from infra.storm.faults.table import INJECT
from infra.storm.schedule import Planned
from infra.storm.world import World
from schemas.storm import Fault

logger = logging.getLogger(__name__)

_STRAGGLE_S = 400.0


class Executor:
    """One storm.

    Args:
        world: What the faults are done to.
        say: Told of each fault as it is known to be survived or not.
    """

    def __init__(self, world: World, *, say: Callable[[str], None]) -> None:
        self._world = world
        self._say = say
        self.faults: list[Fault] = []
        """What was injected, in order of completion."""

    async def run(self, planned: Sequence[Planned]) -> None:
        """From now on, until the last fault is recovered from or given up."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = []
        for fault in planned:
            await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
            tasks.append(asyncio.create_task(self._inject(fault, began), name=str(fault.kind)))
        _, late = await asyncio.wait(tasks, timeout=_STRAGGLE_S) if tasks else (set(), set())
        for task in late:
            logger.error("%s did not come to an end", task.get_name())
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _inject(self, planned: Planned, began: float) -> None:
        at = asyncio.get_running_loop().time() - began
        try:
            outcome = await INJECT[planned.kind](self._world, planned)
        except (WarrenError, OSError, PublishTimeout, TimeoutError) as error:
            logger.warning("%s of %s could not be done: %s", planned.kind, planned.target, error)
            outcome = None
        if outcome is None:
            self._say(
                f"{at:8.1f} s  {planned.kind:<16} {planned.target:<14} there was nothing to hit"
            )
            return
        fault = Fault(
            kind=planned.kind,
            target=outcome.target or planned.target,
            at=round(at, 3),
            seconds=round(outcome.seconds, 3),
            detail=outcome.detail,
            survived=outcome.survived,
            recovery_seconds=None if outcome.recovery_s is None else round(outcome.recovery_s, 3),
        )
        self.faults.append(fault)
        self._say(_line(fault))


def _line(fault: Fault) -> str:
    recovery = "" if fault.recovery_seconds is None else f"{fault.recovery_seconds:.1f} s"
    words = recovery or ("survived" if fault.survived else "")
    if not fault.survived:
        words = "NOT SURVIVED"
    detail = f"  ({fault.detail})" if fault.detail else ""
    return f"{fault.at:8.1f} s  {fault.kind:<16} {fault.target:<14} {words}{detail}"
