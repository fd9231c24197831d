"""A process that starts an SGLang engine, says so, and waits to be killed."""

import asyncio
import sys
from pathlib import Path

from tests.contract.harness import make_engine
from tests.factories.loading import starting


async def main(name: str, folder: Path) -> None:
    engine = make_engine(name, folder)
    await engine.start(starting(folder, "float32"))
    print("serving", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
