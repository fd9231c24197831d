"""A pool of scoring processes: each can be killed and replaced while the others go on.

score(rollout) -> pending -> slot 1: process <-> answers -> Scored | ScoringFailed
                          -> slot 2: ...

an answer in time      -> the rollout's score, or its failure when the function raised
none in time           -> the process is killed; the rollout that it was at fails
the process dies       -> the rollout that it was at fails
both: what else the process had been given goes back to the front, a new process starts
"""

import asyncio
import logging
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consumers.reward.process import CannotStart, ProcessDied, ScoringProcess
from infra.roles.errors import ConfigError, WarrenError
from schemas.config import RewardSection

logger = logging.getLogger(__name__)

MAX_PROCESSES = 4
DEPTH = 8
"""Rollouts that a process with quick functions is given at a time."""
QUICK_S = 0.005
_RECENT = 4


class ScoringFailed(WarrenError):
    """A rollout has no score.

    Attributes:
        trace: Traceback inside the reward function, where there is one.
    """

    def __init__(self, message: str, *, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What all functions said of a rollout."""

    reward: float
    """The weighted sum."""
    rewards: Mapping[str, float]
    """Unweighted, by function; numbers beside a score are `<function>/<name>`."""
    seconds: float


@dataclass(slots=True, eq=False)
class _Job:
    body: bytes
    outcome: "asyncio.Future[Scored]"
    answers: list[Mapping[str, Any]] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


def default_size() -> int:
    """One process per core that we may use, between 1 and 4."""
    return max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0))))


def short_names(uses: Sequence[str]) -> list[str]:
    """What comes behind the colon of an import path, where that is unambiguous."""
    short = [use.rpartition(":")[2] for use in uses]
    return [s if short.count(s) == 1 else use for s, use in zip(short, uses, strict=True)]


class ScoringPool:
    """Reward functions in processes of their own.

    Args:
        section: Functions, weights and the limit of one call.
        size: Processes.
    """

    def __init__(self, section: RewardSection, *, size: int | None = None) -> None:
        self.size = size or default_size()
        self._uses = [function.use for function in section.functions]
        self.names = short_names(self._uses)
        """Of the functions."""
        self._weights = [function.weight for function in section.functions]
        self._timeout_s = section.timeout
        self._pending: deque[_Job] = deque()
        self._arrived = asyncio.Event()
        self._slots: list[asyncio.Task[None]] = []
        self._broken: BaseException | None = None
        self._calls: dict[ScoringProcess, float] = {}
        self._took_s: deque[float] = deque(maxlen=_RECENT)

    @property
    def num_scoring(self) -> int:
        """Processes that have a rollout to score now."""
        return len(self._calls)

    @property
    def longest_s(self) -> float:
        """Of the calls that run now; 0 when none does."""
        since = min(self._calls.values(), default=None)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def usual_s(self) -> float:
        """Mean seconds of the newest scores; 0 before the first."""
        return sum(self._took_s) / len(self._took_s) if self._took_s else 0.0

    async def start(self) -> None:
        """Start all processes.

        Raises:
            ConfigError: A reward function cannot be loaded.
        """
        first = await ScoringProcess.start(self._uses)
        waiting: list[ScoringProcess | None] = [first, *[None] * (self.size - 1)]
        self._slots = [asyncio.create_task(self._slot(process)) for process in waiting]
        for slot in self._slots:
            slot.add_done_callback(self._slot_ended)
        await asyncio.sleep(0)  # a task that is cancelled before it began would leave its process

    async def score(self, body: bytes) -> Scored:
        """Score the JSON of one rollout.

        Raises:
            ScoringFailed: A function raised, hung, returned no number, or took its process down.
            WarrenError: The functions cannot be loaded any more.
        """
        if self._broken is not None:
            raise self._broken
        job = _Job(body, asyncio.get_running_loop().create_future())
        self._pending.append(job)
        self._arrived.set()
        return await job.outcome

    async def close(self) -> None:
        """Kill all processes."""
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _slot(self, process: ScoringProcess | None) -> None:
        """Keep one process at work, for ever."""
        while True:
            if process is None:
                process = await self._one_more()
            try:
                await self._serve(process)
            finally:
                await process.kill()
            process = None

    async def _one_more(self) -> ScoringProcess:
        """The functions have loaded before: where they do not now, the recipe is not to blame."""
        try:
            return await ScoringProcess.start(self._uses)
        except ConfigError as error:
            raise CannotStart(f"a further process: {error}", hint=error.hint) from error

    def _slot_ended(self, slot: "asyncio.Task[None]") -> None:
        """A slot that ends by itself ends the pool: whoever waits for a score hears why."""
        if slot.cancelled() or (error := slot.exception()) is None:
            return
        self._broken = error
        while self._pending:
            self._pending.popleft().fail(error)

    async def _serve(self, process: ScoringProcess) -> None:
        """Feed one process until it must be replaced; what it was given and did not answer goes
        back."""
        given: deque[_Job] = deque()
        try:
            await self._feed(process, given)
        except TimeoutError:
            self._blame_hang(given)
        except ProcessDied as death:
            self._blame_death(given, str(death))
        finally:
            self._put_back(given)

    async def _feed(self, process: ScoringProcess, given: deque[_Job]) -> None:
        depth = 1
        while True:
            bodies = []
            while self._pending and len(given) < depth:
                given.append(self._pending.popleft())
                bodies.append(given[-1].body)
            if bodies:
                process.send(bodies)
            if not given:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            self._calls[process] = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await process.receive()
            finally:
                del self._calls[process]
            depth = DEPTH if answer["seconds"] < QUICK_S else 1
            given[0].answers.append(answer)
            if "error" in answer or len(given[0].answers) == len(self._uses):
                self._finish(given.popleft())

    def _finish(self, job: _Job) -> None:
        """All functions have answered, or one has raised."""
        last = job.answers[-1]
        if "error" in last:
            name = self._uses[len(job.answers) - 1]
            job.fail(ScoringFailed(f"reward {name!r}: {last['error']}", trace=last["traceback"]))
            return
        rewards: dict[str, float] = {}
        for name, answer in zip(self.names, job.answers, strict=True):
            rewards[name] = answer["score"]
            rewards |= {f"{name}/{extra}": value for extra, value in answer["extras"].items()}
        total = sum(
            weight * float(answer["score"])
            for weight, answer in zip(self._weights, job.answers, strict=True)
        )
        if not math.isfinite(total):
            job.fail(ScoringFailed(f"the weighted sum of {rewards} is not finite"))
            return
        seconds = sum(float(answer["seconds"]) for answer in job.answers)
        self._took_s.append(seconds)
        if not job.outcome.done():
            job.outcome.set_result(Scored(reward=total, rewards=rewards, seconds=seconds))

    def _blame_hang(self, given: deque[_Job]) -> None:
        job = given.popleft()
        name = self._uses[len(job.answers)]
        logger.warning("reward %r did not return in %g s: killed", name, self._timeout_s)
        job.fail(
            ScoringFailed(f"reward {name!r} did not return in {self._timeout_s:g} s and was killed")
        )

    def _blame_death(self, given: deque[_Job], how: str) -> None:
        if given:
            job = given.popleft()
            name = self._uses[len(job.answers)]
            logger.warning("the process of reward %r %s", name, how)
            job.fail(ScoringFailed(f"reward {name!r}: its process {how}"))

    def _put_back(self, given: deque[_Job]) -> None:
        for job in given:
            job.answers.clear()
        self._pending.extendleft(reversed(given))
        self._arrived.set()
