"""The summary of a run, from lines written by hand."""

import json
from pathlib import Path
from typing import Any

from infra.observe.summary import show_summary, summarise, write_summary
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from schemas.journal import Batch, Opened


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def folder_of(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    config = {"run": {"name": "r", "seed": 2}, "rollout": {"engine": "vllm"}}
    folder.config.write_text(json.dumps(config))
    return folder


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "version": number - 1, **values}


def end(**books: int) -> dict[str, object]:
    return {"kind": "end", **{f"ledger/{name}": count for name, count in books.items()}}


def batch(number: int, *members: str) -> Batch:
    return Batch(step=number, version=0, groups=(), members=members, closed=(), releases=0)


def test_numbers_are_added_up_and_a_repeated_step_counts_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    counts = {"batch/resumed": 3, "batch/resumed_elsewhere": 1, "batch/interruptions": 4}
    tokens = {"batch/tokens_carried": 50, "batch/tokens_reprefilled": 80}
    tokens |= {"batch/tokens_prefilled": 90, "batch/tokens_cached": 30}
    lines(
        folder.metrics,
        {"kind": "eval", "version": 0, "eval/reward": 0.05},
        step(1, **counts, **tokens, **{"staleness/mean": 0.0, "staleness/max": 0}),
        step(2, **counts, **{"staleness/mean": 9.0, "staleness/max": 9}),
        step(2, **counts, **{"staleness/mean": 1.0, "staleness/max": 2}),
        {"kind": "eval", "version": 2, "eval/reward": 0.95},
        end(issued=9, trained=4, filtered=3, stale=1, dead=1, open=0, balanced=True)
        | {"total/failed": 5, "total/replaced": 2, "total/late": 1, "total/requeued": 3},
    )
    lines(
        tmp_path / "resources.jsonl",
        {"elapsed_s": 0.0, "pss_bytes": 100},
        {"elapsed_s": 8.0, "pss_bytes": 900},
        {"elapsed_s": 0.0, "pss_bytes": 300},
        {"elapsed_s": 4.5, "pss_bytes": 200},
    )
    summary = write_summary(folder)
    assert json.loads(folder.summary.read_text()) == summary
    assert summary == {
        "run": "r",
        "steps": 2,
        "reward_start": 0.05,
        "reward_final": 0.95,
        "weight_versions": 2,
        "interruptions": 8,
        "snapshots_resumed": 8,
        "snapshots_resumed_elsewhere": 2,
        "tokens_carried": 50,
        "tokens_reprefilled": 80,
        "tokens_prefilled": 90,
        "prefix_hit_rate": 0.25,
        "staleness_mean": 0.5,
        "staleness_max": 2,
        "ledger": {
            "issued": 9,
            "trained": 4,
            "filtered": 3,
            "stale": 1,
            "dead": 1,
            "open": 0,
            "balanced": True,
        },
        "members": {"failed": 5, "replaced": 2, "reissued": 0, "late": 1, "requeued": 3},
        "trained_twice": 0,
        "wall_seconds": 12.5,
        "peak_pss_bytes": 900,
        "engine": "vllm",
        "seed": 2,
    }
    table = show_summary(summary)
    assert "issued 9 trained 4 filtered 3 stale 1 dead 1 open 0 balanced" in table
    assert "failed 5 replaced 2 reissued 0 late 1" in table
    assert "900 (0.00 GiB)" in table


def test_the_totals_of_the_end_count_what_was_not_trained_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    totals = {"total/trajectories": 9, "total/interruptions": 7, "total/eval/interruptions": 2}
    totals |= {"total/resumed_elsewhere": 3, "total/tokens_carried": 40}
    lines(
        folder.metrics,
        step(1, **{"batch/interruptions": 4}),
        end(issued=1, trained=1, balanced=True) | totals,
    )
    summary = summarise(folder)
    assert (summary["interruptions"], summary["snapshots_resumed_elsewhere"]) == (9, 3)
    assert (summary["tokens_carried"], summary["tokens_reprefilled"]) == (40, 0)


def test_what_was_not_measured_is_said_to_be_so(tmp_path: Path) -> None:
    summary = summarise(folder_of(tmp_path))
    assert summary["reward_final"] is None
    assert summary["ledger"] is None
    assert summary["prefix_hit_rate"] is None
    assert summary["peak_pss_bytes"] is None
    assert "not measured" in show_summary(summary)


def test_a_rollout_in_two_steps_is_trained_twice(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    journal = Journal(folder.journal, Opened(run_id="a", incarnation=1, step=0))
    journal.append(batch(1, "0.0", "0.1"))
    journal.append(batch(1, "0.0", "0.1"))
    journal.append(batch(2, "1.0", "0.1"))
    journal.append(batch(3, "2.0", "2.1"))
    journal.close()
    assert summarise(folder)["trained_twice"] == 1
