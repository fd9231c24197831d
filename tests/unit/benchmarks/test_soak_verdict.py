"""What the soak calls flat, on samples made by hand; and what it reads of a process of ours."""

import os
import threading
from pathlib import Path
from typing import Any

from infra.runs.folder import RunFolder
from tests.benchmarks.soak import Row, show
from tests.benchmarks.soak_sample import folder_bytes, process_sizes


def rows(*, per_hour: float, warm_up: float = 0.0, who: str = "trainer", what: str) -> list[Row]:
    """An hour of samples of one quantity that starts at 1,000."""
    found: list[Row] = []
    for n in range(360):
        level = 1000.0 + per_hour * n / 360 + (warm_up if n >= 30 else 0.0) + n % 2
        found.append((10.0 * n, {who: {what: level}, "up": {"num_files": 5.0}}))
    return found


def test_a_level_is_flat_and_a_leak_is_not(capsys) -> None:
    assert show(rows(per_hour=0.0, what="rss_bytes"), num_steps=1)
    assert show(rows(per_hour=40.0, what="rss_bytes"), num_steps=1)
    assert not show(rows(per_hour=80.0, what="rss_bytes"), num_steps=1)
    assert not show(rows(per_hour=80.0, what="num_blocks"), num_steps=1)
    assert show(rows(per_hour=0.5, what="num_tasks"), num_steps=1)
    assert not show(rows(per_hour=5.0, what="num_tasks"), num_steps=1)
    said = capsys.readouterr().out
    assert said.count("GROWS") == said.count("NOT FLAT") == 3


def test_warm_up_does_not_count() -> None:
    assert show(rows(per_hour=0.0, warm_up=500.0, what="rss_bytes"), num_steps=1)


def test_the_run_folder_may_grow() -> None:
    assert show(rows(per_hour=900.0, who="folder", what="journal_bytes"), num_steps=1)


def test_nothing_seen_is_not_flat() -> None:
    assert not show([], num_steps=0)
    assert not show(rows(per_hour=0.0, what="rss_bytes")[:2], num_steps=1)


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
