"""Metrics of heartbeats, the same at every role's endpoint: since its process began."""

from collections.abc import Iterator

from infra.observe.metrics.metric import Kind, Metric, Source
from schemas.control import Heartbeat

ROLES = ("trainer", "producer", "rollout", "reward")
_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE

_EVERY_ROLE = (
    ("state/{state}", _GAUGE, "0 or 1", "1 for what it does: running, waiting, paused, ..."),
    ("waiting_s", _GAUGE, "s", "since it waits for what it has been waiting for longest"),
    ("up_s", _GAUGE, "s", "since its process began"),
    ("disk_free_bytes", _GAUGE, "bytes", "free where the run folder is, if on this machine"),
    ("num_threads", _GAUGE, "threads", "of its process"),
    ("num_blocks", _GAUGE, "blocks", "that Python has allocated: a leak shows here first"),
    ("num_tasks", _GAUGE, "tasks", "of its event loop"),
    ("num_files", _GAUGE, "files", "that are open"),
    ("rss_bytes", _GAUGE, "bytes", "of resident memory"),
)
_TRAINER = (
    ("step", _GAUGE, "steps", "taken since the run began"),
    ("num_steps", _GAUGE, "steps", "that the run is to take"),
    ("version", _GAUGE, "version", "newest published; -1 before the first"),
    ("version_bytes", _GAUGE, "bytes", "of it in the weight store"),
    ("issued", _COUNTER, "groups", "asked for since the run began: the sum of the following five"),
    ("open", _GAUGE, "groups", "not closed"),
    ("trained", _COUNTER, "groups", "closed since the run began"),
    ("filtered", _COUNTER, "groups", "closed since the run began: equal rewards"),
    ("stale", _COUNTER, "groups", "closed since the run began: too old"),
    ("dead", _COUNTER, "groups", "closed since the run began: too few usable members"),
    ("balanced", _GAUGE, "0 or 1", "whether the sum is right"),
    ("ready", _GAUGE, "groups", "that can be trained and are in no batch yet"),
    ("outstanding", _GAUGE, "rollouts", "that were asked for and are not back"),
    ("barren", _GAUGE, "groups", "filtered since one could last be trained"),
    ("barren_s", _GAUGE, "s", "since one could last be trained"),
    ("failed", _COUNTER, "rollouts", "that died since the run began"),
    ("replaced", _COUNTER, "rollouts", "of these, asked for once more"),
    ("reissued", _COUNTER, "rollouts", "missing, and asked for again since the run began"),
    ("late", _COUNTER, "rollouts", "that came when they were decided, since the run began"),
    ("wait_s", _COUNTER, "s", "waited for batches"),
    ("train_s", _COUNTER, "s", "in optimizer steps"),
    ("publish_s", _COUNTER, "s", "in publications of weights"),
    ("replays_ignored", _COUNTER, "messages", "that came as replays: they count for nothing"),
)
_PRODUCER = (
    ("credits", _COUNTER, "credits", "answered"),
    ("tasks", _COUNTER, "rollouts", "put on a queue"),
)
_ROLLOUT = (
    ("version", _GAUGE, "version", "of the policy that it serves, measured; absent before"),
    ("refuses", _GAUGE, "version", "that it was told of and cannot serve; -1 for none"),
    ("slots", _GAUGE, "rollouts", "that it can hold"),
    ("held", _GAUGE, "rollouts", "whose delivery it holds"),
    ("tokens_unsaved", _GAUGE, "tokens", "that a kill would have sampled again"),
    ("generating", _GAUGE, "rollouts", "of the held, inside the engine"),
    ("in_tools", _GAUGE, "rollouts", "of the held, waiting for a tool"),
    ("token_age_s", _GAUGE, "s", "since the engine gave anybody a token; 0 while it is empty"),
    ("stall_timeout_s", _GAUGE, "s", "after which such an engine is given up"),
    ("behind_s", _GAUGE, "s", "since a newer version was heard of; 0 for none"),
    ("usual_update_s", _GAUGE, "s", "from hearing of a version to serving it, mean"),
    ("tool_calls", _COUNTER, "calls", "that began"),
    ("tool_timeouts", _COUNTER, "calls", "of these, given up at their limit"),
    ("rollouts_finished", _COUNTER, "rollouts", "sent on to be scored"),
    ("interruptions", _COUNTER, "cuts", "into snapshots"),
    ("snapshots_published", _COUNTER, "snapshots", "that the broker confirmed"),
    ("resumed", _COUNTER, "rollouts", "gone on with from a snapshot"),
    ("resumed_elsewhere", _COUNTER, "rollouts", "of these, begun by another worker"),
    ("readopted", _COUNTER, "deliveries", "of rollouts that were running here already"),
    ("orphans_dropped", _COUNTER, "rollouts", "dropped: their delivery never came again"),
    ("unconfirmed_cuts", _COUNTER, "cuts", "that went on here: the broker did not confirm"),
    ("failures", _COUNTER, "rollouts", "given up"),
    ("stalled", _COUNTER, "rollouts", "handed over because they did not move any more"),
    ("data_retries", _COUNTER, "rollouts", "that failed by themselves and are tried again"),
    ("pinned", _GAUGE, "rollouts", "that only this worker can go on with"),
    ("tokens_generated", _COUNTER, "tokens", "sampled"),
    ("tokens_prefilled", _COUNTER, "tokens", "of requests, computed"),
    ("tokens_cached", _COUNTER, "tokens", "of requests, found in the prefix cache"),
    ("tokens_reprefilled", _COUNTER, "tokens", "of the prefilled, computed before a cut already"),
    ("swaps", _COUNTER, "swaps", "of weights"),
    ("swap_s", _COUNTER, "s", "in these, admission closed"),
    ("weights_refused", _COUNTER, "versions", "that could not be read or were not taken"),
)
_REWARD = (
    ("held", _GAUGE, "rollouts", "whose delivery it holds"),
    ("processes", _GAUGE, "processes", "that score"),
    ("queued", _GAUGE, "rollouts", "of the held, that no process scores"),
    ("scoring", _GAUGE, "rollouts", "that a process was given"),
    ("longest_s", _GAUGE, "s", "of the calls that run now"),
    ("usual_s", _GAUGE, "s", "of the newest scores, all functions together, mean"),
    ("timeout_s", _GAUGE, "s", "after which a call is ended"),
    ("scored", _COUNTER, "rollouts", "sent on to the trainer"),
    ("failed", _COUNTER, "rollouts", "given up"),
    ("retried", _COUNTER, "rollouts", "whose scoring failed and is tried again"),
)


def _all() -> Iterator[Metric]:
    own = {"trainer": _TRAINER, "producer": _PRODUCER, "rollout": _ROLLOUT, "reward": _REWARD}
    for role in ROLES:
        for key, kind, unit, meaning in (*own[role], *_EVERY_ROLE):
            yield Metric(f"{role}/{key}", kind, unit, meaning, Source.HEARTBEAT)


BEATS = tuple(_all())


def numbers_of(beat: Heartbeat) -> dict[str, float]:
    """What a heartbeat tells in numbers, by full name: counters, report, and its other fields."""
    found = {**beat.counters, f"state/{beat.state}": 1.0, "waiting_s": beat.waiting_s}
    for name, value in beat.rollout or beat.reward or beat.trainer or ():
        if isinstance(value, int | float):
            found[name] = float(value)
    if beat.role in ("rollout", "reward"):
        found["held"] = float(len(beat.rollout_ids))
    if beat.role == "rollout":
        found["refuses"] = float(beat.refuses)
        found["slots"] = float(beat.slots)
        found["tokens_unsaved"] = float(beat.tokens_unsaved)
        if beat.version >= 0:
            found["version"] = float(beat.version)
    return {f"{beat.role}/{key}": value for key, value in found.items()}
