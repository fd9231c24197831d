"""Each fault is found by what it looks like, named with what to do, and not where it is not."""

from dataclasses import replace

import pytest

from infra.observe.monitor.diagnosis.every import RULES, diagnose
from infra.observe.monitor.diagnosis.finding import Fault, Severity
from infra.observe.monitor.scene import BrokerSeen, RunSeen, Scene
from schemas.reports import GivenUp, Suspect, ToolInUse
from tests.unit.infra.observe.monitor.scenes import (
    producer,
    reward,
    rollout,
    scene,
    trainer,
    without,
)

HERE = "127.0.0.1:5672"


def tool(running_s: float, *, usual_s: float = 0.1, given_up: bool = False) -> ToolInUse:
    return ToolInUse(
        name="search",
        rollout_id="7.1",
        running_s=running_s,
        usual_s=usual_s,
        limit_s=30.0,
        given_up=given_up,
    )


FULL = "StoreFailed: cannot write version 4: No space left on device -> free some space"
FOUND: dict[str, tuple[Scene, Fault, tuple[str, ...]]] = {
    "a stuck tool": (
        scene(rollout(tool=tool(9.0))),
        Fault.STUCK_TOOL,
        ("'search'", "9 s", "usually 0.1 s", "rollout-1", "tool_timeout, 30 s"),
    ),
    "a tool that was given up": (
        scene(rollout(tool=tool(30.0, given_up=True))),
        Fault.STUCK_TOOL,
        ("given up after 30 s",),
    ),
    "an engine that gives nothing": (
        scene(rollout(1), rollout(2, token_age_s=9.0, generating=3)),
        Fault.DEAD_ENGINE,
        ("rollout-2", "no token for 9 s to 3 rollouts", "kill the worker (process 4002)"),
    ),
    "an engine that died": (
        scene(rollout(1), rollout(2, state="failed", error="EngineFailed: the engine died")),
        Fault.DEAD_ENGINE,
        ("rollout-2", "the engine died", "starts it again"),
    ),
    "an engine that died before": (
        scene(rollout(1), rollout(2, before="exit code 1: ERROR  the engine hangs")),
        Fault.DEAD_ENGINE,
        ("rollout-2", "runs again"),
    ),
    "zero-variance groups": (
        scene(trainer(barren=20, barren_s=9.0, barren_reason="all rewards equal 0")),
        Fault.ZERO_VARIANCE,
        ("20 groups in a row", "all rewards equal 0", "temperature"),
    ),
    "a slow reward": (
        scene(reward(usual_s=3.0, queued=14, scoring=2)),
        Fault.SLOW_REWARD,
        ("exact takes 3 s", "16 rollouts wait for 2 processes", "reward workers"),
    ),
    "a slow reward whose rollouts wait at the broker": (
        scene(reward(usual_s=3.0, scoring=2), ready={"rollouts": 20}),
        Fault.SLOW_REWARD,
        ("22 rollouts",),
    ),
    "a reward that hangs": (
        scene(reward(longest_s=6.0, scoring=1)),
        Fault.SLOW_REWARD,
        ("6 s", "usually 10 ms", "killed after [reward] timeout, 30 s"),
    ),
    "a full weight store": (
        scene(trainer(state="failed", error=FULL)),
        Fault.FULL_STORE,
        ("no space left for trainer on here", "version 4", "free some space"),
    ),
    "a trainer started again on a full disk": (
        scene(trainer(before=f"exit code 1: {FULL}")),
        Fault.FULL_STORE,
        ("trainer",),
    ),
    "a full cache of a worker": (
        scene(rollout(refuses=4, refusal="CacheFailed: the disk is full")),
        Fault.FULL_STORE,
        ("rollout-1",),
    ),
    "a disk that is nearly full": (
        scene(rollout(counters={"disk_free_bytes": 2e6})),
        Fault.FULL_STORE,
        ("1.9 MiB left",),
    ),
    "a stopped producer": (
        scene(producer(state="silent", heard_s=9.0), ready={"credits": 5}),
        Fault.STOPPED_PRODUCER,
        ("no producer is heard", "5 messages wait in credits", "run.py producer"),
    ),
    "no producer from the beginning": (
        without("producer"),
        Fault.STOPPED_PRODUCER,
        ("run.py producer",),
    ),
    "no reward worker": (without("reward"), Fault.NO_WORKER, ("run.py reward",)),
    "no rollout worker": (without("rollout"), Fault.NO_WORKER, ("run.py rollout",)),
    "version skew": (
        scene(rollout(1), rollout(2, version=7, behind_s=11.0)),
        Fault.VERSION_SKEW,
        ("rollout-2 serves version 7, the newest is 10, 3 behind", "11 s", "max_version_lag (8)"),
    ),
    "a version that cannot be served": (
        scene(rollout(1), rollout(2, version=9, refuses=10, refusal="checksum differs")),
        Fault.VERSION_SKEW,
        ("cannot serve version 10: checksum differs",),
    ),
    "a poison prompt, told by a worker": (
        scene(rollout(suspects=(Suspect(rollout_id="17.2", returns=3),))),
        Fault.POISON_PROMPT,
        ("17.2 came back 3 times", "group 17", "runs alone"),
    ),
    "a poison prompt, remembered by the trainer": (
        scene(trainer(suspects=(Suspect(rollout_id="17.2", returns=2),))),
        Fault.POISON_PROMPT,
        ("17.2",),
    ),
    "a poison prompt that was given up": (
        scene(
            trainer(
                given_up=GivenUp(
                    rollout_id="17.2",
                    error="rollout: came back 7 times without progress, 7 in all",
                    ago_s=5.0,
                )
            )
        ),
        Fault.POISON_PROMPT,
        ("17.2 was given up", "run.py dead list"),
    ),
    "a member that died": (
        scene(trainer(given_up=GivenUp(rollout_id="3.0", error="KeyError", ago_s=5.0))),
        Fault.MEMBER_DIED,
        ("3.0 was given up: KeyError",),
    ),
    "a broker alarm": (
        scene(broker=BrokerSeen(address=HERE, alarms=("memory on warren@localhost",))),
        Fault.BROKER_ALARM,
        ("memory on warren@localhost", "vm_memory_high_watermark"),
    ),
    "too few slots": (
        scene(rollout(slots=4, slots_used=4), ready={"prompts": 12}),
        Fault.TOO_FEW_SLOTS,
        ("4 of 4 slots", "12 rollouts wait", "raise [rollout] slots (now 4 a worker)"),
    ),
    "the broker is gone": (
        scene(broker=BrokerSeen(address=HERE, connected=False, error="refused", since_s=12.0)),
        Fault.BROKER_GONE,
        (HERE, "12 s", "refused", "keeps trying"),
    ),
    "no such run": (
        scene(broker=BrokerSeen(address=HERE, connected=False, missing=True)),
        Fault.NO_RUN,
        ("no run 'run'",),
    ),
    "a trainer that is dead": (
        scene(trainer(state="silent", heard_s=20.0)),
        Fault.TRAINER_SILENT,
        ("no trainer is heard for 20 s", "step 10", "--resume"),
    ),
    "a trainer that was never heard": (
        replace(without("trainer"), run=RunSeen(name="run")),
        Fault.TRAINER_SILENT,
        ("since this monitor listens",),
    ),
    "a worker that is not heard": (
        scene(rollout(1), rollout(2, state="silent", heard_s=30.0)),
        Fault.WORKER_SILENT,
        ("rollout-2", "30 s", "nothing is lost"),
    ),
    "a role that failed": (
        scene(producer(state="failed", error="ConfigError: no file x.jsonl -> make it")),
        Fault.ROLE_FAILED,
        ("producer-1 failed: ConfigError: no file x.jsonl", "make it"),
    ),
    "everybody silent at once": (
        scene(*(replace(one, heard_s=10.0, state="silent") for one in scene().workers)),
        Fault.ALL_SILENT,
        ("none of 5 processes",),
    ),
    "nobody at all": (
        replace(scene(), workers=()),
        Fault.ALL_SILENT,
        ("nobody of this run is heard", "run.py up RECIPE"),
    ),
    "a trainer that is dead for long": (
        replace(without("trainer"), run=RunSeen(name="run", wanted="running", heard_s=300.0)),
        Fault.TRAINER_SILENT,
        ("for 5 min",),
    ),
    "books that do not balance": (
        scene(trainer(counters={"balanced": 0.0})),
        Fault.BOOKS,
        ("run.py ledger",),
    ),
    "dead letters": (
        scene(ready={"dead_letters": 3}),
        Fault.DEAD_LETTERS,
        ("3 dead letters", "run.py dead list"),
    ),
    "a worker too few": (scene(rollout(1)), Fault.FEWER_WORKERS, ("1 of 2 rollout workers",)),
    "a pause": (
        scene(run=RunSeen(name="run", wanted="paused")),
        Fault.PAUSED,
        ("paused", "run.py control resume"),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_is_named_with_what_to_do(name: str) -> None:
    staged, fault, words = FOUND[name]
    named = [one for one in diagnose(staged) if one.fault is fault]
    assert named, diagnose(staged)
    text = " ".join(f"{one.what} -> {one.do}" for one in named)
    for word in words:
        assert word in text
    assert all(one.do for one in named)


WELL: dict[str, Scene] = {
    "a healthy run": scene(),
    "a tool that takes as long as always": scene(
        rollout(1, tool=tool(20.0, usual_s=10.0)), rollout(2)
    ),
    "a tool that has just begun": scene(rollout(1, tool=tool(4.0, usual_s=0.0)), rollout(2)),
    "an engine that compiles": scene(
        rollout(1, counters={}, token_age_s=30.0), rollout(2, token_age_s=2.0)
    ),
    "an engine with nothing to do": scene(rollout(1, generating=0, token_age_s=30.0), rollout(2)),
    "groups filtered by chance, on a slow machine": scene(trainer(barren=15, barren_s=20.0)),
    "prompts that wait for an evaluation": scene(
        rollout(1, slots_used=8),
        rollout(2, slots_used=8),
        ready={"prompts": 64},
        run=RunSeen(name="run", wanted="running", version=10, evaluated_s=2.0),
    ),
    "many filtered groups between trained ones": scene(trainer(barren=60, barren_s=2.0)),
    "nothing filtered for long": scene(trainer(barren=0, barren_s=300.0)),
    "a burst of quick scores": scene(reward(queued=200, scoring=2)),
    "a slow reward with enough processes": scene(reward(usual_s=4.0, scoring=2)),
    "large weights that always take long": scene(
        rollout(1, behind_s=30.0, usual_update_s=20.0), rollout(2)
    ),
    "full slots with a little to wait for": scene(
        rollout(1, slots_used=8), rollout(2, slots_used=8), ready={"prompts": 16}
    ),
    "much to wait for, and a trainer that does not wait": scene(
        trainer(waiting_s=0.0, rates={"wait_s": 0.1}),
        rollout(1, slots_used=8),
        rollout(2, slots_used=8),
        ready={"prompts": 64},
    ),
    "a trainer whose word came and whose heartbeat did not": without("trainer"),
    "a worker that leaves": scene(rollout(1), rollout(2), rollout(3, state="leaving")),
    "a monitor that has just begun": replace(without("producer"), listened_s=3.0),
    "a run that is over": replace(
        without("trainer"), run=RunSeen(name="run", wanted="stopped", step=100)
    ),
    "one that died long ago": scene(
        trainer(given_up=GivenUp(rollout_id="3.0", error="KeyError", ago_s=500.0))
    ),
}


@pytest.mark.parametrize("name", WELL)
def test_where_nothing_is_wrong_nothing_is_found(name: str) -> None:
    assert diagnose(WELL[name]) == ()


def test_an_alarm_explains_the_silence() -> None:
    silent = tuple(replace(one, heard_s=20.0, state="silent") for one in scene().workers)
    staged = scene(*silent, broker=BrokerSeen(address=HERE, alarms=("disk on a@b",)))
    assert [one.fault for one in diagnose(staged)] == [Fault.BROKER_ALARM]


def test_a_private_broker_that_ended_with_its_run_is_no_problem() -> None:
    staged = scene(
        broker=BrokerSeen(address=HERE, connected=False, error="shutdown"),
        run=RunSeen(name="run", wanted="stopped", step=100),
    )
    assert [one.severity for one in diagnose(staged)] == [Severity.NOTICE]


def test_where_nobody_runs_one_finding_says_it() -> None:
    assert len(diagnose(replace(scene(), workers=()))) == 1


def test_problems_come_first() -> None:
    staged = scene(
        producer(state="silent", heard_s=9.0),
        rollout(1, tool=tool(9.0)),
        rollout(2),
        ready={"dead_letters": 1},
    )
    severities = [one.severity for one in diagnose(staged)]
    assert severities == [Severity.PROBLEM, Severity.WARNING, Severity.NOTICE]


def test_every_fault_has_a_scene_here() -> None:
    assert {fault for _, fault, _ in FOUND.values()} == set(Fault)
    assert len(RULES) == len(set(RULES))


def test_text_of_strangers_steers_no_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07" + "x" * 390
    call = ToolInUse(name=hostile[:390], rollout_id="a\nb", running_s=9, usual_s=0, limit_s=30)
    (found,) = diagnose(scene(rollout(1, tool=call), rollout(2)))
    assert "\x1b" not in found.what
    assert "\n" not in found.what
    assert "\x07" not in found.who
