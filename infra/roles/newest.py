"""The newest version in the weight store, for whoever missed its broadcast."""

import asyncio

from infra.runs.folder import RunFolder
from schemas.config import RunConfig
from schemas.control import WeightsPublished


async def newest_manifest(folder: RunFolder, config: RunConfig) -> WeightsPublished | None:
    """Read it in a thread; None when nothing was published yet."""

    def read() -> WeightsPublished | None:
        from infra.weights.store import WeightStore

        store = folder.weights(config)
        return WeightStore(store).newest() if store.is_dir() else None

    return await asyncio.to_thread(read)
