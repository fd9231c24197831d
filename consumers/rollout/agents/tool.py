"""Tool calls and results until the policy answers without a call."""

from consumers.rollout.agents.base import Agent
from infra.roles.registry import register


@register("agent", "tool")
class ToolAgent(Agent):
    """Shows the task's tools and serves every call of every turn."""

    uses_tools = True
