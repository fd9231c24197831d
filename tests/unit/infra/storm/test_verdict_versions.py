"""The verdict on versions, lengths, rewards and faults: each planted breach is found."""

from pathlib import Path

import pytest

from infra.storm.judge.history import read_history
from schemas.journal import Published
from schemas.storm import Fault, FaultCount, FaultKind
from tests.unit.infra.storm.judged_runs import RunMaker, begun, finish, healthy


def plant_number_again(run: RunMaker) -> str:
    run.note(Published(version=1, step=2, fingerprint="f1"))
    return "version 1 was published after version 2"


def plant_other_weights(run: RunMaker) -> str:
    run.store(3, 3)
    run.note(Published(version=3, step=3, fingerprint="another"))
    return "version 3 in the store is not the one published"


def plant_step_back(run: RunMaker) -> str:
    run.store(5, 1, incarnation=2)
    return "version 5 is of step 1 by trainer 2, version 2 of step 2 by trainer 1"


def plant_thawed_trainer(run: RunMaker) -> str:
    run.store(3, 3, incarnation=2)
    run.store(4, 4, incarnation=1)
    return "version 4 is of step 4 by trainer 1, version 3 of step 3 by trainer 2"


def plant_foreign_manifest(run: RunMaker) -> str:
    run.store(3, 3, run_id="run-2")
    return "version 3 in the store is of run run-2, not run-1"


def plant_damaged_manifest(run: RunMaker) -> str:
    (Path(run.folder.weights(run.config)) / "manifests" / "00000001.json").write_text("{")
    return "the manifest of version 1 is damaged"


def plant_decreasing(run: RunMaker) -> str:
    run.arrive(6, 0, 1.0, ((2, 2), (1, 2)))
    return "versions decrease within 6.0: (2, 1)"


def plant_future_token(run: RunMaker) -> str:
    run.arrive(6, 0, 1.0, ((2, 2), (3, 2)))
    run.store(3, 3)
    run.publish(4, 4)
    run.both(7, versions=((5, 2),))
    return "7.0 has tokens of version 5 when version 4 was the newest"


def plant_token_before_its_version(run: RunMaker) -> str:
    run.arrive(6, 0, 1.0, ((2, 2), (4, 2)))
    run.publish(3, 3)
    run.publish(4, 4)
    return "6.0 has tokens of version 4 when version 3 was the newest"


def plant_newer_than_the_policy(run: RunMaker) -> str:
    run.publish(3, 2)
    run.both(6, versions=((3, 2),))
    run.step(3, 6, version=2)
    return "step 3 trains version 2 on 6.0 with tokens of version 3"


def plant_other_weights_of_the_same_step(run: RunMaker) -> str:
    run.store(3, 2, incarnation=2)
    return "step 2 gave other weights when it was taken again: versions 2 and 3"


@pytest.mark.parametrize(
    "plant",
    [
        plant_other_weights_of_the_same_step,
        plant_number_again,
        plant_other_weights,
        plant_step_back,
        plant_thawed_trainer,
        plant_foreign_manifest,
        plant_damaged_manifest,
        plant_decreasing,
        plant_future_token,
        plant_token_before_its_version,
        plant_newer_than_the_policy,
    ],
)
def test_a_wrong_version_is_found(tmp_path, plant):
    run = begun(tmp_path)
    words = plant(run)
    assert any(text.startswith(words) for text in run.judged().breaches)


def test_tokens_of_a_damaged_version_are_found(tmp_path):
    run = healthy(tmp_path)
    damaged = [
        fault(FaultKind.WEIGHTS_FLIP, "v2/model.safetensors"),
        fault(FaultKind.WEIGHTS_TRUNCATE, "weights", survived=False),  # none was found in time
    ]
    assert run.judged().breaches == ()
    assert run.judged(damaged).breaches == tuple(
        f"{name} has tokens of version 2, whose file was damaged"
        for name in ("6.0", "6.1", "7.0", "7.1")
    )


def test_a_version_may_be_served_before_its_publication_is_journaled(tmp_path):
    run = begun(tmp_path)
    run.store(3, 3)
    run.arrive(6, 0, 1.0, ((2, 2), (3, 2)))
    assert not any("newest" in text for text in run.judged().breaches)


