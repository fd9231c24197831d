"""The run configuration: sections, keys and defaults of a recipe."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import MAX_COUNT, Frozen, Int64
from schemas.tracking import TrackingSection

Number = Annotated[int, Field(le=MAX_COUNT)]
"""None is too large to be counted with, or to be written where 64 bits are all there are."""


class RunSection(Frozen):
    """What the run is called and how long it is."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """Prefix of its queues and name of its folder."""
    dir: str = "runs"
    """Folder that holds run folders."""
    seed: Int64 = 0
    """Of data order, sampling and everything else that is random."""
    steps: Number = Field(gt=0)
    """Optimizer steps to take."""


class BrokerSection(Frozen):
    """Where RabbitMQ is."""

    url: str = ""
    """AMQP URL; empty starts a private node. WARREN_BROKER_URL wins."""
    heartbeat: int = Field(default=20, ge=1, le=600)
    """Seconds between AMQP heartbeats."""
    recording: bool = True
    """Whether a stream hears every data message, for `replay queue`; no guarantee needs it."""


class ModelSection(Frozen):
    """The model to train."""

    path: str
    """Hugging Face folder with config, tokenizer and safetensors weights."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the published weights and of the engines; the trainer keeps float32 masters."""


class DataSource(Frozen):
    """One dataset file."""

    path: str
    """`.jsonl` or `.parquet`."""
    weight: float = Field(default=1.0, gt=0)
    """Share in the mix, relative to the other sources of `data.train`."""
    columns: dict[str, str] = {}
    """Our column name -> the file's: prompt, messages, ground_truth, data_source, extra_info."""


class DataSection(Frozen):
    """Prompts to train on and prompts held out."""

    train: tuple[DataSource, ...] = Field(min_length=1)
    """Files to train on."""
    eval: tuple[DataSource, ...] = ()
    """Held-out files."""


class RolloutSection(Frozen):
    """Rollout workers: engine, agent loop and budgets."""

    engine: Literal["transformers", "vllm", "sglang", "simulated"] = "transformers"
    """What generates tokens."""
    workers: Number = Field(default=1, ge=1)
    """Processes that `up` starts."""
    slots: Number = Field(default=32, ge=1)
    """Rollouts that one worker holds at a time."""
    agent: str = "single_turn"
    """`single_turn`, `tool`, or an import path `package.module:name`."""
    parser: str = "hermes"
    """Tool-call parser: a registered name or an import path."""
    tools: tuple[str, ...] = ()
    """Registered names or import paths of tools."""
    max_prompt_tokens: Number = Field(default=1024, gt=0)
    """Longer prompts are data failures."""
    max_response_tokens: Number = Field(default=1024, gt=0)
    """Everything after the prompt, tool results included."""
    max_turn_tokens: Number = Field(default=1024, gt=0)
    """Sampled tokens of one assistant turn."""
    max_turns: Number = Field(default=8, gt=0)
    """Assistant turns of one rollout."""
    temperature: float = Field(default=1.0, ge=0)
    """Of sampling; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus; 1 is off."""
    top_k: Number = Field(default=0, ge=0)
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens below this share of the likeliest one's probability are not sampled; 0 is off."""
    min_tokens: Number = Field(default=0, ge=0)
    """Sampled tokens of an assistant turn before something may end it."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end an assistant turn, beside the model's own end tokens; they stay in it."""
    sampling_options: dict[str, Any] = {}
    """The engine's own sampling parameters (penalties, guided decoding); only with `on_sync =
    "in_flight"`. Such rollouts stay on their worker."""
    on_sync: Literal["republish", "in_flight", "drain"] = "republish"
    """What happens to running rollouts when new weights arrive."""
    drain_deadline: float = Field(default=60.0, gt=0)
    """Seconds that `on_sync = "drain"` waits for turns to end before it cuts the rest."""
    kv_cache: Literal["recompute", "keep"] = "recompute"
    """Of rollouts that cross a swap inside the engine."""
    snapshot_interval: float = Field(default=300.0, gt=0)
    """Seconds after which a rollout is cut and handed over; bounds what a kill can lose."""
    tool_timeout: float = Field(default=30.0, gt=0)
    """Seconds one tool call may take."""
    grace: float = Field(default=60.0, gt=0)
    """Seconds a worker has to hand over its rollouts when told to leave."""
    stall_timeout: float = Field(default=600.0, gt=0)
    """Seconds without a new token, turn or tool result after which a rollout is handed over."""
    data_attempts: Number = Field(default=3, ge=1)
    """Times a rollout may fail by itself (exception, time-out, malformed result) before it is
    dead; what the fleet does to it, such as a killed worker, is counted apart."""
    engine_options: dict[str, Any] = {}
    """Passed to the engine."""


class RewardFunction(Frozen):
    """One reward function and its weight."""

    use: str
    """A registered name or an import path `package.module:name`."""
    weight: float = 1.0
    """In the weighted sum."""


