"""The verdict on the books: a healthy run has none, and each planted breach is found."""

import pytest

from infra.amqp.codec import checksum, decode
from infra.amqp.message import Envelope
from infra.runs.metrics import MetricsFile
from infra.storm.judge.recount import recounted
from schemas.journal import Arrived, Batch, Closed, GroupsClosed, Late, Opened, Published, Skipped
from schemas.storm import StormReport
from schemas.work import Trajectory
from tests.unit.infra.storm.judged_runs import RunMaker, begun, body, finish, healthy

ZEROS = {"lost": 0, "trained_twice": 0, "ledger_imbalance": 0, "unexplained_dead_letters": 0}


def zeros(report: StormReport) -> dict[str, int]:
    return {name: getattr(report, name) for name in ZEROS}


def test_a_healthy_run_has_no_breach(tmp_path):
    report = healthy(tmp_path).judged()
    assert report.breaches == ()
    assert zeros(report) == ZEROS
    assert (report.generated, report.trained, report.kills) == (16, 12, 0)


def test_the_hand_made_bodies_are_what_the_trainer_takes():
    data = body("3.1", 0.5, ((0, 2), (1, 3)))
    envelope = Envelope(
        message_id="x",
        type="Trajectory",
        correlation_id="",
        app_id="",
        headers={"checksum": checksum(data)},
        timestamp=0,
    )
    tokens = decode(envelope, data, Trajectory).rollout.progress.tokens
    assert tokens.version_array.tolist() == [-1, -1, -1, 0, 0, 1, 1, 1]


def test_a_member_that_is_asked_for_again_and_comes_late_is_no_breach(tmp_path):
    run = begun(tmp_path)
    run.issue(6, attempt=1, indexes=(1,))
    run.fail(6, 1, attempt=0)
    finish(run)
    run.note(Late(type="Trajectory", rollout_id="6.1", group=6, index=1, attempt=1))
    report = run.judged()
    assert report.breaches == ()
    assert report.generated == 18


def test_what_a_dead_branch_says_does_not_count(tmp_path):
    run = begun(tmp_path)
    place = run.journal.end
    run.both(6, versions=((2, 2),))
    run.both(7, versions=((2, 9),))
    run.step(3, 6, 7, version=2)
    run.restart(back_to=place)
    report = finish(run).judged()
    assert report.breaches == ()
    assert report.trained == 12


def test_a_step_decided_again_behind_a_crash_is_trained_twice(tmp_path):
    run = begun(tmp_path)
    run.both(6, versions=((2, 2),))
    run.both(7, versions=((2, 9),))
    run.step(3, 6, 7, version=2)
    run.restart()
    run.step(3, 6, 7, version=2)
    report = run.judged()
    assert report.trained_twice == 4
    assert "trained twice: 6.0" in report.breaches
    assert report.ledger_imbalance > 0


def test_a_rollout_in_the_batches_of_two_groups_is_trained_twice(tmp_path):
    run = begun(tmp_path)
    run.both(6, versions=((2, 2),))
    run.both(7, versions=((2, 9),))
    run.step(3, 6, 7, version=2, members=("6.0", "6.1", "7.0", "7.1", "0.1"))
    report = run.judged()
    assert report.trained_twice == 1
    assert "trained twice: 0.1" in report.breaches


def test_a_group_in_two_batches_is_trained_twice_whatever_its_members(tmp_path):
    run = begun(tmp_path)
    run.both(6, versions=((2, 2),))
    run.step(3, 6, 0, version=2, members=("6.0", "6.1"))
    assert "trained twice: group 0" in run.judged().breaches


def test_a_skipped_step_was_not_trained(tmp_path):
    run = begun(tmp_path)
    run.note(Skipped(step=2, groups=(4, 5), reason="it fails"))
    report = finish(run).judged()
    assert report.breaches == ()
    assert report.trained == 8
    assert report.ledger_imbalance == 0


def plant_silent_death(run: RunMaker) -> None:
    run.arrive(6, 0, 1.0, ((2, 3),))
    run.close(6, "dead")


