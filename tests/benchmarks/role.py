"""One measured role process: `python -m tests.benchmarks.role ROLE CONFIG NAME PROFILE TOKENS`.

SIGUSR1 begins to sample where the time goes; SIGTERM ends the role and writes the profile.
"""

import signal
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from consumers.rollout.engines.base import Finish, GenerateRequest, TokenChunk
from infra.roles.context import RoleContext
from infra.roles.lifecycle import run_role, serve
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.config import RunConfig
from tests.benchmarks.sampler import Sampler

EOS = 2


class InstantEngine:
    """Answers at once with a fixed number of tokens."""

    def __init__(self, num_tokens: int) -> None:
        body = (7,) * (num_tokens - 1)
        self._chunk_ids = (*body, EOS)
        self._logprobs = (-0.5,) * num_tokens
        self._served = ServedWeights(version=-1, fingerprint="")

    async def start(self, weights: PreparedWeights) -> None:
        self._served = ServedWeights(version=weights.version, fingerprint=weights.fingerprint)

    async def load_weights(self, weights: PreparedWeights) -> None:
        await self.start(weights)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        yield TokenChunk(
            token_ids=self._chunk_ids,
            logprobs=self._logprobs,
            policy_version=self._served.version,
        )
        yield Finish(reason="stop")

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        return None

    def serving(self) -> ServedWeights:
        return self._served

    async def close(self) -> None:
        return None


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """The cheapest reward."""
    return float(len(solution_str) % 2)


def main(role: str, recipe: str, name: str, profile: str, num_tokens: int) -> int:
    """Run a real role, sampled."""
    config = RunConfig.model_validate_json(Path(recipe).read_text())
    sampler = Sampler()
    signal.signal(signal.SIGUSR1, lambda *_: sampler.start())
    try:
        if role == "rollout":
            from consumers.rollout.worker import serve_rollouts

            async def body(context: RoleContext) -> None:
                await serve_rollouts(context, build_engine=lambda _: InstantEngine(num_tokens))

            return run_role(serve("rollout", config, body, worker=name))
        if role == "reward":
            from consumers.reward.worker import run
        else:
            from producers.prompts import run
        return run(config, worker=name)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sampler.save(Path(profile))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5], num_tokens=int(sys.argv[5])))