class RewardSection(Frozen):
    """How rollouts are scored."""

    functions: tuple[RewardFunction, ...] = Field(min_length=1)
    """Scored separately, summed by weight."""
    workers: Number = Field(default=1, ge=1)
    """Processes that `up` starts."""
    timeout: float = Field(default=30.0, gt=0)
    """Seconds one call may take before its process is killed."""


class AlgorithmSection(Frozen):
    """Groups, objective and staleness."""

    objective: str = "ppo_clip"
    """Loss on the batch: `ppo_clip`, or an import path."""
    advantages: str = "grpo"
    """How rewards become advantages: `grpo`, `dr_grpo`, `rloo`, or an import path."""
    group_size: Number = Field(default=8, ge=1)
    """Rollouts of one prompt."""
    min_group_size: Number = Field(default=2, ge=1)
    """Usable members without which a group is not trained."""
    groups_per_step: Number = Field(default=16, ge=1)
    """Groups in one batch."""
    steps_per_publish: Number = Field(default=1, ge=1)
    """Optimizer steps between weight publications."""
    clip_low: float = Field(default=0.2, ge=0)
    """Ratio floor is 1 - this."""
    clip_high: float = Field(default=0.28, ge=0)
    """Ratio ceiling is 1 + this."""
    dual_clip: float = Field(default=3.0, gt=1)
    """Bounds the loss of a token with negative advantage."""
    max_staleness: float = Field(default=0.5, ge=0)
    """Groups in flight beyond one batch, in batches; 0 is on-policy."""
    max_version_lag: Number = Field(default=8, ge=0)
    """Bound on the age of a trajectory's oldest token, in versions."""
    on_stale: Literal["wait", "drop", "train"] = "wait"
    """What happens to what would exceed it."""
    filter_zero_variance: bool = True
    """Replace groups whose rewards are all equal."""
    on_failure: Literal["shrink", "replace"] = "shrink"
    """What a group does that lost members to failures: go on with the siblings that are left
    (at least `min_group_size`), or ask for those members again by a credit, once."""
    max_fruitless: Number = Field(default=200, ge=1)
    """Groups closed in a row, none trainable, before a warning, or a stop (`on_deadline`). When
    every one of them died, twice as many stop the run in any case."""


