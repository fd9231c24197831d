"""A rollout worker whose engine stops in the middle of a step: `<recipe.json> <name> <steps>`.

With a path as fourth word it does not stop but creeps, until there is a file: whatever is to happen
in the middle of its work does, on any machine.
"""

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from consumers.rollout.engines.transformers.batch import Batch
from consumers.rollout.worker import ROLE, body
from infra.roles.lifecycle import serve
from schemas.config import RunConfig

CREEP_S = 0.05


def main(recipe: str, name: str, steps: str, gate: str = "") -> int:
    """Serve until the engine's thread hangs for ever, as on a lost device; or creeps."""
    config = RunConfig.model_validate(json.loads(Path(recipe).read_text()))
    step, left = Batch.step, [int(steps)]

    def hang(self: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and not gate:
            threading.Event().wait()
        if left[0] < 0 and not Path(gate).exists():
            time.sleep(CREEP_S)
        step(self)

    Batch.step = hang  # type: ignore[method-assign]
    return asyncio.run(serve(ROLE, config, body, worker=name))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
