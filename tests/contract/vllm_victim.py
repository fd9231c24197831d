"""A process that starts a vLLM engine of two workers, says so, and waits to be killed."""

import asyncio
import sys
from pathlib import Path

from infra.weights.reader import starting
from tests.contract.harness import make_engine


async def main(folder: Path) -> None:
    engine = make_engine("vllm", folder, tensor_parallel_size=2)
    await engine.start(starting(folder, "float32"))
    print("serving", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
