"""The newest version in the weight store, for whoever missed its broadcast."""

import asyncio

from infra.runs.folder import RunFolder
from schemas.config import RunConfig
from schemas.control import WeightsPublished


async def newest_manifest(
    folder: RunFolder, config: RunConfig, *, below: int | None = None
) -> WeightsPublished | None:
    """Read it in a thread; None when nothing was published yet.

    Args:
        below: Only versions that are older than this one.

    Raises:
        StoreFailed: The store cannot be read, now.
    """

    def read() -> WeightsPublished | None:
        from infra.weights.store import WeightStore

        return WeightStore.at(folder.weights(config)).newest(below=below)

    return await asyncio.to_thread(read)