def plant_forgotten_member(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.both(7, versions=((2, 9),))
    run.step(3, 6, 7, version=2, members=("6.0", "7.0", "7.1"))


def plant_unequal_filter(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.close(6, "filtered")


def plant_dead_though_usable(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.close(6, "dead")


def plant_stale_though_fresh(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.close(6, "stale")


def plant_left_behind(run: RunMaker) -> None:
    for version in range(3, 12):
        run.publish(version, version)


def plant_too_many_open(run: RunMaker) -> None:
    run.issue(*range(8, 18))


@pytest.mark.parametrize(
    ("plant", "lost", "words"),
    [
        (plant_silent_death, 1, "6.1 was never heard of"),
        (plant_forgotten_member, 1, "6.1 came back and is not in step 3"),
        (plant_unequal_filter, 2, "6.0 came back, its group was filtered with rewards"),
        (plant_dead_though_usable, 2, "6.0 came back, its group ended as dead"),
        (plant_stale_though_fresh, 2, "6.1 came back, its group ended as stale"),
        (plant_left_behind, 4, "6.0 is still open, issued at version 1 of 11"),
        (plant_too_many_open, 8, "6.0 is still open"),
    ],
)
def test_what_is_lost_is_found(tmp_path, plant, lost, words):
    run = begun(tmp_path)
    plant(run)
    report = run.judged()
    assert report.lost == lost
    assert any(text.startswith(f"lost: {words}") for text in report.breaches)


def test_what_is_open_at_the_end_of_a_run_that_went_on_is_not_lost(tmp_path):
    run = begun(tmp_path, steps=2)
    run.end()
    report = run.judged()
    assert report.breaches == ()


def test_what_had_the_time_to_end_and_is_open_is_lost(tmp_path):
    run = begun(tmp_path, steps=2)
    run.arrive(6, 0, 1.0, ((2, 3),))
    run.both(7, versions=((2, 3),))
    run.end()
    report = run.judged(due=8)
    assert report.lost == 3
    for name in ("6.1", "7.0", "7.1"):
        assert f"lost: {name} is still open, issued at version 1 of 2" in report.breaches
    assert run.judged(due=6).lost == 0


def test_the_books_of_this_moment_are_counted(tmp_path):
    run = begun(tmp_path)
    recount = recounted(run.config, run.folder)
    assert recount.num_issued == 8
    assert set(recount.groups) == {6, 7}


def plant_second_credit(run: RunMaker) -> None:
    run.issue(6)


def plant_missing_credit(run: RunMaker) -> None:
    run.issue(9)


def plant_odd_attempt(run: RunMaker) -> None:
    run.issue(6, attempt=2)


def plant_stranger(run: RunMaker) -> None:
    run.arrive(12, 0, 1.0, ((2, 2),))


def plant_second_end(run: RunMaker) -> None:
    run.close(2, "dead")


def plant_end_of_nothing(run: RunMaker) -> None:
    run.close(30, "dead")


def plant_missing_step(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.step(4, 6, version=2)


def plant_ghost(run: RunMaker) -> None:
    run.arrive(6, 0, 1.0, ((2, 2),))
    run.fail(6, 1)
    run.step(3, 6, version=2)


def plant_batch_that_closes_others(run: RunMaker) -> None:
    run.both(6, versions=((2, 2),))
    run.note(
        Batch(
            step=3,
            version=2,
            groups=(6,),
            members=("6.0", "6.1"),
            closed=(Closed(group=7, end="trained"),),
            releases=1,
        )
    )


def plant_skip_of_nothing(run: RunMaker) -> None:
    run.note(Skipped(step=2, groups=(6,)))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (plant_second_credit, "credit 6 was issued twice"),
        (plant_missing_credit, "credit 9 follows 7"),
        (plant_odd_attempt, "attempt 2 of group 6"),
        (plant_stranger, "12.0 arrived, but was never issued"),
        (plant_second_end, "group 2 ends as dead, but it is ended as filtered"),
        (plant_end_of_nothing, "group 30 ends as dead, but it is unknown"),
        (plant_missing_step, "step 4 follows step 2"),
        (plant_ghost, "step 3 trains 6.1, which never came"),
        (plant_batch_that_closes_others, "step 3 trains groups [6] and closes [7]"),
        (plant_skip_of_nothing, "step 2 is skipped, but was not decided so"),
    ],
)
def test_a_record_that_contradicts_the_others_puts_the_books_off(tmp_path, plant, words):
    run = begun(tmp_path)
    plant(run)
    report = run.judged()
    assert report.ledger_imbalance > 0
    assert any(f"contradict themselves: {words}" in text for text in report.breaches)


def test_a_checkpoint_that_counts_otherwise_is_found(tmp_path):
    run = finish(begun(tmp_path))
    run.checkpoint(3, ledger={"num_issued": 9})
    report = run.judged()
    assert report.ledger_imbalance == 1
    assert any("step 3 says 9 groups issued, the journal has 8" in b for b in report.breaches)


def test_a_checkpoint_with_another_open_group_is_found(tmp_path):
    run = begun(tmp_path)
    groups = run.ledger.to_json()["groups"]
    groups[0]["number"] = 2
    run.checkpoint(7, ledger={"groups": groups})
    report = finish(run).judged()
    assert report.ledger_imbalance == 2
    assert any("has other groups open: [2, 6]" in text for text in report.breaches)


def test_a_checkpoint_whose_ends_differ_is_found(tmp_path):
    run = begun(tmp_path)
    run.ledger.ends.die(4)
    run.checkpoint(7)
    report = finish(run).judged()
    assert report.ledger_imbalance == 4  # two of the checkpoint, two of the last line
    assert any("step 7 says 3 groups trained, the journal has 4" in b for b in report.breaches)


def test_a_checkpoint_of_other_weights_is_found(tmp_path):
    run = finish(begun(tmp_path))
    run.checkpoint(3, weights_sha256="another")
    assert any("other weights" in text for text in run.judged().breaches)


def test_a_checkpoint_that_cannot_be_read_is_found(tmp_path):
    run = healthy(tmp_path)
    run.checkpoint(3, extra={})
    assert any("cannot be read" in text for text in run.judged().breaches)


def test_a_last_line_that_counts_otherwise_is_found(tmp_path):
    run = begun(tmp_path)
    finish(run)
    run.end(trained=5, filtered=2)
    report = run.judged()
    assert report.ledger_imbalance == 2
    assert any("last line says 5 groups trained" in text for text in report.breaches)


def test_a_run_that_stops_before_its_end_is_found(tmp_path):
    assert "the run did not end: step 2 of 3" in begun(tmp_path).judged().breaches


def test_the_last_line_of_a_trainer_that_was_followed_by_another_says_nothing(tmp_path):
    run = begun(tmp_path)
    run.end(trained=5)
    MetricsFile(run.folder.metrics).append("step", {"step": 2})
    assert run.judged().breaches == ("the run did not end: step 2 of 3",)


def test_a_damaged_journal_is_a_breach_and_no_crash(tmp_path):
    run = healthy(tmp_path)
    run.journal.close()
    path = next(run.folder.journal.iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert any("is damaged at byte" in text for text in run.judged().breaches)


def test_a_journal_without_its_beginning_is_found(tmp_path):
    run = begun(tmp_path)
    first = run.journal.end.segment
    run.restart()
    finish(run)
    (run.folder.journal / first).unlink()
    assert any("does not reach back" in text for text in run.judged().breaches)


def test_a_journal_of_two_runs_is_found(tmp_path):
    run = begun(tmp_path)
    run.note(Opened(run_id="run-2", incarnation=1, step=2))
    assert any("of runs run-1 and run-2" in text for text in finish(run).judged().breaches)


def test_a_body_that_is_not_what_was_journaled_is_found(tmp_path):
    for name, data, words in (
        ("other", body("6.1", 1.0, ((2, 4),)), "its body 6.1"),
        ("reward", body("6.0", 0.5, ((2, 4),)), "with 0.5"),
        ("rubbish", b"rubbish", "cannot be read"),
        ("short", body("6.0", 1.0, ((2, 4),)).replace(b"[1,4]", b"[1,3]"), "arrays of"),
        ("hole", body("6.0", 1.0, ((-1, 4),)), "without a version"),
    ):
        run = begun(tmp_path / name)
        run.arrive(6, 0, 1.0, ((2, 4),), data=data)
        assert any(words in text for text in run.judged().breaches), name


def test_a_body_behind_another_checksum_is_found(tmp_path):
    run = begun(tmp_path)
    record = Arrived(
        type="Trajectory",
        message_id="x",
        rollout_id="6.0",
        group=6,
        index=0,
        purpose="train",
        reward=1.0,
        headers={"checksum": "crc32:00000000:1"},
    )
    run.note(record, body("6.0", 1.0, ((2, 4),)))
    assert any("does not match the body" in text for text in run.judged().breaches)


def test_filtering_that_the_rules_ask_for_is_none_of_these(tmp_path):
    """A dropped, too old member explains a stale group."""
    run = begun(tmp_path, on_stale="drop", max_version_lag=1)
    run.both(6, versions=((1, 2),))
    run.publish(3, 3)
    run.note(GroupsClosed(closed=(Closed(group=6, end="stale"),)))
    assert run.judged().lost == 0


def test_publications_that_only_the_journal_knows_are_found(tmp_path):
    run = begun(tmp_path)
    run.note(Published(version=9, step=9, fingerprint="f9"))
    assert "version 9 was published and has no manifest" in run.judged().breaches
