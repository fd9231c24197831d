"""Metrics of the trainer's lines: steps, evaluations, the end."""

from infra.observe.metrics.metric import Kind, Metric, Source

COORDINATES = ("kind", "step", "version", "published", "replayed")
"""Keys of a line that are no metrics: what it is of. `version` is the one that was trained (of an
evaluation: evaluated), `published` the one that the step made, `replayed` a step taken again."""


def _step(name: str, unit: str, meaning: str, kind: Kind = Kind.GAUGE) -> Metric:
    return Metric(name, kind, unit, meaning, Source.STEP)


def _eval(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, meaning, Source.EVAL)


def _end(name: str, unit: str, meaning: str, kind: Kind = Kind.COUNTER) -> Metric:
    return Metric(name, kind, unit, meaning, Source.END)


STEPS = (
    _step("arrived/trajectories", "rollouts", "that came in since the step before"),
    _step("arrived/interruptions", "cuts", "of these"),
    _step("arrived/reward", "reward", "mean of these: how well the policy does"),
    _step("reward/mean", "reward", "of the trained, whose groups all have unequal rewards"),
    _step("reward/std", "reward", "standard deviation of the trained"),
    _step("reward/min", "reward", "of the trained"),
    _step("reward/max", "reward", "of the trained"),
    _step("rewards/{function}", "reward", "mean over the trained of what one reward function said"),
    _step("groups/trained", "groups", "that the step was taken on"),
    _step("groups/filtered", "groups", "closed since the step before: equal rewards"),
    _step("groups/stale", "groups", "closed since the step before: too old"),
    _step("groups/dead", "groups", "closed since the step before: too few usable members"),
    _step("groups/open", "groups", "issued and not closed"),
    _step("members/failed", "rollouts", "that died since the step before"),
    _step("members/replaced", "rollouts", "asked for again in place of dead ones"),
    _step("members/reissued", "rollouts", "missing, and asked for again"),
    _step("members/requeued", "rollouts", "dead ones that a person had tried again"),
    _step("members/late", "rollouts", "that came when they were decided"),
    _step("staleness/mean", "versions", "mean age of the trained tokens"),
    _step("staleness/max", "versions", "age of the oldest trained token"),
    _step("staleness/trajectory_mean", "versions", "mean over trajectories of the oldest token's"),
    _step("staleness/versions_mean", "versions", "mean number of versions in a trajectory"),
    _step("staleness/versions_max", "versions", "largest number of versions in a trajectory"),
    _step("age/{age}/tokens", "tokens", "trained, by age in versions", Kind.HISTOGRAM),
    _step("age/{age}/kl", "nats", "KL from rollout policy to policy of these, mean(rollout - new)"),
    _step("age/{age}/kl_k3", "nats", "the same, mean(rho - 1 - log rho): never negative"),
    _step("age/{age}/clip_frac", "share", "of these tokens, clipped"),
    _step("batch/num_trajectories", "rollouts", "trained"),
    _step("batch/num_tokens", "tokens", "of these, prompts included"),
    _step("batch/num_sampled", "tokens", "of these, sampled by the policy: what has a loss"),
    _step("batch/interruptions", "cuts", "of the trained"),
    _step("batch/resumed", "rollouts", "of the trained, cut at least once"),
    _step("batch/resumed_elsewhere", "rollouts", "of these, by another worker"),
    _step("batch/tokens_carried", "tokens", "of the trained, that outlived a cut"),
    _step("batch/tokens_prefilled", "tokens", "of the trained's requests, computed"),
    _step("batch/tokens_reprefilled", "tokens", "of these, computed before a cut already"),
    _step("batch/tokens_cached", "tokens", "of the trained's requests, found in a prefix cache"),
    _step("batch/prefix_hit_rate", "share", "cached of all tokens of requests"),
    _step("batch/truncated_frac", "share", "of the trained, out of budget"),
    _step("batch/turns_mean", "turns", "of the assistant, in a trained trajectory"),
    _step("batch/generating_s", "s", "mean time in an engine of a trained trajectory"),
    _step("batch/tools_s", "s", "mean time in tools"),
    _step("batch/waiting_s", "s", "mean time in a slot, neither generating nor in a tool"),
    _step("length/prompt_mean", "tokens", "of the trained"),
    _step("length/response_mean", "tokens", "of the trained: everything behind the prompt"),
    _step("length/response_max", "tokens", "of the trained"),
    _step("tools/calls", "calls", "in the trained"),
    _step("tools/errors", "calls", "of these, failed"),
    _step("tools/used_frac", "share", "of the trained, with at least one call"),
    _step("train/loss", "loss", "mean over sampled tokens"),
    _step("train/grad_norm", "norm", "before clipping"),
    _step("train/lr", "rate", "learning rate of the step"),
    _step("train/entropy", "nats", "mean over sampled tokens"),
    _step("train/kl", "nats", "KL from rollout policy to policy, mean(rollout - new)"),
    _step("train/kl_k3", "nats", "the same, mean(rho - 1 - log rho): never negative"),
    _step("train/mismatch_kl", "nats", "of tokens of the current version: engine against trainer"),
    _step("train/mismatch_kl_k3", "nats", "the same, never negative"),
    _step("train/ratio_mean", "ratio", "rho = policy / rollout policy"),
    _step("train/ratio_max", "ratio", "largest rho of a token"),
    _step("train/ess", "share", "effective sample size over tokens, (sum rho)^2 / (n sum rho^2)"),
    _step("train/clip_frac", "share", "of sampled tokens, clipped one way or another"),
    _step("train/clip_frac_low", "share", "below 1 - clip_low with a negative advantage"),
    _step("train/clip_frac_high", "share", "above 1 + clip_high with a positive advantage"),
    _step("train/clip_frac_dual", "share", "above dual_clip with a negative advantage"),
    _step("weights/bytes", "bytes", "written for the version that the step made"),
    _step("weights/keyframe", "0 or 1", "whether it is stored whole"),
    _step("weights/delta_share", "share", "its delta's size of the whole"),
    _step("weights/changed_share", "share", "of its values, changed"),
    _step("time/step_s", "s", "from step to step"),
    _step("time/wait_s", "s", "of these, until a batch was together: high, rollouts are slow"),
    _step("time/train_s", "s", "of these, in the step itself: high, the trainer is slow"),
    _step("time/publish_s", "s", "of these, to store and broadcast the version"),
    _step("time/encode_s", "s", "of these, to make its delta"),
    _step("time/reward_s", "s", "mean over the trained, in reward functions"),
    _step("perf/tokens_per_s", "tokens/s", "batch/num_tokens by time/step_s"),
)

