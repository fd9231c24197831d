"""The index says what the journal says, while it grows and after something befell it."""

import shutil
from pathlib import Path

from infra.observe.page.index import Index
from infra.observe.page.runs import Run
from infra.runs.journal import Journal
from schemas.journal import Opened
from tests.factories.run_folders import TurnKind, WrittenRun, small_run

SAID = [(TurnKind.PROMPT, "what?"), (TurnKind.ASSISTANT, "that")]


def test_every_record_leaves_its_facts(run: Run) -> None:
    index = run.index
    assert len(index.rows) == 23
    assert index.version == 2
    ends = {key: group.end for key, group in index.groups.items()}
    assert ends == {
        **dict.fromkeys("0123", "trained"), "4": "filtered", "5": "open", "eval2": "scored",
    }  # fmt: skip
    assert index.groups["4"].reason == "all rewards equal 0"
    step = index.steps[2]
    assert (step.version, step.members, step.published, step.loss) == (1, 8, 2, 0.25)
    cut = index.counted("2.1")
    assert cut is not None and cut.inside is not None
    assert (cut.step, cut.oldest, cut.newest, cut.staleness) == (2, 0, 1, 1)
    facts = cut.inside
    assert (facts.interruptions, facts.turns, facts.tool_calls, facts.tool_errors) == (2, 2, 2, 1)
    failed = index.by_id["5.0"][0]
    assert failed.reward is None
    assert failed.error.startswith("ZeroDivisionError")


def test_it_grows_with_the_journal(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    index = Index(run.folder.journal)
    run.arrive(run.trajectory(0, 0, SAID))
    index.update()
    first = index.rows[0]
    run.arrive(run.trajectory(0, 1, SAID))
    index.update()
    assert [row.rollout_id for row in index.rows] == ["0.0", "0.1"]
    assert index.rows[0] is first
    run.close()


def test_a_copy_that_comes_later_does_not_count(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.fail(0, 0, "lost")
    for reward in (1.0, 0.0):
        run.arrive(run.trajectory(0, 0, SAID, reward=reward), attempt=1)
    run.close()
    index = Index(run.folder.journal)
    index.update()
    counted = index.counted("0.0")
    assert counted is not None
    assert (counted.reward, counted.number) == (1.0, 1)


def test_what_a_thawed_trainer_wrote_is_forgotten(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.arrive(run.trajectory(0, 0, SAID))
    end = run.journal.end
    index = Index(run.folder.journal)
    run.arrive(run.trajectory(0, 1, SAID))
    index.update()
    assert len(index.rows) == 2
    opened = Opened(
        run_id="r", incarnation=2, step=0, previous_segment=end.segment, previous_bytes=end.offset
    )
    Journal(run.folder.journal, opened).close()
    index.update()
    assert [row.rollout_id for row in index.rows] == ["0.0"]
    run.close()


def test_damage_is_told_and_what_lies_before_it_is_shown(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    run.close()
    segment = next(run.folder.journal.glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    index = Index(run.folder.journal)
    index.update()
    assert "is damaged at byte" in index.problem
    assert 0 < len(index.rows) < 23


def test_a_removed_segment_leaves_its_rows_without_bodies(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    run.close()
    index = Index(run.folder.journal)
    index.update()
    shutil.rmtree(run.folder.journal)
    index.fill(index.rows[:1])
    facts = index.rows[0].inside
    assert facts is not None
    assert "was trimmed" in facts.problem
