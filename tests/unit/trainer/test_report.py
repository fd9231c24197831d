"""The lines that people grep."""

import pytest

from consumers.trainer.books.balance import Books
from consumers.trainer.report import closing_line, eval_line, step_line

VALUES = {
    "step": 12,
    "time/step_s": 8.41,
    "reward/mean": 0.5,
    "arrived/reward": 0.612,
    "groups/trained": 96,
    "groups/filtered": 30,
    "groups/dead": 2,
    "staleness/mean": 0.8,
    "staleness/max": 1.0,
    "batch/interruptions": 3,
    "arrived/interruptions": 7,
    "train/loss": 0.0123,
    "train/entropy": 0.41,
    "train/kl": 9e-4,
    "train/grad_norm": 0.42,
    "perf/tokens_per_s": 18_200.0,
    "time/wait_s": 0.6,
}


def test_a_step_is_one_line() -> None:
    assert step_line(VALUES, num_steps=200, before=0.5) == (
        "Step   12/200 | 8.4s | reward 0.612 ▲ | trainable 96/128 | staleness 0.8 max 1 | "
        "interrupted 7 | loss 0.0123 | entropy 0.41 | kl 9.0e-04 | grad 0.42 | 18.2k tok/s | "
        "wait 0.6s"
    )
    assert "0.612 ▼ |" in step_line(VALUES, num_steps=200, before=0.7)
    assert "0.612 |" in step_line(VALUES, num_steps=200, before=None)


def test_an_evaluation_is_one_line() -> None:
    values = {"version": 3, "eval/reward": 0.25, "eval/num_scored": 7, "eval/num_asked": 8}
    assert eval_line(values) == "Eval v3 | reward 0.250 | 7/8 scored (incomplete)"
    values |= {"eval/num_scored": 8, "eval/num_other_version": 2.0}
    assert eval_line(values) == "Eval v3 | reward 0.250 | 8/8 scored | 2 of other versions"


@pytest.mark.parametrize(
    ("step", "num_open", "how"),
    [
        (4, 0, "the run is complete: 9 groups issued = 6 trained + "),
        (3, 2, "stopped at step 3 of 4: "),
        (4, 2, "step 4 is behind the last one, run.steps is 4: 2 groups stay open until"),
        (6, 2, "step 6 is behind the last one, run.steps is 4: 2 groups stay open until"),
    ],
)
def test_a_run_is_complete_when_nothing_is_open(step: int, num_open: int, how: str) -> None:
    books = Books(
        issued=9, open=num_open, trained=6, filtered=3 - num_open, stale=0, dead=0, balanced=True
    )
    line = closing_line(books, step=step, num_steps=4)
    assert line.startswith(how) and line.endswith(f"0 dead + {num_open} open")
