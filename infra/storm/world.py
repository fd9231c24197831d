"""What the faults are given: the run, its broker, the proxy, and eyes on all of them."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.runs.folder import RunFolder
from infra.storm.proxy import Proxy
from infra.storm.watch import Watch
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

RECOVERY_TIMEOUT_S = 300.0
"""Longer than that, and what was hit has not survived."""
_APPEAR_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One storm's surroundings."""

    config: RunConfig
    folder: RunFolder
    entry: Path
    """The front door."""
    own: Path
    """The storm's own folder."""
    node: LocalBroker
    proxy: Proxy
    roles_url: str
    """Of the broker, through the proxy."""
    hostile: Broker
    """A client that means no good, straight at the broker."""
    watch: Watch
    processes: tuple[str, ...]
    """Names of the role processes."""
    queues: tuple[str, ...]
    """Names of the work queues that this recipe uses."""
    broker_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One thing at a time is done to the broker."""
    trainer_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held where the trainer must live, and while it is killed."""
    trainer_links: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held where the trainer must be heard, and while its connections are harmed."""
    ended: dict[str, int] = field(default_factory=dict)
    """Process -> the id that it had when it was killed last: until another runs, none does."""
    trainer_hits: list[int] = field(default_factory=list)
    """Steps that the run was at when its trainer was hit."""
    repeated: dict[str, int] = field(default_factory=dict)
    """What killed rollout workers had generated in vain, by reason."""

    def roles_environment(self, base: dict[str, str]) -> dict[str, str]:
        """Of processes that talk to the broker through the proxy."""
        from infra.amqp.url import management_url
        from infra.roles.broker_url import BROKER_VARIABLE

        return {
            **base,
            BROKER_VARIABLE: self.roles_url,
            "WARREN_MANAGEMENT_URL": management_url(self.node.url),
        }

    async def pid_of(self, name: str) -> int:
        """Id of a process once it runs; 0 when it does not in time."""
        pid = 0

        def runs() -> bool:
            nonlocal pid
            pid = self.watch.fleet().get(name, 0)
            return pid not in (0, self.ended.get(name))

        return pid if await self.watch.until(runs, _APPEAR_S) else 0

    async def spare_trainer(self) -> None:
        """Before the trainer is hit: it may be hit again while it recovers, once, and then not
        before it has made a step. Hit at each beginning, no trainer would ever get anywhere."""
        if len(self.trainer_hits) >= 2:
            bound = self.trainer_hits[-2]
            await self.watch.until(lambda: self.watch.step() > bound, RECOVERY_TIMEOUT_S)
        self.trainer_hits.append(self.watch.step())

    async def recovery_s(
        self, names: tuple[str, ...], *, began: float, without: int = 0
    ) -> float | None:
        """Seconds from `began` (the loop's clock) until all of these have worked again; None when
        they have not in time."""
        condition = self.watch.working_again(names, without=without)
        if not await self.watch.until(condition, RECOVERY_TIMEOUT_S):
            return None
        return asyncio.get_running_loop().time() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done and what was seen of it."""

    survived: bool
    target: str = ""
    """When it is another than was planned."""
    seconds: float = 0.0
    detail: str = ""
    recovery_s: float | None = None
