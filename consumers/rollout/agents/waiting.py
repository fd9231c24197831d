"""Waiting that a cut may end."""

import asyncio
from collections.abc import Awaitable

from consumers.rollout.agents.state import RolloutState


async def unless_cut(state: RolloutState, awaitable: Awaitable[object]) -> bool:
    """Await something; False when a cut ended the wait.

    No task stands between: what follows an admission happens in the same step of the event loop,
    so no swap can begin in between.
    """
    try:
        async with asyncio.timeout(None) as state.wait:
            await awaitable
    except TimeoutError:
        if state.wait is None or not state.wait.expired():
            raise
        return False
    finally:
        state.wait = None
    return True
