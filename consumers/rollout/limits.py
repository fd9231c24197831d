"""Numbers that bound what a rollout worker does. Those without a recipe key have one value."""

from dataclasses import dataclass

from schemas.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Slots, periods and patience of one worker; durations in seconds."""

    slots: int
    """Rollouts at a time, and unacknowledged messages at most."""
    max_version_lag: int = 8
    """Versions behind the newest beyond which nothing is admitted."""
    snapshot_interval_s: float = 300.0
    """Age at which a rollout is cut and given to the queue."""
    stall_timeout_s: float = 600.0
    """Without a token, turn or tool result for this long, a rollout is handed over. The engine has
    as long for a version."""
    data_attempts: int = 3
    """Times a rollout may fail by itself before it is given up."""
    grace_s: float = 60.0
    """For handing over when told to leave."""
    drain_deadline_s: float = 60.0
    """How long a drain waits for turns to end; what still generates then is cut."""
    stall_s: float = 1800.0
    """Idle time after which the wait for work is past its deadline."""
    confirm_patience_s: float = 5.0
    """For the broker's confirm of a snapshot; without it the rollout goes on here."""
    max_swap_delay_s: float = 2.0
    """How long a swap waits for the progress of resumed rollouts."""
    min_progress: int = 1
    """Tokens that a resumed rollout gains before the next swap."""
    max_fruitless_cuts: int = 2
    """Cuts in a row without progress after which a rollout crosses swaps in the engine."""
    readopt_s: float = 60.0
    """How long a rollout whose delivery was lost is kept."""
    num_gets: int = 32
    """Messages asked for at a time."""
    gather_s: float = 0.01
    """Between two takes, so that slots which become free together are filled together."""
    idle_min_s: float = 0.05
    """First pause after finding every queue empty."""
    idle_max_s: float = 0.5
    """Longest such pause."""
    sweep_s: float = 0.25
    """Period of the look over all slots."""
    retry_s: float = 2.0
    """Pause after weights that could not be read."""
    silence_s: float = 30.0
    """Without a broadcast for this long, the weight store is read."""

    @classmethod
    def of(cls, config: RunConfig) -> "Limits":
        """What the recipe says."""
        rollout = config.rollout
        return cls(
            slots=rollout.slots,
            max_version_lag=config.algorithm.max_version_lag,
            snapshot_interval_s=rollout.snapshot_interval,
            stall_timeout_s=rollout.stall_timeout,
            data_attempts=rollout.data_attempts,
            grace_s=rollout.grace,
            drain_deadline_s=rollout.drain_deadline,
            stall_s=config.deadlines.stall,
        )
