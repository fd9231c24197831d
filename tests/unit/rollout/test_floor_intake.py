"""What a free slot takes, what is refused, and whose delivery is acknowledged."""

import asyncio
from dataclasses import replace
from pathlib import Path

from consumers.rollout.agents.state import CutReason
from infra.amqp.io.wire import to_properties
from schemas.control import RunState, Wanted
from schemas.headers import Purpose
from schemas.work import FailureKind, Snapshot
from tests.unit.rollout.worker_fakes import EOS, PROMPT, RUN_ID, Bench, task

WHOLE = (*PROMPT, *range(10, 17), EOS)


async def snapshot_of(tmp_path: Path, group: int, *, tokens: int = 2) -> Snapshot:
    """A rollout cut after some tokens by another worker's loop."""
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = tokens
        bench.broker.put("prompts", task(group))
        await bench.until(
            lambda: any(
                held.state is not None and held.state.num_new_tokens == tokens
                for held in bench.floor.slots
            )
        )
        bench.broker.giving = False
        await bench.floor.runner.cut(bench.floor.slots, CutReason.LEAVE)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        (snapshot,) = bench.broker.bodies("cancel_queue")
        return snapshot.model_copy(update={"worker": "another"})


async def test_snapshots_come_first_then_evaluations_then_prompts(tmp_path: Path) -> None:
    snapshot = await snapshot_of(tmp_path, 9)
    async with Bench(tmp_path, slots=1) as bench:
        bench.broker.giving = False
        bench.broker.put("prompts", task(1))
        bench.broker.put("eval_prompts", task(0, purpose=Purpose.EVAL))
        bench.broker.put("cancel_queue", snapshot)
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 3)
        done = [one.rollout_id for one in bench.broker.bodies("rollouts")]
        assert done == ["9.0", "eval0.0", "1.0"]
        assert bench.floor.counters.resumed_elsewhere == 1


async def test_never_more_messages_than_slots_and_all_of_them_used(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=3) as bench:
        bench.engine.hold_at = 2
        for group in range(12):
            bench.broker.put("prompts", task(group))
        await bench.until(lambda: len(bench.engine.running) == 3)
        await asyncio.sleep(0.01)
        assert len(bench.broker.unacked) == 3
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 12)
        assert bench.broker.most_unacked == 3


async def test_an_empty_fleet_polls_gently_and_says_what_it_waits_for(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits={"idle_min_s": 5.0, "idle_max_s": 5.0}) as bench:
        await bench.until(lambda: len(bench.broker.gets) >= 6, "the first round")
        await asyncio.sleep(0.05)
        rounds = len(bench.broker.gets) / 6  # each asks three queues for two free slots
        assert rounds in (1, 2), "by itself, and by the bell of the first weights"
        what, _ = bench.context.waits.current()
        assert "cancel_queue, eval_prompts and prompts are empty" in what
        bench.broker.put("prompts", task(0))
        bench.floor.holds.ring()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)


async def test_a_message_of_another_run_is_a_dead_letter(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(4), run_id="another-run")
        await bench.until(lambda: ("ack", "prompts", "4.0") in bench.broker.log)
        (failure,) = bench.broker.dead
        assert (failure.stage, failure.rollout_id, failure.group) == ("rollout", "4.0", 4)
        assert "another-run" in failure.error


async def test_bodies_that_cannot_be_read_close_their_member_by_their_headers(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.giving = False
        bench.broker.put("prompts", task(1, 3), attempt=2)
        queue = bench.broker.queues["prompts"]
        queue[0] = replace(queue[0], body=queue[0].body[:-7])
        bench.broker.put("cancel_queue", task(2))  # a task where snapshots belong
        bench.broker.put("prompts", task(5), rollout_id="6.0", group=6)  # headers of another
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.dead) == 3)
        assert sorted((f.rollout_id, f.attempt, f.kind) for f in bench.broker.dead) == [
            ("1.3", 2, FailureKind.DATA),
            ("2.0", 0, FailureKind.DATA),
            ("6.0", 0, FailureKind.DATA),
        ]
        bench.broker.put("prompts", task(7))
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1, "unharmed")


async def test_headers_that_cannot_be_read_are_a_dead_letter(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.giving = False
        bench.broker.put("prompts", task(1))
        queue = bench.broker.queues["prompts"]
        envelope = replace(queue[0].envelope, headers={"rollout_id": "1.0", "group": "x"})
        queue[0] = replace(queue[0], envelope=envelope)
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.dead) == 1)
        assert bench.broker.dead[0].rollout_id == "1.0"
        assert bench.broker.dead[0].group == -1


