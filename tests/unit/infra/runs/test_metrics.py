"""metrics.jsonl: appended, read back by kind, torn last line skipped."""

from pathlib import Path

import numpy as np
import pytest

from infra.roles.errors import WarrenError
from infra.runs.metrics import MetricsFile, newest_lines, read_metrics


def test_lines_come_back_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    assert list(read_metrics(path)) == []
    file = MetricsFile(path)
    file.append("step", {"step": 1, "reward/mean": np.float64(0.5)})
    file.append("eval", {"version": 0, "eval/reward": 0.25})
    assert list(read_metrics(path, "step")) == [{"kind": "step", "step": 1, "reward/mean": 0.5}]
    assert [line["kind"] for line in read_metrics(path)] == ["step", "eval"]


def test_a_torn_last_line_is_skipped_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append("step", {"step": 1})
    with path.open("ab") as file:
        file.write(b'{"kind":"step","st')
    assert [line["step"] for line in read_metrics(path)] == [1]
    MetricsFile(path).append("step", {"step": 2})
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_of_lines_with_one_number_the_last_counts_and_those_without_are_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for values in ({"step": 2}, {}, {"step": "1"}, {"step": [1]}, {"step": 1}, {"step": 2, "x": 1}):
        file.append("step", values)
    assert newest_lines(path, "step", "step") == {
        1: {"kind": "step", "step": 1},
        2: {"kind": "step", "step": 2, "x": 1},
    }
    assert list(newest_lines(path, "step", "step")) == [1, 2]


def test_a_disk_that_refuses_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(WarrenError, match=r"(?s)cannot write .*metrics\.jsonl: .*--resume"):
        MetricsFile(tmp_path / "run" / "metrics.jsonl").append("step", {"step": 1})
