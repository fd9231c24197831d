"""Rollouts that stop moving, on a real broker: handed over, and in the end a failure by name."""

import pytest

from schemas.work import FailureKind
from tests.broker_fixtures import Connect
from tests.integration.rollout.yard import Hand, Yard, whole
from tests.unit.rollout.worker_fakes import PROMPT, task

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

LENGTH = 8


def stick(hand: Hand, rollout_id: str, position: int) -> None:
    """The engine gives this rollout no token from here on, though it obeys a cut."""

    async def stuck(asked: str, at: int) -> None:
        if (asked, at) == (rollout_id, position):
            running = hand.engine.running.items()
            await next(cut for name, cut in running if name.startswith(f"{rollout_id}#")).wait()

    hand.engine.before_token = stuck


async def test_what_stalls_here_goes_on_elsewhere(yard: Yard, connect: Connect) -> None:
    stuck = yard.hand(await connect(app_id="rollout/stuck"), "stuck", stall_timeout_s=0.3)
    stick(stuck, "0.0", 3)
    await yard.put("prompts", task(0))
    await stuck.start()
    await yard.until(lambda: stuck.at("0.0", 3), "a rollout that stops")
    stuck.floor.holds.put("test", "another worker is to take it")
    await yard.until(lambda: len(stuck.floor.slots) == 0, "the handing over")
    other = yard.hand(await connect(app_id="rollout/other"), "other")
    await other.start()
    await yard.collect(1)
    for hand in (stuck, other):
        await hand.stop()
    await yard.nothing_left()
    assert yard.tokens("0.0") == whole(LENGTH)
    (rollout,) = yard.rollouts["0.0"]
    (cut,) = rollout.progress.interruptions
    assert (cut.reason, cut.worker, cut.at_token) == ("stall", "stuck", len(PROMPT) + 3)
    assert other.engine.num_sampled == LENGTH - 3


async def test_what_stalls_everywhere_is_a_failure_and_the_others_go_on(
    yard: Yard, connect: Connect
) -> None:
    hand = yard.hand(await connect(app_id="rollout/a"), "a", stall_timeout_s=0.2)
    stick(hand, "0.0", 3)
    for group in range(12):
        await yard.put("prompts", task(group))
    await hand.start()
    await yard.collect(11, failures=1)
    assert not hand.ended.done(), "the engine is well"
    await hand.stop()
    await yard.nothing_left()
    assert {yard.tokens(f"{group}.0") for group in range(1, 12)} == {whole(LENGTH)}
    (failure,) = yard.failures
    assert (failure.rollout_id, failure.kind) == ("0.0", FailureKind.DATA)
    assert "stalled: no token, turn or tool result any more in generating" in failure.error
    assert failure.returns == 6
    assert hand.floor.counters.stalled == 7