EVALS = (
    _eval("eval/reward", "reward", "mean over held-out rollouts that were scored"),
    _eval("eval/num_scored", "rollouts", "scored"),
    _eval("eval/num_asked", "rollouts", "asked for"),
    _eval("eval/num_failed", "rollouts", "that died"),
    _eval("eval/num_other_version", "rollouts", "with tokens of another version"),
    _eval("eval/tokens_mean", "tokens", "of a scored rollout"),
    _eval("time/eval_s", "s", "from the request to the last rollout"),
)

_TALLY = (
    ("trajectories", "rollouts", "that came in"),
    ("tokens", "tokens", "of these, prompts included"),
    ("interruptions", "cuts", "of these"),
    ("resumed", "rollouts", "of these, cut at least once"),
    ("resumed_elsewhere", "times", "that another worker went on with one"),
    ("tokens_carried", "tokens", "that outlived a cut"),
    ("tokens_prefilled", "tokens", "of their requests, computed"),
    ("tokens_cached", "tokens", "of their requests, found in a prefix cache"),
    ("tokens_reprefilled", "tokens", "computed before a cut already"),
)

ENDS = (
    _end("ledger/issued", "groups", "asked for: the sum of the following five"),
    _end("ledger/open", "groups", "not closed", Kind.GAUGE),
    _end("ledger/trained", "groups", "closed"),
    _end("ledger/filtered", "groups", "closed: equal rewards"),
    _end("ledger/stale", "groups", "closed: too old"),
    _end("ledger/dead", "groups", "closed: too few usable members"),
    _end("ledger/balanced", "0 or 1", "whether the sum is right", Kind.GAUGE),
    _end("total/failed", "rollouts", "that died"),
    _end("total/replaced", "rollouts", "asked for again in place of dead ones"),
    _end("total/reissued", "rollouts", "missing, and asked for again"),
    _end("total/requeued", "rollouts", "dead ones that a person had tried again"),
    _end("total/late", "rollouts", "that came when they were decided"),
    _end("total/given_up", "messages", "that no trainer can use: dead letters; absent for none"),
    *(_end(f"total/{name}", unit, f"{what}, to train") for name, unit, what in _TALLY),
    *(_end(f"total/eval/{name}", unit, f"{what}, of evaluations") for name, unit, what in _TALLY),
)
