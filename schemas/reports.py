"""What heartbeats tell beyond counters: one report per role, small and bounded.

Durations are of the sender's monotonic clock, so no two machines' clocks are compared.
"""

from typing import Annotated

from pydantic import Field

from schemas.base import Count, Frozen, Int64

AGE_EDGES_S = (10.0, 60.0, 300.0, 1800.0)
"""Between the classes in which ages of rollouts are counted: below 10 s, ..., 30 min and more."""
MAX_TEXT = 400
MAX_ROWS = 16
MAX_REWARDS = 40

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Seconds = Annotated[float, Field(ge=0)]


def short(text: str) -> str:
    """Text of any length and origin as a `Text`: on one line, cut where it is too long."""
    line = " ".join(text[: 4 * MAX_TEXT].encode("utf-8", "replace").decode("utf-8").split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


class ToolInUse(Frozen):
    """The tool call that has run for longest."""

    name: Text
    rollout_id: Text
    running_s: Seconds
    usual_s: Seconds
    """Mean of this tool's finished calls; 0 before the first."""
    limit_s: Seconds
    """After which it is given up and the model is told."""
    given_up: bool = False
    """Its limit passed lately, and no other call runs for longer."""


class Suspect(Frozen):
    """A rollout that came back without progress: those who took it died, or gave it back."""

    rollout_id: Text
    returns: Count


class RolloutReport(Frozen):
    """Of a rollout worker."""

    engine: Text
    versions: Annotated[tuple[tuple[Int64, Count], ...], Field(max_length=MAX_ROWS)] = ()
    """Rollouts in flight by the version of their oldest token; -1: none sampled yet."""
    ages: Annotated[tuple[Count, ...], Field(max_length=len(AGE_EDGES_S) + 1)] = ()
    """The same by age since this worker took them, see `AGE_EDGES_S`."""
    generating: Count = 0
    """Of these, inside the engine."""
    in_tools: Count = 0
    """Of these, waiting for a tool."""
    token_age_s: Seconds = 0.0
    """Since the engine gave a token to anybody; 0 while it is empty or swaps."""
    stall_timeout_s: Seconds = 0.0
    """After which this worker gives such an engine up."""
    tool: ToolInUse | None = None
    behind_s: Seconds = 0.0
    """Since a version newer than the one served was heard of; 0 when there is none."""
    usual_update_s: Seconds = 0.0
    """Mean of its updates, from hearing of a version to serving it; 0 before the first."""
    refusal: Text = ""
    """Why `Heartbeat.refuses` cannot be served."""
    suspects: Annotated[tuple[Suspect, ...], Field(max_length=MAX_ROWS)] = ()


class RewardReport(Frozen):
    """Of a reward worker."""

    processes: Count
    queued: Count
    """Rollouts that it holds and no process scores."""
    scoring: Count
    """Rollouts that a process was given."""
    longest_s: Seconds = 0.0
    """Of the calls that run now."""
    usual_s: Seconds = 0.0
    """Mean seconds of the newest scores, all functions of a rollout together."""
    timeout_s: Seconds = 0.0
    functions: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()


class GivenUp(Frozen):
    """The newest member of a group that died."""

    rollout_id: Text
    error: Text
    ago_s: Seconds


class TrainerReport(Frozen):
    """Of the trainer."""

    num_steps: Count
    rewards: Annotated[tuple[float, ...], Field(max_length=MAX_REWARDS)] = ()
    """Mean reward of what arrived between two steps, of the newest ones, oldest first."""
    forecast: Annotated[tuple[Count, ...], Field(max_length=MAX_ROWS)] = ()
    """Open groups by the staleness of their oldest token when their turn comes (0, 1, ...; the
    last class holds all beyond)."""
    outstanding: Count = 0
    """Rollouts that were asked for and are not back."""
    barren: Count = 0
    """Groups filtered since one could last be trained."""
    barren_s: Seconds = 0.0
    """Since one could last be trained."""
    barren_reason: Text = ""
    suspects: Annotated[tuple[Suspect, ...], Field(max_length=MAX_ROWS)] = ()
    """Told by rollout workers lately, those that have died since included."""
    given_up: GivenUp | None = None
    version_bytes: Count = 0
    """Size of the newest version in the weight store."""