def test_on_policy_recipes_have_no_older_token(tmp_path):
    """The hand-made run trains group 4 with tokens of versions 0 and 1."""
    report = healthy(tmp_path, max_staleness=0).judged()
    assert any(
        text.startswith("step 2 is on-policy at version 1, 4.0 has tokens of versions (0, 1)")
        for text in report.breaches
    )
    assert not any("step 1 is on-policy" in text for text in report.breaches)
    assert healthy(tmp_path / "off", max_staleness=0, steps_per_publish=2).judged().breaches == ()


def test_the_same_weights_under_another_number_are_the_same_policy(tmp_path):
    """A version that nobody could read goes out again; what the one worker that could has sampled
    under the old number is on-policy still."""
    run = RunMaker(tmp_path, groups_per_step=1, steps=1, max_staleness=0)
    run.publish(0, 0, weights="same")
    run.issue(0)
    run.arrive(0, 0, 0.0, ((0, 5),))
    run.publish(1, 0, weights="same")
    run.arrive(0, 1, 1.0, ((1, 5),))
    run.step(1, 0, version=1)
    run.publish(2, 1)
    run.end()
    assert run.judged().breaches == ()


def long_run(
    root,
    *,
    length: int,
    rewards=lambda step: (0.0, 1.0),
    steps: int = 40,
    longer_from: int = 1000,
    without=lambda length: False,
    **changes,
) -> RunMaker:
    """Steps of a group each, whose responses have about that many tokens.

    From step `longer_from` on they are twice as long; those that `without` names come short.
    """
    run = RunMaker(
        root, steps=steps, groups_per_step=1, max_staleness=50, max_version_lag=60, **changes
    )
    run.publish(0, 0)
    run.issue(*range(steps))
    for step in range(1, steps + 1):
        group = step - 1
        for index, reward in enumerate(rewards(step)):
            spoken = length * (1 + (step > longer_from)) + (7 * step + index) % 11
            spoken = length if without(spoken) else spoken
            run.arrive(group, index, reward, ((step - 1, spoken),))
        run.step(step, group, version=step - 1)
        run.publish(step, step)
    run.end()
    return run


def test_lengths_are_compared_with_those_of_a_run_without_faults(tmp_path):
    calm = long_run(tmp_path / "calm", length=30)
    calm.journal.close()
    same = long_run(tmp_path / "same", length=30).judged(undisturbed=calm.folder.root)
    assert (same.ks_p, same.breaches) == (1.0, ())
    other = long_run(tmp_path / "other", length=35).judged(undisturbed=calm.folder.root)
    assert other.ks_p < 0.001
    assert other.breaches == (
        f"response lengths differ from an undisturbed run's: p = {other.ks_p:.2g}, "
        f"mean 40.1 against 35.1 tokens",
    )
    assert same.lost == other.lost == 0


def test_lengths_that_change_behind_the_undisturbed_runs_end_are_not_compared(tmp_path):
    """A policy learns: the storm goes further than the calm run, and is another model by then."""
    calm = long_run(tmp_path / "calm", length=30, steps=30)
    calm.journal.close()
    longer = long_run(tmp_path / "longer", length=30, longer_from=30)
    assert len(set(read_history(longer.config, longer.folder.root).lengths())) > 11
    report = longer.judged(undisturbed=calm.folder.root)
    assert (report.ks_p, report.breaches) == (1.0, ())


def test_of_an_undisturbed_run_what_was_done_early_is_not_compared(tmp_path):
    """At its end the long ones are open. Those behind them that are done are the short ones."""
    calm = long_run(tmp_path / "calm", length=30)
    calm.issue(*range(40, 140))
    for group in range(41, 140):
        calm.both(group, versions=((40, 1),), rewards=(1.0, 1.0))
        calm.close(group, "filtered")
    calm.journal.close()
    stormy = long_run(tmp_path / "stormy", length=30, steps=60)
    assert stormy.judged(undisturbed=calm.folder.root).ks_p == 1.0


