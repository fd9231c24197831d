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
        RolloutFailed: The partner does not exist, raised, or passed its limit.
    """
    partner = _partner(state)
    state.interaction_saved = copy.deepcopy(partner.save())
    asking = asyncio.ensure_future(_ask(partner, state))
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
        text = asking.result()
    finally:
        asking.cancel()
    state.interaction_saved = copy.deepcopy(partner.save())
    return True, text


async def _ask(partner: Interaction, state: RolloutState) -> str | None:
    try:
        return await partner.reply(tuple(state.messages))
    except Exception as error:  # user code: its failure is this rollout's
        raise RolloutFailed(
            f"the interaction of {state.rollout_id} failed: {type(error).__name__}: {error}"
        ) from error


def _partner(state: RolloutState) -> Interaction:
    if state.interaction is None:
        name = state.agent.interaction or ""
        try:
            kind = resolve("interaction", name)
        except ConfigError as error:
            raise RolloutFailed(f"interaction {name!r} cannot be had: {error}") from error
        partner = kind(state.task)
        if not isinstance(partner, Interaction):
            raise RolloutFailed(
                f"interaction {name!r} is no Interaction",
                hint="subclass consumers.rollout.interactions.base.Interaction",
            )
        if state.interaction_saved:
            partner.restore(copy.deepcopy(state.interaction_saved))
        state.interaction = partner
    return state.interaction
