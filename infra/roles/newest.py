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
    """

    def read() -> WeightsPublished | None:
        from infra.weights.store import WeightStore

        store = folder.weights(config)
        return WeightStore(store).newest(below=below) if store.is_dir() else None

    return await asyncio.to_thread(read)
