"""Which side is the slowest, by what each of them waits for."""

import pytest

from infra.observe.monitor.diagnosis.bottleneck import bottleneck
from infra.observe.monitor.scene import RunSeen, Scene
from tests.unit.infra.observe.monitor.scenes import reward, rollout, scene, trainer, without

PAUSED = RunSeen(
    name="run", run_id="a", wanted="paused", step=10, num_steps=100, version=10, heard_s=1
)
WAITS = {"wait_s": 0.8, "train_s": 0.1, "publish_s": 0.1}
FULL = (rollout(1, slots_used=8), rollout(2, slots_used=7))


@pytest.mark.parametrize(
    ("staged", "side", "words"),
    [
        (scene(trainer(rates={"wait_s": 0.1, "train_s": 0.8})), "trainer", "busy 90%"),
        (
            scene(trainer(rates={"wait_s": 0.1, "train_s": 0.3, "publish_s": 0.6})),
            "trainer",
            "publishing weights",
        ),
        (scene(trainer(rates=WAITS), reward(queued=6, scoring=2)), "reward", "6 of 16 rollouts"),
        (scene(trainer(rates=WAITS), *FULL), "rollout", "15 of 16 slots"),
        (scene(trainer(rates=WAITS), ready={"credits": 4}), "producer", "4 credits"),
        (scene(trainer(rates=WAITS)), "credits", "for stragglers"),
        (scene(trainer(rates=WAITS), rollout(slots=0, slots_used=0)), "rollout", "serves yet"),
        (scene(trainer(rates=WAITS), reward(queued=6, scoring=2), run=PAUSED), "", "is paused"),
        (scene(trainer(rates={})), "", "not known yet"),
        (without("trainer"), "", "without a trainer"),
    ],
)
def test_the_slowest_side(staged: Scene, side: str, words: str) -> None:
    found = bottleneck(staged)
    assert found.side == side
    assert words in found.why
