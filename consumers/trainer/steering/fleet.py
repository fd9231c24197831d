"""Who is at work: heartbeats of the other roles, for waiting lines and for finding lost members."""

import asyncio
import logging
from collections import Counter

from infra.amqp.codec import decode
from infra.amqp.errors import BadMessage
from infra.roles.context import TRAINER, RoleContext
from infra.roles.heartbeats import LEFT
from schemas.control import Heartbeat
from schemas.reports import Suspect

logger = logging.getLogger(__name__)

GONE_AFTER_S = 15.0
"""A role that is silent for longer counts as gone."""
_MAY_RETURN_S = 60.0
"""One that was heard so lately may only be cut off: it is waited for before the trainer leaves."""
_SUSPECT_S = 60.0
_MAX_SUSPECTS = 4


class Fleet:
    """The newest heartbeat of each role process that is of our run, or knows none yet."""

    def __init__(self, ctx: RoleContext) -> None:
        self._ctx = ctx
        self._beats: dict[str, tuple[Heartbeat, float]] = {}
        self._suspects: dict[str, tuple[Suspect, float]] = {}

    async def run(self) -> None:
        """Listen until cancelled."""
        async for delivery in self._ctx.broker.events():
            if delivery.envelope.type != Heartbeat.__name__:
                continue
            try:
                beat = decode(delivery.envelope, delivery.body, Heartbeat)
            except BadMessage as error:
                logger.debug("a heartbeat that cannot be read: %s", error.reason)
                continue
            if beat.run_id not in ("", self._ctx.known_run_id):
                continue  # of another run of this name: its rollouts may have the ids of ours
            now = _now()
            name = f"{beat.role}/{beat.worker}"
            if beat.state == LEFT:
                self._beats.pop(name, None)
                continue
            if name not in self._beats:  # workers come and go for weeks
                self._beats = {k: v for k, v in self._beats.items() if now - v[1] < _MAY_RETURN_S}
            self._beats[name] = (beat, now)
            for suspect in beat.rollout.suspects if beat.rollout is not None else ():
                self._suspects[suspect.rollout_id] = (suspect, now)

    def alive(self) -> list[Heartbeat]:
        """Of roles heard lately."""
        now = _now()
        return [beat for beat, at in self._beats.values() if now - at < GONE_AFTER_S]

    def staying(self, since: float) -> list[str]:
        """Workers of this run that have not left, `role/worker`.

        Args:
            since: Loop time from which on `GONE_AFTER_S` of silence count as having left.
        """
        now, run_id = _now(), self._ctx.known_run_id
        return sorted(
            name
            for name, (beat, at) in self._beats.items()
            if beat.role != TRAINER
            and beat.run_id == run_id
            and since - at < _MAY_RETURN_S
            and now - max(at, since) < GONE_AFTER_S
        )

    def suspects(self) -> tuple[Suspect, ...]:
        """Rollouts that came back again and again lately, also to workers that died since."""
        now = _now()
        self._suspects = {k: v for k, v in self._suspects.items() if now - v[1] < _SUSPECT_S}
        found = sorted((one for one, _ in self._suspects.values()), key=lambda one: -one.returns)
        return tuple(found[:_MAX_SUSPECTS])

    def held(self) -> frozenset[str]:
        """Rollout ids that some process holds."""
        return frozenset(name for beat in self.alive() for name in beat.rollout_ids)

    def refuses(self, version: int) -> bool:
        """Whether no rollout worker serves a version, and those that could say that they cannot.

        Who serves nothing at all has only begun, and is not waited for.
        """
        workers = [beat for beat in self.alive() if beat.role == "rollout"]
        refusing = [beat for beat in workers if beat.refuses == version]
        others = [beat for beat in workers if beat.refuses != version and beat.version >= 0]
        return bool(refusing) and not others

    def newest_served(self) -> int:
        """The newest version that some rollout worker serves; -1 for none."""
        return max((beat.version for beat in self.alive() if beat.role == "rollout"), default=-1)

    def newest_refused(self) -> int:
        """The newest version that some rollout worker says it cannot serve; -1 for none."""
        return max((beat.refuses for beat in self.alive() if beat.role == "rollout"), default=-1)

    def describe(self) -> str:
        """`37 in flight on 4 rollout workers`, and which roles are missing."""
        counts = Counter(beat.role for beat in self.alive())
        missing = [role for role in ("producer", "rollout", "reward") if not counts[role]]
        if missing:
            return f"no {' and no '.join(missing)} process is heard"
        return f"{len(self.held())} in flight on {counts['rollout']} rollout workers"


def _now() -> float:
    return asyncio.get_running_loop().time()
