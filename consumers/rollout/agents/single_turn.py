"""One question, one answer."""

from consumers.rollout.agents.base import Agent
from infra.roles.registry import register


@register("agent", "single_turn")
class SingleTurnAgent(Agent):
    """Shows no tools and ends with the first turn."""
