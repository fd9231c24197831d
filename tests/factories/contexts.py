"""What a role is given, in a test that is not about its process."""

import asyncio
from typing import Any

from infra.observe.waits import Waits
from infra.roles.context import RoleContext
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


def role_context(
    config: RunConfig,
    broker: Any = None,
    *,
    role: str = "rollout",
    worker: str = "",
    folder: RunFolder | None = None,
    waits: Waits | None = None,
    run_id: str = "",
) -> RoleContext:
    """Its name is `<role>-1` and its folder the recipe's, if nothing else is said; without
    `run_id` it has still to learn which run it belongs to."""
    context = RoleContext(
        role=role,
        worker=worker or f"{role}-1",
        config=config,
        folder=folder or RunFolder.of(config),
        broker=broker,
        waits=waits or Waits(),
        stop=asyncio.Event(),
    )
    if run_id:
        context.set_run_id(run_id)
    return context
