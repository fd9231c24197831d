"""Carries a schedule out: each fault at its time, its recovery watched beside the next ones."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from infra.roles.errors import WarrenError
from infra.storm.faults.table import INJECT
from infra.storm.schedule import Planned
from infra.storm.world import Outcome, World
from schemas.storm import Fault

logger = logging.getLogger(__name__)

_STRAGGLE_S = 900.0
"""After the last fault: those of the broker wait for each other, whatever the machine takes."""


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
        """From now on, until the last fault is recovered from or given up. One that comes to no
        end was not survived; an error in a fault itself is raised, when all others are over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks: dict[asyncio.Task[None], Planned] = {}
        try:
            for fault in planned:
                await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
                tasks[asyncio.create_task(self._inject(fault, began))] = fault
            late = (await asyncio.wait(tasks, timeout=_STRAGGLE_S))[1] if tasks else set()
            for task in late:
                outcome = Outcome(survived=False, detail=f"no end in {_STRAGGLE_S:.0f} s")
                self._note(tasks[task], tasks[task].at, outcome)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _inject(self, planned: Planned, began: float) -> None:
        at = asyncio.get_running_loop().time() - began
        try:
            outcome = await INJECT[planned.kind](self._world, planned)
        except (WarrenError, OSError) as error:
            logger.warning("%s of %s could not be done: %s", planned.kind, planned.target, error)
            outcome = None
        if outcome is None:
            self._say(
                f"{at:8.1f} s  {planned.kind:<16} {planned.target:<14} there was nothing to hit"
            )
        else:
            self._note(planned, at, outcome)

    def _note(self, planned: Planned, at: float, outcome: Outcome) -> None:
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
