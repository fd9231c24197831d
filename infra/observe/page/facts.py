"""What is kept in memory of each rollout, group and step; bodies stay in the journal."""

from dataclasses import dataclass, field

from infra.runs.journal_reader import Position
from schemas.headers import Purpose
from schemas.work import Progress, RolloutStatus, Trajectory, TurnKind

PREVIEW_CHARS = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Facts that only the body tells."""

    status: str = ""
    finish_reason: str = ""
    worker: str = ""
    num_response: int = 0
    """Tokens after the prompt."""
    num_sampled: int = 0
    interruptions: int = 0
    turns: int = 0
    """Assistant turns."""
    tool_calls: int = 0
    tool_errors: int = 0
    seconds: float = 0.0
    """Generating, in tools and waiting."""
    preview: str = ""
    """How its last message begins."""
    problem: str = ""
    """Why the body cannot be read."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One arrival: a trajectory, or a failure."""

    number: int
    """In order of arrival."""
    position: Position
    type: str
    rollout_id: str
    group: str
    """Key of its group: `17`, or `eval20`."""
    index: int
    purpose: Purpose
    attempt: int
    reward: float | None
    oldest: int | None
    newest: int | None
    num_tokens: int
    error: str
    compressed: bool
    staleness: int | None
    """Trainer's version minus the oldest sampled token's: at its step, else on arrival."""
    step: int | None = None
    """That trained it."""
    inside: Inside | None = None
    """None until the body was read."""


@dataclass(slots=True, kw_only=True)
class Group:
    """Members of one prompt, or of one evaluation."""

    key: str
    number: int
    purpose: Purpose
    min_version: int = 0
    attempts: int = 1
    at: float = 0.0
    """Seconds since 1970 when it was issued first."""
    rows: list[int] = field(default_factory=list)
    end: str = "open"
    """`trained`, `filtered`, `stale`, `dead`; `scored` for an evaluation."""
    reason: str = ""
    step: int | None = None


@dataclass(slots=True, kw_only=True)
class Step:
    """One step decided."""

    step: int
    version: int
    groups: list[str]
    members: int
    rewards: list[float]
    """Of its members."""
    staleness: list[int]
    """Of its members' oldest tokens."""
    loss: float | None = None
    grad_norm: float | None = None
    weights_sha256: str = ""
    logprobs: Position | None = None
    """Where the trainer's logprobs of its tokens lie."""
    published: int | None = None
    skipped: str = ""
    """Why it was given up."""


def group_key(purpose: Purpose, number: int) -> str:
    """`17`, or `eval20`."""
    return f"eval{number}" if purpose is Purpose.EVAL else str(number)


def inside(trajectory: Trajectory) -> Inside:
    """Facts of one trajectory."""
    rollout, progress = trajectory.rollout, trajectory.rollout.progress
    timings = progress.timings
    return Inside(
        status=RolloutStatus(rollout.status).value,
        finish_reason=rollout.finish_reason,
        worker=rollout.worker,
        num_response=len(progress.tokens) - progress.num_prompt_tokens,
        num_sampled=progress.tokens.num_sampled,
        interruptions=len(progress.interruptions),
        turns=sum(turn.kind is TurnKind.ASSISTANT for turn in progress.turns),
        tool_calls=len(progress.tool_results),
        tool_errors=sum(not result.ok for result in progress.tool_results),
        seconds=timings.generating_s + timings.tools_s + timings.waiting_s,
        preview=_preview(progress),
    )


def _preview(progress: Progress) -> str:
    text = next((one.content for one in reversed(progress.messages) if one.content), "")
    flat = " ".join(text[: 4 * PREVIEW_CHARS].split())
    return flat if len(flat) <= PREVIEW_CHARS else flat[: PREVIEW_CHARS - 1] + "…"
