"""Which side the other waits for, and what would change it."""

from dataclasses import dataclass

from infra.observe.monitor.scene import Scene

_BUSY = 0.6
"""Share of its time from which a side is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The slowest side."""

    side: str
    """`trainer`, `rollout`, `reward`, `producer`, `credits`; empty: none, or not known."""
    why: str
    do: str


def bottleneck(scene: Scene) -> Bottleneck:
    """Of a run that is heard."""
    trainer = scene.trainer
    if trainer is None or trainer.trainer is None or scene.over:
        return Bottleneck(side="", why="not known without a trainer", do="")
    if scene.run.wanted in ("paused", "draining"):
        return Bottleneck(side="", why=f"the run is {scene.run.wanted}", do="")
    wait, train = scene.share("wait_s"), scene.share("train_s")
    publish = scene.share("publish_s") or 0.0
    if wait is None or train is None:
        return Bottleneck(side="", why="not known yet", do="")
    busy = min(1.0, max(0.0, 1.0 - wait))
    if busy >= _BUSY:
        if publish > train:
            return Bottleneck(
                side="trainer",
                why=f"busy {busy:.0%} of the time, most of it publishing weights",
                do="raise [algorithm] steps_per_publish, or a faster [weights] store",
            )
        return Bottleneck(
            side="trainer",
            why=f"busy {busy:.0%} of the time; rollouts wait for it",
            do="raise [trainer] micro_batch_tokens, or train on a faster device",
        )
    return _of_the_others(scene, wait, trainer.trainer.outstanding)


def _of_the_others(scene: Scene, wait: float, outstanding: int) -> Bottleneck:
    used, slots = scene.slots
    waits = f"the trainer waits {wait:.0%} of the time"
    if not slots:
        return Bottleneck(side="rollout", why=f"{waits}; no rollout worker serves yet", do="")
    scoring = scene.ready("rollouts")
    scoring += sum(one.reward.queued for one in scene.of("reward") if one.reward is not None)
    if scoring > max(4, outstanding // 4):
        return Bottleneck(
            side="reward",
            why=f"{waits}; {scoring} of {outstanding} rollouts wait to be scored",
            do="more reward workers, or a faster reward function",
        )
    if slots and used >= 0.8 * slots:
        waiting = scene.ready("prompts", "cancel_queue")
        return Bottleneck(
            side="rollout",
            why=f"{waits}; {used} of {slots} slots are used, {waiting} rollouts wait for one",
            do="more rollout workers, more [rollout] slots, or a faster engine",
        )
    if scene.ready("credits") > scene.expected.groups_per_step // 2:
        return Bottleneck(
            side="producer",
            why=f"{waits}; {scene.ready('credits')} credits wait for a producer",
            do="one more producer: run.py producer RECIPE",
        )
    return Bottleneck(
        side="credits",
        why=f"{waits}; {used} of {slots} slots are used, for stragglers",
        do="raise [algorithm] max_staleness or groups_per_step, so that more is in flight",
    )