def test_an_undisturbed_run_whose_first_group_is_open_is_too_short(tmp_path):
    calm = RunMaker(tmp_path / "calm")
    calm.publish(0, 0)
    calm.issue(0, 1)
    calm.both(1, rewards=(1.0, 1.0))
    calm.close(1, "filtered")
    calm.journal.close()
    report = healthy(tmp_path / "stormy").judged(undisturbed=calm.folder.root)
    assert report.ks_p is None
    assert any("more run.steps are needed" in text for text in report.breaches)


def test_who_loses_the_long_ones_is_found(tmp_path):
    calm = long_run(tmp_path / "calm", length=30)
    calm.journal.close()
    biased = long_run(tmp_path / "biased", length=30, without=lambda length: length > 35)
    report = biased.judged(undisturbed=calm.folder.root)
    assert report.ks_p < 0.001
    assert any("response lengths differ" in text for text in report.breaches)


def test_only_groups_that_reached_the_filter_have_a_length(tmp_path):
    """Of the hand-made run: the members of group 3, which is dead, do not."""
    run = healthy(tmp_path)
    run.journal.close()
    lengths = read_history(run.config, run.folder.root).lengths()
    assert sorted(lengths) == sorted([5, 5, 5, 5, 5, 5, 6, 6, 3, 3, 4, 4, 9, 9])


def test_an_undisturbed_run_that_is_not_there_is_a_breach(tmp_path):
    report = healthy(tmp_path).judged(undisturbed=tmp_path / "none")
    assert report.ks_p is None
    assert any("lengths cannot be compared" in text for text in report.breaches)


def test_the_reward_of_a_real_engine_must_rise(tmp_path):
    def rising(step: int) -> tuple[float, float]:
        return (0.0, step / 40)

    def falling(step: int) -> tuple[float, float]:
        return (0.0, 1 - step / 50)

    up = long_run(tmp_path / "up", length=30, engine="transformers", rewards=rising)
    down = long_run(tmp_path / "down", length=30, engine="transformers", rewards=falling)
    simulated = long_run(tmp_path / "simulated", length=30, rewards=falling)
    assert up.judged().breaches == simulated.judged().breaches == ()
    words = ("the reward does not rise: 0.445 at first, 0.145 at last",)
    assert down.judged().breaches == words

    still = long_run(tmp_path / "still", length=30, engine="transformers")
    for calm in (up, down, still):
        calm.journal.close()
    again = long_run(tmp_path / "again", length=30, engine="transformers", rewards=falling)
    assert again.judged(undisturbed=up.folder.root).breaches == words
    assert again.judged(undisturbed=still.folder.root).breaches == (), "nor does it without a storm"


def fault(kind: FaultKind, target: str, *, recovery=None, survived: bool = True) -> Fault:
    return Fault(kind=kind, target=target, at=1.0, recovery_seconds=recovery, survived=survived)


def test_faults_are_counted_and_recoveries_are_medians(tmp_path):
    faults = [
        fault(FaultKind.KILL, "rollout-1", recovery=1.0),
        fault(FaultKind.KILL, "rollout-2", recovery=9.0),
        fault(FaultKind.KILL, "rollout-2", recovery=2.0),
        fault(FaultKind.KILL, "trainer", recovery=4.0),
        fault(FaultKind.KILL, "producer-1"),
        fault(FaultKind.TERM, "reward-1", recovery=3.0),
        fault(FaultKind.BROKER_KILL, "broker", recovery=6.0),
        fault(FaultKind.BROKER_TERM, "broker", recovery=8.0),
    ]
    report = finish(begun(tmp_path)).judged(faults)
    assert report.kills == 6
    assert report.faults[FaultKind.KILL] == FaultCount(injected=5, survived=5)
    assert report.recovery_seconds == {
        "worker": 2.0,
        "reward": None,
        "producer": None,
        "trainer": 4.0,
        "broker": 7.0,
    }
    assert report.breaches == ()


def test_whether_a_fault_was_survived_is_counted(tmp_path):
    report = healthy(tmp_path).judged([fault(FaultKind.KILL, "reward-1", survived=False)])
    assert report.faults[FaultKind.KILL] == FaultCount(injected=1, survived=0)


def test_a_thousand_breaches_are_counted_not_listed(tmp_path):
    run = begun(tmp_path)
    run.issue(*range(8, 1008))
    breaches = run.judged().breaches
    assert len(breaches) == 201
    assert breaches[-1].startswith("and ")