async def test_two_deliveries_of_one_rollout_one_generation_one_result_both_acknowledged(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, slots=4) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0), attempt=0)
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.put("prompts", task(0), attempt=1)
        await bench.until(lambda: bench.floor.counters.readopted == 1)
        bench.engine.release()
        await bench.until(lambda: not bench.broker.unacked)
        assert len(bench.engine.requests) == 1
        assert len(bench.broker.queues["rollouts"]) == 1
        assert bench.broker.log.count(("ack", "prompts", "0.0")) == 2
        assert bench.broker.headers("rollouts")[0].attempt == 1, "the attempt that is open"


async def test_a_rollout_whose_delivery_was_lost_is_adopted_again(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 4
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.lose_deliveries()
        await bench.until(lambda: bench.floor.counters.readopted == 1)
        bench.engine.release()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        assert len(bench.engine.requests) == 1
        assert [tuple(r.progress.tokens.token_ids) for r in bench.broker.bodies("rollouts")] == [
            WHOLE
        ]


async def test_without_a_delivery_nothing_is_published_until_one_comes(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 4
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.broker.lose_deliveries()
        bench.engine.release()
        await bench.until(lambda: any(held.outcome for held in bench.floor.slots))
        assert not bench.broker.log
        bench.broker.giving = True
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        assert len(bench.broker.queues["rollouts"]) == 1


async def test_an_orphan_is_dropped_after_a_while_and_its_message_left_to_others(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, limits={"readopt_s": 0.02}) as bench:
        bench.engine.hold_at = 4
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.broker.lose_deliveries()
        await bench.until(lambda: len(bench.floor.slots) == 0)
        await bench.until(lambda: not bench.engine.running, "the engine is free")
        assert bench.floor.counters.orphans_dropped == 1
        assert len(bench.broker.queues["prompts"]) == 1
        assert not bench.broker.log


async def test_orphans_block_no_slot(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=2) as bench:
        bench.engine.hold_at = 4
        for group in range(2):
            bench.broker.put("prompts", task(group))
        await bench.until(lambda: len(bench.engine.running) == 2)
        bench.broker.lose_deliveries()
        mine = [bench.broker.queues["prompts"].pop() for _ in range(2)]  # others took them
        bench.broker.put("prompts", task(8))
        await bench.until(lambda: len(bench.engine.running) == 3)
        assert len(mine) == 2
        assert len(bench.broker.unacked) == 1


async def test_a_message_that_only_repeats_a_lost_acknowledgement_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0))
        (message,) = bench.broker.queues["prompts"]
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        bench.broker.queues["prompts"].append(replace(message, redelivered=True))
        await bench.until(lambda: bench.broker.log.count(("ack", "prompts", "0.0")) == 2)
        assert len(bench.engine.requests) == 1
        bench.broker.queues["prompts"].append(message)  # published again on purpose: a replay
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)


async def test_a_message_that_was_lost_and_comes_after_the_end_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.broker.lose_deliveries()
        late = bench.broker.queues["prompts"].pop()  # the broker has not taken it back yet
        bench.broker.put("prompts", task(0), attempt=1)
        bench.broker.giving = True
        await bench.until(lambda: bench.floor.counters.readopted == 1)
        bench.engine.release()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        bench.broker.queues["prompts"].append(late)
        await bench.until(lambda: bench.broker.log.count(("ack", "prompts", "0.0")) == 2)
        assert len(bench.engine.requests) == 1
        assert len(bench.broker.queues["rollouts"]) == 1


async def test_a_suspect_runs_alone(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=4) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: len(bench.engine.running) == 1)
        bench.broker.put("prompts", task(1), returns=3, returns_total=3)
        await bench.until(lambda: "alone" in bench.floor.holds)
        bench.broker.put("prompts", task(2))
        await asyncio.sleep(0.01)
        assert [r.request_id.split("#")[0] for r in bench.engine.requests] == ["0.0"]
        bench.engine.release(6)
        await bench.until(lambda: len(bench.engine.running) == 1)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 3)
        done = [one.rollout_id for one in bench.broker.bodies("rollouts")]
        assert done == ["0.0", "1.0", "2.0"]
        assert "alone" not in bench.floor.holds


async def test_of_two_suspects_one_goes_back_uncounted(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=4) as bench:
        bench.engine.hold_at = 2
        bench.broker.giving = False
        for group in range(2):
            bench.broker.put("prompts", task(group), returns=2, returns_total=2)
            queue = bench.broker.queues["prompts"]
            queue[-1] = replace(queue[-1], redelivered=True, delivery_count=1)
        bench.broker.giving = True
        await bench.until(lambda: len(bench.engine.running) == 1)
        await bench.until(lambda: len(bench.broker.unacked) == 1)
        (headers,) = bench.broker.headers("prompts")
        assert (headers.returns, headers.returns_total) == (3, 3)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)


