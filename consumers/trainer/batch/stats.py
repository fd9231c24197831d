"""What a batch looked like, as metrics. Every number is of the trained trajectories."""

from collections.abc import Sequence

import numpy as np

from consumers.trainer.batch.groups import Group
from schemas.work import RolloutStatus, Trajectory, TurnKind


def batch_stats(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Metrics of one batch.

    Args:
        groups: What is trained on; at least one trajectory.
        version: Policy version of the weights about to be updated. A token's staleness is this
            minus the version that sampled it; a trajectory's is that of its oldest sampled token.
    """
    members = [member for group in groups for member in group.members]
    return {
        **_rewards(members),
        **_staleness(members, version),
        **_interruptions(members),
        **_prefills(members),
        **_sizes(members),
        **_turns(members),
    }


def _rewards(members: Sequence[Trajectory]) -> dict[str, float]:
    rewards = np.array([member.reward for member in members])
    metrics = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/min": float(rewards.min()),
        "reward/max": float(rewards.max()),
        "time/reward_s": float(np.mean([member.reward_s for member in members])),
    }
    for name in sorted({name for member in members for name in member.rewards}):
        values = [member.rewards[name] for member in members if name in member.rewards]
        metrics[f"rewards/{name}"] = float(np.mean(values))
    return metrics


def _staleness(members: Sequence[Trajectory], version: int) -> dict[str, float]:
    tokens = [member.rollout.progress.tokens for member in members]
    lags = version - np.concatenate([one.version_array[one.version_array >= 0] for one in tokens])
    oldest = [version - one.oldest_version for one in tokens if one.oldest_version is not None]
    spans = [len({v for v, _ in one.versions if v >= 0}) for one in tokens]
    return {
        "staleness/mean": float(lags.mean()) if lags.size else 0.0,
        "staleness/max": float(lags.max()) if lags.size else 0.0,
        "staleness/trajectory_mean": float(np.mean(oldest)) if oldest else 0.0,
        "staleness/versions_mean": float(np.mean(spans)),
        "staleness/versions_max": float(max(spans)),
    }


def _interruptions(members: Sequence[Trajectory]) -> dict[str, float]:
    """Cuts; trajectories that were cut; tokens that outlived a cut, each counted once."""
    cut = [m.rollout.progress for m in members if m.rollout.progress.interruptions]
    return {
        "batch/interruptions": float(sum(len(progress.interruptions) for progress in cut)),
        "batch/resumed": float(len(cut)),
        "batch/resumed_elsewhere": float(sum(p.num_resumed_elsewhere > 0 for p in cut)),
        "batch/tokens_carried": float(
            sum(int(p.tokens.mask_array[: p.interruptions[-1].at_token].sum()) for p in cut)
        ),
    }


def _prefills(members: Sequence[Trajectory]) -> dict[str, float]:
    """Tokens of requests: computed; again because of cuts; and found in a prefix cache instead,
    with their share of all (0 when no engine had any to report)."""
    progress = [member.rollout.progress for member in members]
    prefilled = sum(one.num_prefilled for one in progress)
    cached = sum(one.num_cached for one in progress)
    return {
        "batch/tokens_prefilled": float(prefilled),
        "batch/tokens_reprefilled": float(sum(one.num_reprefilled for one in progress)),
        "batch/tokens_cached": float(cached),
        "batch/prefix_hit_rate": cached / max(prefilled + cached, 1),
    }


def _sizes(members: Sequence[Trajectory]) -> dict[str, float]:
    progress = [member.rollout.progress for member in members]
    prompts = [one.num_prompt_tokens for one in progress]
    responses = [len(one.tokens) - one.num_prompt_tokens for one in progress]
    truncated = [member.rollout.status is RolloutStatus.TRUNCATED for member in members]
    return {
        "batch/num_trajectories": float(len(members)),
        "batch/num_tokens": float(sum(prompts) + sum(responses)),
        "batch/num_sampled": float(sum(one.tokens.num_sampled for one in progress)),
        "length/prompt_mean": float(np.mean(prompts)),
        "length/response_mean": float(np.mean(responses)),
        "length/response_max": float(max(responses)),
        "batch/truncated_frac": float(np.mean(truncated)),
    }


def _turns(members: Sequence[Trajectory]) -> dict[str, float]:
    progress = [member.rollout.progress for member in members]
    turns = [sum(t.kind is TurnKind.ASSISTANT for t in one.turns) for one in progress]
    results = [result for one in progress for result in one.tool_results]
    return {
        "batch/turns_mean": float(np.mean(turns)),
        "batch/generating_s": float(np.mean([p.timings.generating_s for p in progress])),
        "batch/tools_s": float(np.mean([p.timings.tools_s for p in progress])),
        "batch/waiting_s": float(np.mean([p.timings.waiting_s for p in progress])),
        "tools/calls": float(len(results)),
        "tools/errors": float(sum(not result.ok for result in results)),
        "tools/used_frac": float(np.mean([bool(one.tool_results) for one in progress])),
    }
