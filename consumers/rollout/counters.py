"""What a worker did, for its heartbeat."""

from dataclasses import asdict, dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """Since the worker started."""

    rollouts_finished: int = 0
    interruptions: int = 0
    """Rollouts cut into snapshots."""
    snapshots_published: int = 0
    resumed: int = 0
    """Snapshots taken up."""
    resumed_elsewhere: int = 0
    """Of these, begun by another worker."""
    readopted: int = 0
    """Deliveries of rollouts that were running here already."""
    orphans_dropped: int = 0
    """Rollouts dropped because their delivery never came again."""
    unconfirmed_cuts: int = 0
    """Snapshots that the broker did not take in time; their rollouts went on here."""
    failures: int = 0
    stalled: int = 0
    """Rollouts handed over because they did not move any more."""
    data_retries: int = 0
    """Rollouts that failed by themselves and were given back to be tried again."""
    tokens_generated: int = 0
    tokens_prefilled: int = 0
    """Of requests, prompts and earlier turns: computed here."""
    tokens_cached: int = 0
    """Of requests: found in the engine's prefix cache."""
    tokens_reprefilled: int = 0
    """Of `tokens_prefilled`, those that had been computed before a cut already."""
    swaps: int = 0
    swap_s: float = 0.0
    """Gate closed to gate open, summed."""
    weights_refused: int = 0
    """Versions that could not be read, or that the engine did not take."""

    tool_calls: int = 0
    """Tool calls that began."""
    tool_timeouts: int = 0
    """Of these, given up at their limit."""
    pinned: int = 0
    """Rollouts held now that no snapshot can express."""

    def as_floats(self) -> dict[str, float]:
        """By name."""
        return {name: float(value) for name, value in asdict(self).items()}
