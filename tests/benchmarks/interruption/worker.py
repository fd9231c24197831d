"""A rollout worker that notes when what happens at a sync: `CONFIG NAME OUT`."""

import json
import sys
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from consumers.rollout.engines.base import Engine, Finish, GenerateRequest, TokenChunk
from consumers.rollout.engines.build import build_engine
from consumers.rollout.worker import ROLE, serve_rollouts
from infra.roles.context import RoleContext
from infra.roles.lifecycle import run_role, serve
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.config import RunConfig
from schemas.control import WeightsPublished


@dataclass
class Sync:
    """Monotonic seconds; 0.0 for what did not happen."""

    version: int
    heard: float
    in_flight: int
    told: float = 0.0
    stopped: float = 0.0
    loading: float = 0.0
    swapped: float = 0.0
    first_token: float = 0.0


@dataclass
class Notes:
    """Of one worker."""

    syncs: list[Sync] = field(default_factory=list)
    num_tokens: int = 0
    """That left the engine."""
    num_recomputed: int = 0
    """Of running requests when weights were swapped under them: the engine computes them again."""
    running: dict[str, int] = field(default_factory=dict)
    """Lengths of requests in the engine, by id."""

    def hear(self, published: WeightsPublished) -> None:
        """The broadcast is there."""
        self.syncs.append(Sync(published.version, time.monotonic(), len(self.running)))

    def note(self, name: str, *, last: bool = False, version: int | None = None) -> None:
        """It happens now; only the first time counts, or the last.

        Args:
            name: Field of `Sync`.
            last: The last time counts.
            version: The sync's; None for the newest.
        """
        sync = self.syncs[-1] if self.syncs else None
        if sync is None or (version is not None and sync.version != version):
            return
        if last or not getattr(sync, name):
            setattr(sync, name, time.monotonic())


class NotingEngine:
    """A real engine, watched."""

    def __init__(self, inner: Engine, notes: Notes) -> None:
        self._inner, self._notes = inner, notes

    async def start(self, weights: PreparedWeights) -> None:
        await self._inner.start(weights)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        notes = self._notes
        notes.running[request.request_id] = len(request.token_ids)
        try:
            async for item in self._inner.generate(request):
                if isinstance(item, TokenChunk):
                    notes.num_tokens += len(item.token_ids)
                    notes.running[request.request_id] += len(item.token_ids)
                    notes.note("first_token", version=item.policy_version)
                yield item
        finally:
            del notes.running[request.request_id]
            if notes.syncs and not notes.syncs[-1].loading:
                notes.note("stopped", last=True)

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        self._notes.note("told")
        await self._inner.interrupt(request_ids)

    async def load_weights(self, weights: PreparedWeights) -> None:
        self._notes.note("loading", version=weights.version)
        self._notes.num_recomputed += sum(self._notes.running.values())
        await self._inner.load_weights(weights)
        self._notes.note("swapped", version=weights.version)

    def serving(self) -> ServedWeights:
        return self._inner.serving()

    async def close(self) -> None:
        await self._inner.close()


def main(recipe: str, name: str, out: str) -> int:
    """Serve until SIGTERM, then write what was noted."""
    config = RunConfig.model_validate_json(Path(recipe).read_text())
    notes = Notes()

    async def body(context: RoleContext) -> None:
        context.on_weights(notes.hear)
        await serve_rollouts(
            context, build_engine=lambda recipe: NotingEngine(build_engine(recipe), notes)
        )

    try:
        return run_role(serve(ROLE, config, body, worker=name))
    finally:
        Path(out).write_text(json.dumps(asdict(notes)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
