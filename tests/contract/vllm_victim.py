"""A process that starts vLLM engines, of one worker and of two, says so, and waits to be killed."""

import asyncio
import sys
from pathlib import Path

from tests.contract.harness import make_engine
from tests.factories.loading import starting


async def main(folder: Path) -> None:
    engines = [make_engine("vllm", folder, tensor_parallel_size=size) for size in (1, 2)]
    weights = starting(folder, "float32")
    await asyncio.gather(*(engine.start(weights) for engine in engines))
    print("serving", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