class TrainerSection(Frozen):
    """Optimizer and batching."""

    lr: float = Field(gt=0)
    """Peak learning rate."""
    warmup_steps: Number = Field(default=10, ge=0)
    """Linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    micro_batch_tokens: Number = Field(default=8192, gt=0)
    """Tokens of one packed micro-batch."""
    lora_rank: Number = Field(default=0, ge=0)
    """Of a low-rank adapter (LoRA) that is trained in place of all weights; 0 is off."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """The adapter counts `lora_alpha / lora_rank` times."""
    lora_targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
    )
    """Names of the linear layers that get one."""


class WeightsSection(Frozen):
    """Where published weights lie, and in what form."""

    store: str = ""
    """Folder that trainer and rollout workers see, or a URL as in `s3://bucket/prefix` (needs
    `pip install 'warren[s3]'`; credentials come from the environment); empty is `weights` in the
    run folder."""
    codec: Literal["step", "absolute", "full"] = "step"
    """How a version tells what changed since the one before: by the differences (smallest), by the
    new values, or `full`, all of it each time."""
    keyframe_every: Number = Field(default=20, ge=1)
    """Versions from one that is stored whole to the next; who joins begins with the newest."""
    keep: Number = Field(default=2, ge=2)
    """Newest whole versions that stay in the store, with all versions since."""
    cache: str = ""
    """Folder in which each rollout worker keeps the version that it serves and the one in the
    making, with room for three copies; empty is shared memory, or where that is too small, the
    folder for temporary files."""


class CheckpointSection(Frozen):
    """When the trainer saves everything."""

    every: Number = Field(default=50, ge=1)
    """Steps between checkpoints; one is always saved at the end."""
    keep: Number = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    journal_bytes: Number = Field(default=1024**3, ge=0)
    """What no kept checkpoint needs of the journal stays, to be looked at, while the journal is
    smaller than this; 0 removes it with its checkpoint."""


class EvalSection(Frozen):
    """Held-out evaluation."""

    every: Number = Field(default=10, ge=1)
    """Versions between evaluations; the first and the last are always evaluated."""
    prompts: Number = Field(default=256, ge=1)
    """Rows of `data.eval` to use."""
    samples: Number = Field(default=1, ge=1)
    """Rollouts of each prompt."""
    temperature: float = Field(default=1.0, ge=0)
    """Of evaluation sampling."""


class DeadlinesSection(Frozen):
    """How long things may take before somebody is told."""

    warn_after: float = Field(default=10.0, gt=0)
    """Seconds after which a wait says what it waits for."""
    reissue_grace: float = Field(default=30.0, gt=0)
    """Seconds of empty queues before an unheld member is issued again."""
    reissue_after: float = Field(default=600.0, gt=0)
    """Seconds of silence before a member is issued again."""
    eval_deadline: float = Field(default=600.0, gt=0)
    """Seconds an evaluation may stay open."""
    on_deadline: Literal["warn", "stop"] = "warn"
    """What a passed deadline does."""
    stall: float = Field(default=1800.0, gt=0)
    """Seconds without what a role waits for, after which it is past its deadline; having no work
    is none."""


class SuperviseSection(Frozen):
    """What `up` does about a role that died."""

    restarts: Number = Field(default=5, ge=0)
    """Times each process is started again within `window`; 0: the first death ends the run."""
    window: float = Field(default=600.0, gt=0)
    """Seconds after which a death is forgotten."""
    backoff: float = Field(default=1.0, gt=0)
    """Seconds before the first restart, doubled for each further one."""
    max_backoff: float = Field(default=30.0, gt=0)
    """Longest of these pauses."""
    leavers: bool = False
    """Whether a process that was told to leave (exit 0 in the middle of a run) is replaced."""


class RunConfig(Frozen):
    """A recipe, complete and checked."""

    run: RunSection
    broker: BrokerSection = BrokerSection()
    model: ModelSection
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection
    algorithm: AlgorithmSection = AlgorithmSection()
    trainer: TrainerSection
    weights: WeightsSection = WeightsSection()
    checkpoint: CheckpointSection = CheckpointSection()
    eval: EvalSection = EvalSection()
    deadlines: DeadlinesSection = DeadlinesSection()
    supervise: SuperviseSection = SuperviseSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        algorithm = self.algorithm
        if algorithm.min_group_size > algorithm.group_size:
            raise ValueError(
                f"algorithm.min_group_size={algorithm.min_group_size} exceeds "
                f"algorithm.group_size={algorithm.group_size}"
            )
        rollout = self.rollout
        if rollout.sampling_options and rollout.on_sync != "in_flight":
            raise ValueError(
                f"rollout.sampling_options={sorted(rollout.sampling_options)} with "
                f'rollout.on_sync="{rollout.on_sync}": a rollout that is cut goes on as a new '
                f"request, for which the engine would count penalties, or begin a grammar, anew; "
                f'use rollout.on_sync = "in_flight"'
            )
        if any("\ufffd" in string for string in rollout.stop):
            raise ValueError(
                f"rollout.stop={list(rollout.stop)} has the replacement character U+FFFD: so "
                f"looks every character of which only some bytes are there yet, and where a turn "
                f"ends would depend on where it is cut; leave it out"
            )
        for name in ("max_turn_tokens", "max_response_tokens"):
            most = getattr(rollout, name)
            if rollout.min_tokens > most:
                raise ValueError(
                    f"rollout.min_tokens={rollout.min_tokens} exceeds rollout.{name}={most}"
                )
        if self.trainer.lora_rank and self.rollout.engine == "simulated":
            raise ValueError(
                "trainer.lora_rank: the simulated engine holds no weights to which an adapter "
                "could be added; choose another rollout.engine"
            )
        needed = math.ceil(algorithm.max_staleness)
        if algorithm.max_version_lag < needed:
            raise ValueError(
                f"algorithm.max_version_lag={algorithm.max_version_lag} cannot hold "
                f"algorithm.max_staleness={algorithm.max_staleness}: use at least {needed}"
            )
        return self

    @model_validator(mode="after")
    def _keeps_secrets(self) -> Self:
        """The recipe is written to the run folder, and its values to logs."""
        _, separator, rest = self.weights.store.partition("://")
        user, _, _ = rest.partition("/")[0].rpartition("@")
        if separator and (":" in user or "?" in rest):
            raise ValueError(
                "weights.store holds a password or a query; give the address alone, and "
                "credentials in the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            )
        return self

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        """A key that would do nothing is refused, for whoever sets it means something by it."""
        rollout = self.rollout
        if rollout.on_sync != "drain" and rollout.drain_deadline != RolloutSection().drain_deadline:
            raise ValueError(
                f"rollout.drain_deadline={rollout.drain_deadline:g} has no effect without "
                f'rollout.on_sync="drain"'
            )
        weights = self.weights
        if weights.codec == "full" and weights.keyframe_every != WeightsSection().keyframe_every:
            raise ValueError(
                f"weights.keyframe_every={weights.keyframe_every}: with weights.codec='full' "
                f"every version is whole; leave it out"
            )
        trainer, defaults = self.trainer, TrainerSection(lr=1.0)
        idle = [
            f"trainer.{name}"
            for name in ("lora_alpha", "lora_targets")
            if getattr(trainer, name) != getattr(defaults, name)
        ]
        if idle and not trainer.lora_rank:
            raise ValueError(f"{idle[0]} has no effect without trainer.lora_rank")
        weighted = [source.path for source in self.data.eval if source.weight != 1.0]
        if weighted:
            raise ValueError(
                f"data.eval: {weighted[0]} has a weight, but held-out files are read from their "
                f"first row on, one after the other; eval.prompts sets how many rows"
            )
        return self
