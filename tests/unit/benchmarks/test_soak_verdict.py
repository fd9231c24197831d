"""What the soak calls flat, on samples made by hand; and what it reads of a process of ours."""

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.runs.folder import RunFolder
from tests.benchmarks.soak import REMEMBERED, Row, show
from tests.benchmarks.soak_sample import SETTLED, folder_bytes, process_sizes


def rows(
    level: Callable[[float], float],
    *,
    who: str = "trainer",
    what: str,
    settled: float = REMEMBERED,
) -> list[Row]:
    """An hour of samples of one quantity; `level` has the share of the hour.

    Args:
        settled: By the half, of a rollout worker.
    """
    found: list[Row] = []
    for n in range(360):
        share = n / 360
        beside = {"rollout-1": {SETTLED: 2 * settled * share}, "up": {"num_files": 5.0}}
        found.append((10.0 * n, {who: {what: level(share) + n % 2}, **beside}))
    return found


def growing(per_hour: float) -> Callable[[float], float]:
    """A leak, from 1,000."""
    return lambda share: 1000.0 + per_hour * share


def test_a_level_is_flat_and_a_leak_is_not(capsys) -> None:
    assert show(rows(growing(0.0), what="rss_bytes"), num_steps=1)
    assert show(rows(growing(40.0), what="rss_bytes"), num_steps=1)
    assert not show(rows(growing(80.0), what="rss_bytes"), num_steps=1)
    assert not show(rows(growing(80.0), what="num_blocks"), num_steps=1)
    assert show(rows(growing(0.5), what="num_tasks"), num_steps=1)
    assert not show(rows(growing(5.0), what="num_tasks"), num_steps=1)
    said = capsys.readouterr().out
    assert said.count("GROWS") == said.count("NOT FLAT") == 3


def test_what_fills_in_the_first_half_is_no_leak() -> None:
    assert show(rows(lambda share: 1000.0 + 500 * (share > 0.4), what="rss_bytes"), num_steps=1)
    filling = rows(lambda share: 1000.0 + 80 * (1 - math.exp(-6 * share)), what="uss_bytes")
    assert show(filling, num_steps=1)


def test_a_leak_beside_what_fills_or_in_the_second_half_alone_is_seen() -> None:
    both = rows(lambda share: 1000 + 80 * (1 - math.exp(-6 * share)) + 80 * share, what="uss_bytes")
    assert not show(both, num_steps=1)
    late = rows(lambda share: 1000.0 + 80 * max(0.0, share - 0.5), what="uss_bytes")
    assert not show(late, num_steps=1)


def test_where_memories_are_not_full_by_the_half_nothing_is_called_flat(capsys) -> None:
    assert not show(rows(growing(0.0), what="rss_bytes", settled=3000), num_steps=1)
    assert "too short: a worker had settled 3,000 of 4,096" in capsys.readouterr().out


def test_noise_in_which_a_leak_would_be_lost_is_named(capsys) -> None:
    saw = rows(lambda share: 1000.0 + 400 * (share * 5 % 1), what="rss_bytes", who="broker")
    assert show(saw, num_steps=1)
    assert "noisy" in capsys.readouterr().out


def test_what_is_only_shown_fails_nothing() -> None:
    seldom = rows(growing(0.0), what="rss_bytes")
    seldom[-1][1]["folder"] = {".fleet.json.7_bytes": 9.0}  # was there for a moment
    assert show(seldom, num_steps=1)
    seldom[-1][1]["trainer"]["surprise_bytes"] = 9.0
    assert not show(seldom, num_steps=1)


def test_the_run_folder_may_grow() -> None:
    assert show(rows(growing(900.0), who="folder", what="journal_bytes"), num_steps=1)


def test_nothing_seen_is_not_flat() -> None:
    assert not show([], num_steps=0)
    assert not show(rows(growing(0.0), what="rss_bytes")[:2], num_steps=1)


def test_a_process_is_read_as_it_is(tmp_path: Path) -> None:
    before = process_sizes(os.getpid())
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    block = bytearray(b"x") * (32 * 1024**2)
    with (tmp_path / "open").open("w"):
        after = process_sizes(os.getpid())
    over.set()
    thread.join()
    assert after["num_files"] == before["num_files"] + 1
    assert after["num_threads"] == before["num_threads"] + 1
    assert after["rss_bytes"] - before["rss_bytes"] >= len(block) * 0.9
    assert after["uss_bytes"] <= after["pss_bytes"] <= after["rss_bytes"]
    assert process_sizes(2**22 + 1) == {}


def test_a_folder_is_added_up(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "1").write_bytes(b"abc")
    (tmp_path / "journal" / "2").write_bytes(b"de")
    (tmp_path / "metrics.jsonl").write_bytes(b"four")
    assert folder_bytes(RunFolder(tmp_path)) == {"journal_bytes": 5.0, "metrics_bytes": 4.0}


def test_a_folder_that_vanishes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "weights" / ".partial").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_bytes(b"four")
    scan = os.scandir

    def late(path: Path) -> Any:
        if Path(path).name == ".partial":
            Path(path).rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert folder_bytes(RunFolder(tmp_path)) == {"metrics_bytes": 4.0}
    assert not (tmp_path / "weights" / ".partial").exists()
