"""A real rollout worker with real weights, whose engine only keeps the pace of one.

`python -m tests.benchmarks.paced_worker CONFIG NAME`: as many workers as one likes then generate on
two cores, while each fetches, decodes and verifies as with any other engine.
"""

import sys
from pathlib import Path

from consumers.rollout.engines.simulated.engine import SimulatedEngine
from consumers.rollout.worker import serve_rollouts
from infra.roles.context import RoleContext
from infra.roles.lifecycle import run_role, serve
from schemas.config import RunConfig

PACE = {"token_s": 0.02, "mean_tokens": 60.0}


def build(config: RunConfig) -> SimulatedEngine:
    """The engine."""
    section = config.rollout
    return SimulatedEngine(
        model_folder=Path(config.model.path),
        slots=section.slots,
        max_model_len=section.max_prompt_tokens + section.max_response_tokens,
        options=PACE,
    )


async def body(context: RoleContext) -> None:
    """The role."""
    await serve_rollouts(context, build_engine=build)


if __name__ == "__main__":
    recipe = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())
    sys.exit(run_role(serve("rollout", recipe, body, worker=sys.argv[2])))
