"""A turn that calls no tool is answered by the agent's interaction."""

import asyncio
import copy
from collections.abc import Awaitable, Callable

from consumers.rollout.agents.state import RolloutFailed, RolloutState
from consumers.rollout.interactions.base import Interaction
from infra.roles.errors import ConfigError
from infra.roles.registry import resolve

UnlessCut = Callable[[RolloutState, Awaitable[object]], Awaitable[bool]]


async def reply_to(state: RolloutState, unless_cut: UnlessCut) -> tuple[bool, str | None]:
    """Ask the partner once.

    Returns:
        Whether there is a reply (a cut may have prevented it), and the reply or None for the end.

    Raises:
        RolloutFailed: The partner does not exist or passed its limit.
        Exception: Whatever the partner raises.
    """
    partner = _partner(state)
    state.interaction_saved = copy.deepcopy(partner.save())
    state.answer_limit_s = partner.timeout_s
    asking = asyncio.ensure_future(partner.reply(tuple(state.messages)))
    try:
        finished = await unless_cut(state, asyncio.wait({asking}, timeout=partner.timeout_s))
        if not finished and not asking.done():
            if partner.repeatable:
                return False, None
            await asyncio.wait({asking}, timeout=partner.timeout_s)
        if not asking.done():
            raise RolloutFailed(
                f"the interaction of {state.rollout_id} did not reply in {partner.timeout_s:g} s"
            )
        if asking.cancelled():  # by itself: a cancelled rollout would not be here
            raise RolloutFailed(f"the interaction of {state.rollout_id} was cancelled")
        text = asking.result()
    finally:
        asking.cancel()
    state.interaction_saved = copy.deepcopy(partner.save())
    return True, text


def _partner(state: RolloutState) -> Interaction:
    if state.interaction is None:
        name = state.agent.interaction or ""
        try:
            kind = resolve("interaction", name)
        except ConfigError as error:
            raise RolloutFailed(
                f"interaction {name!r} cannot be had: {error}", final=True
            ) from error
        partner = kind(state.task)
        if not isinstance(partner, Interaction):
            raise RolloutFailed(
                f"interaction {name!r} is no Interaction",
                hint="subclass consumers.rollout.interactions.base.Interaction",
                final=True,
            )
        if state.interaction_saved:
            partner.restore(copy.deepcopy(state.interaction_saved))
        state.interaction = partner
    return state.interaction