async def test_after_too_many_returns_a_message_is_dead(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0), returns=7, returns_total=7)
        bench.broker.put("prompts", task(1), returns=0, returns_total=31)
        await bench.until(lambda: len(bench.broker.dead) == 2)
        assert {failure.kind for failure in bench.broker.dead} == {FailureKind.INFRA}
        assert not bench.engine.requests


async def test_a_prompt_that_is_too_long_is_a_data_failure(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        long = task(0)
        budgets = long.budgets.model_copy(update={"max_prompt_tokens": 2})
        bench.broker.put("prompts", long.model_copy(update={"budgets": budgets}))
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        (failure,) = bench.broker.dead
        assert failure.kind is FailureKind.DATA
        assert "max_prompt_tokens is 2" in failure.error


async def test_the_run_state_pauses_resumes_and_closes_groups(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        state = RunState(run_id=RUN_ID, number=1, wanted=Wanted.PAUSED, version=0)
        bench.floor.hear_run_state(state)
        bench.broker.put("prompts", task(1))
        bench.broker.put("prompts", task(2))
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1, "running ends")
        await asyncio.sleep(0.01)
        assert len(bench.broker.queues["prompts"]) == 2
        running = {"number": 2, "wanted": Wanted.RUNNING, "closed_early": (2,)}
        bench.floor.hear_run_state(state.model_copy(update=running))
        await bench.until(lambda: ("ack", "prompts", "2.0") in bench.broker.log)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        assert [one.rollout_id for one in bench.broker.bodies("rollouts")] == ["0.0", "1.0"]


async def test_members_of_a_group_closed_early_are_dropped_while_they_run(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(5))
        await bench.until(lambda: bool(bench.engine.running))
        bench.floor.hear_run_state(RunState(run_id=RUN_ID, number=1, version=0, closed_early=(5,)))
        await bench.until(lambda: not bench.engine.running)
        assert bench.broker.log == [("ack", "prompts", "5.0")]


async def test_an_old_rollout_is_cut_and_given_to_the_queue(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits={"snapshot_interval_s": 0.05}) as bench:
        bench.engine.hold_at = 3
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bench.floor.counters.snapshots_published >= 1)
        await bench.until(lambda: bench.floor.counters.resumed >= 1)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        (rollout,) = bench.broker.bodies("rollouts")
        assert {cut.reason for cut in rollout.progress.interruptions} == {"interval"}
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE


async def test_the_heartbeat_names_what_is_held(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 3
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bench.floor.describe()["counters"]["tokens_generated"] == 3)
        fields = bench.floor.describe()
        assert (fields["version"], fields["fingerprint"]) == (0, "print-0")
        assert (fields["slots"], fields["rollout_ids"]) == (2, ("0.0",))
        bench.broker.giving = False
        bench.broker.lose_deliveries()
        assert bench.floor.describe()["rollout_ids"] == ()


async def test_what_was_given_back_unchanged_is_run_when_another_worker_died_with_it(
    tmp_path: Path,
) -> None:
    """It kept its message id, so a redelivery here is not the echo of our acknowledgement."""
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0), min_version=4)
        await bench.until(lambda: len(bench.floor.slots) == 1)
        bench.broker.giving = False
        await bench.floor.departure.give_back_waiting()
        queue = bench.broker.queues["prompts"]
        queue[0] = replace(queue[0], redelivered=True, delivery_count=1)
        bench.publish(4)
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)


async def test_no_header_of_a_stranger_keeps_a_rollout_from_going_out(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.giving = False
        bench.broker.put("prompts", task(0))
        queue = bench.broker.queues["prompts"]
        strange = {"trace": "t", "wide": "w" * 20_000, "big": 1 << 63, "x-death": "b"}
        strange |= {f"h{n}": "x" * 1000 for n in range(20)}
        envelope = replace(queue[0].envelope, headers={**strange, **queue[0].envelope.headers})
        queue[0] = replace(queue[0], envelope=envelope)
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        sent = bench.broker.queues["rollouts"][0].envelope
        to_properties(sent, persistent=True)
        assert sent.headers["trace"] == "t" and "x-death" not in sent.headers


async def test_nothing_else_is_held_when_a_suspect_starts(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=4) as bench:
        bench.broker.giving = False
        bench.broker.put("prompts", task(5), min_version=9)
        bench.broker.put("prompts", task(0), returns=3, returns_total=3)
        bench.broker.put("prompts", task(1), returns=3, returns_total=3)
        held_at_start: list[list[str]] = []

        async def look(rollout_id: str, position: int) -> None:
            if position == 0:
                unacked = bench.broker.unacked.values()
                held_at_start.append([one.envelope.correlation_id for one in unacked])

        bench.engine.before_token = look
        bench.broker.giving = True
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        assert held_at_start == [["0.0"], ["1.0"]], "what is not held cannot be taken down"
        bench.publish(9)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 3)
        assert {h.returns for h in bench.broker.headers("rollouts")} == {3, 0}
