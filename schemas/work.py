"""Work on its way through the queues: credit, task, snapshot, rollout, trajectory, failure."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import MAX_COUNT, Count, FreeForm, FreeTable, Frozen, Int64, Message, encodable
from schemas.chat import ChatMessage, ToolCall
from schemas.headers import Purpose
from schemas.tokens import Tokens

MAX_ERROR_CHARS = 4_000
MAX_TRACEBACK_CHARS = 20_000


class Credit(Message):
    """Permission to start one group, or its missing members (trainer -> producers).

    With purpose `eval` it asks for one evaluation: `group` is the version to evaluate and
    `indexes` are the members, `row * samples + sample`, of the held-out set.
    """

    group: Count
    purpose: Purpose = Purpose.TRAIN
    indexes: tuple[Count, ...]
    attempt: Count = 0
    min_version: Count = 0
    dataset_fingerprint: str
    seed: Int64
    group_size: Annotated[int, Field(gt=0, le=MAX_COUNT)]
    """For an evaluation, samples per prompt."""
    position: Count | None = None
    """In the shuffled dataset, where that is not the group's number: once a group was requeued."""


class Sampling(Frozen):
    """How tokens are drawn. Logprobs are of the distribution after these options."""

    temperature: float = Field(default=1.0, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: Count = 0
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """0 is off."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end an assistant turn and are part of it."""
    options: FreeTable = {}
    """The engine's own sampling parameters. With any, the rollout stays on its worker: what they
    do depends on the tokens since the request began."""
    seed: Int64 = 0
    """Of the run; a request's own seed is derived from it, the rollout id and the position."""


class Budgets(Frozen):
    """Absolute token and turn limits of a rollout; an interruption never grants them again."""

    max_prompt_tokens: int = Field(gt=0, le=MAX_COUNT)
    max_response_tokens: int = Field(gt=0, le=MAX_COUNT)
    """Everything after the prompt: sampled, tool and user tokens."""
    max_turn_tokens: int = Field(gt=0, le=MAX_COUNT)
    """Sampled tokens of one turn."""
    max_turns: int = Field(gt=0, le=MAX_COUNT)
    """Assistant turns."""
    min_tokens: Count = 0
    """Sampled tokens of one turn before a stop token or a stop string may end it."""


class RewardData(Frozen):
    """What the reward functions are given beside the rollout."""

    data_source: str = ""
    ground_truth: FreeForm = None
    extra_info: FreeTable = {}


class RolloutTask(Message):
    """One rollout to be done."""

    rollout_id: str
    group: Count
    index: Count
    purpose: Purpose = Purpose.TRAIN
    row: Count
    """Row of the dataset that the prompt came from."""
    agent: str
    messages: tuple[ChatMessage, ...]
    prompt_hash: str
    """sha256 of the canonical JSON of `messages`."""
    tools: tuple[str, ...] = ()
    """Registered names or import paths."""
    sampling: Sampling
    budgets: Budgets
    reward_data: RewardData = RewardData()


class AgentPhase(StrEnum):
    """State of the agent loop."""

    PENDING = "pending"
    """The prompt is not rendered yet."""
    GENERATING = "generating"
    """The policy is writing a turn."""
    PROCESSING_TOOLS = "processing_tools"
    """Tool calls of the last turn are running."""
    INTERACTING = "interacting"
    """A user or environment answers."""
    TERMINATED = "terminated"
    """The rollout is complete."""


class TurnKind(StrEnum):
    """Who wrote a span of tokens."""

    PROMPT = "prompt"
    """The rendered prompt."""
    ASSISTANT = "assistant"
    """Sampled by the policy."""
    TOOL = "tool"
    """Tool results, with the template around them."""
    USER = "user"
    """An interaction's reply, with the template around it."""


class Turn(Frozen):
    """A span `[start, stop)` of the rollout's tokens."""

    kind: TurnKind
    start: Count
    stop: Count
    finish_reason: str | None = None


class ToolResult(Frozen):
    """What a finished call gave back to the model."""

    call: ToolCall
    content: str
    ok: bool
    """False when the text tells the model of an error."""
    duration_s: float = 0.0


class Interruption(Frozen):
    """One cut: where, by whom, why and under which version."""

    at_token: Count
    """Length of the token sequence when it was cut."""
    version: Count
    worker: str
    reason: Literal["sync", "leave", "interval", "stall"]


class Timings(Frozen):
    """Seconds that a rollout spent, summed over its workers."""

    generating_s: float = 0.0
    tools_s: float = 0.0
    waiting_s: float = 0.0
    """In a slot, neither generating nor in a tool."""


class Progress(Frozen):
    """What snapshot and rollout have in common: the conversation so far."""

    num_prompt_tokens: Count
    interruptions: tuple[Interruption, ...] = ()
    num_prefilled: Count = 0
    """Tokens of requests that engines computed, once for every request; the sampled ones not."""
    num_cached: Count = 0
    """Tokens of requests that came from engines' prefix caches instead."""
    num_reprefilled: Count = 0
    """Of `num_prefilled`, those that had been computed before a cut already."""
    num_resumed_elsewhere: Count = 0
    """Cuts after which another worker went on."""
    timings: Timings = Timings()
    tool_results: tuple[ToolResult, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    """The conversation as text, the prompt included."""
    tokens: Tokens

    @model_validator(mode="after")
    def _spans_fit(self) -> Self:
        length = len(self.tokens)
        if self.num_prompt_tokens > length:
            raise ValueError(f"num_prompt_tokens {self.num_prompt_tokens} exceeds {length} tokens")
        position = 0
        for turn in self.turns:
            if turn.start != position or turn.stop < turn.start or turn.stop > length:
                raise ValueError(f"turn [{turn.start}, {turn.stop}) does not continue {position}")
            position = turn.stop
        return self


class Snapshot(Message):
    """An unfinished rollout: everything needed to continue it anywhere."""

    task: RolloutTask
    phase: AgentPhase
    worker: str
    """Whose it was."""
    turn_start: Count
    """Where the unfinished assistant turn begins in `progress.tokens`; its end if there is none."""
    num_turns: Count
    """Assistant turns that are complete."""
    pending_calls: tuple[ToolCall, ...] = ()
    """Calls of the last turn without a recorded result."""
    agent_state: FreeTable = {}
    """What a custom agent, interaction or saveable tool needs to go on."""
    progress: Progress


class RolloutStatus(StrEnum):
    """How a rollout ended."""

    COMPLETED = "completed"
    """The policy ended it."""
    TRUNCATED = "truncated"
    """A budget ended it."""


class Rollout(Message):
    """One attempt, complete and not yet scored."""

    rollout_id: str
    group: Count
    index: Count
    purpose: Purpose
    row: Count
    status: RolloutStatus
    finish_reason: str
    """`stop`, `length`, `max_turns`, ..."""
    worker: str
    agent: str
    prompt_hash: str
    reward_data: RewardData
    stop_token_ids: tuple[Count, ...] = Field(default=(), max_length=256)
    """Those that could not be among the first `budgets.min_tokens` of a turn; empty where that
    is 0."""
    tools: tuple[str, ...] | None = None
    """Of the task, with what follows: all that it takes to replay it. None: the recipe's."""
    sampling: Sampling | None = None
    budgets: Budgets | None = None
    progress: Progress


class Trajectory(Message):
    """A rollout with its reward."""

    reward: float
    rewards: dict[str, float] = {}
    """Unweighted, by function name."""
    reward_s: float = 0.0
    """Seconds that scoring took."""
    rollout: Rollout


class FailureKind(StrEnum):
    """Whose fault a failure is."""

    INFRA = "infra"
    """Returns without progress, an unreachable service."""
    DATA = "data"
    """The content itself: an exception, a time-out, a malformed result."""


class OriginalMessage(Frozen):
    """The message that failed, kept so that it can be looked at and requeued."""

    queue: str
    type: str
    message_id: str = ""
    headers: FreeTable = {}
    content_encoding: str | None = None
    truncated: bool = False
    body: str
    """Base64 of the bytes as they came."""


class Failure(Message):
    """A member of a group that ended without a trajectory; goes to `dead`."""

    rollout_id: str = ""
    group: Int64 = -1
    """-1 when the headers did not tell."""
    index: Int64 = -1
    purpose: Purpose = Purpose.TRAIN
    attempt: Count = 0
    stage: str
    """Role that gave up: `producer`, `rollout`, `reward`, `trainer`, `broker`."""
    kind: FailureKind
    error: str
    """Its first `MAX_ERROR_CHARS`."""
    traceback: str = ""
    """Its last `MAX_TRACEBACK_CHARS`."""
    attempts: Count = 1
    """Times it was tried, the last one included."""
    returns: Count = 0
    """Of these, times it came back from a worker (infrastructure budget)."""
    data_attempts: Count = 0
    """Of these, times it failed by itself (data budget)."""
    worker: str = ""
    original: OriginalMessage | None = None

    @field_validator("error", mode="before")
    @classmethod
    def _begins(cls, text: str) -> str:
        return encodable(text[:MAX_ERROR_CHARS])

    @field_validator("traceback", mode="before")
    @classmethod
    def _ends(cls, text: str) -> str:
        return encodable(text[-MAX_TRACEBACK_CHARS:])


class Requeue(Message):
    """An operator wants a dead member of a group back (operator -> `failures` -> trainer).

    Headers name run, purpose, group and member, as a failure's do.
    """

    letter: str
    """Id of the dead letter."""
    by: str
    original: OriginalMessage
    """What died, its budget granted anew."""
