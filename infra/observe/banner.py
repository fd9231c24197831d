"""What a run prints when it begins."""

from infra.runs.folder import RunFolder
from schemas.config import RunConfig


def banner(config: RunConfig, folder: RunFolder, *, url: str, private: bool) -> str:
    """Eight lines: what runs, on what, where to look. Passwords are hidden."""
    from infra.amqp.url import management_url, mask_url, without_user

    rollout, algorithm = config.rollout, config.algorithm
    credentials = f"to look: {folder.monitoring}" if private else "your broker's users"
    roles = {
        "trainer": 1,
        "producer": 1,
        "rollout": rollout.workers,
        "reward": config.reward.workers,
    }
    rows = {
        "run": f"{config.run.name}, {config.run.steps} steps, seed {config.run.seed}",
        "model": f"{config.model.path} ({config.model.dtype})",
        "engine": f"{rollout.engine}, {rollout.slots} slots a worker, on sync: {rollout.on_sync}",
        "groups": f"{algorithm.groups_per_step} x {algorithm.group_size} rollouts a step, "
        f"staleness up to {algorithm.max_staleness:g} batches",
        "broker": f"{mask_url(url)}{' (private node)' if private else ''}",
        "management": f"{without_user(management_url(url))} ({credentials})",
        "roles": ", ".join(f"{count} {role}" for role, count in roles.items()),
        "run folder": str(folder.root),
    }
    lines = (f"  {name:<11} {value}\n" for name, value in rows.items())
    return f"\nWarren\n{''.join(lines)}\n"
