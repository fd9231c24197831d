"""One rollout as the page gets it."""

import json
import math
from pathlib import Path

import pytest

from consumers.trainer.batch.advantages import grpo
from infra.observe.page.charts import MAX_POINTS, chart_columns
from infra.observe.page.pieces import Pieces
from infra.observe.page.rollout import (
    advantages_of,
    rollout_values,
    spread,
    trained_logprobs,
)
from infra.observe.page.runs import Run
from infra.runs.metrics import MetricsFile
from tests.factories.run_folders import TurnKind, WrittenRun, small_run


def test_a_rollout_has_all_that_is_known(run: Run) -> None:
    found = rollout_values(run, "2.1")
    assert found is not None
    one = found["trajectory"]
    tokens = one["tokens"]
    assert len(tokens["ids"]) == len(tokens["texts"]) == len(tokens["logprobs"])
    said = "".join(tokens["texts"])
    assert said.startswith("what is 40+88?I ask the tool. <tool_call>add 40 88</tool_call>")
    assert [cut["reason"] for cut in one["interruptions"]] == ["sync", "leave"]
    assert [result["ok"] for result in one["tool_results"]] == [True, False]
    assert one["rewards"] == {"exact": 1.0, "brief": 0.5}
    assert found["row"] == {"step": 2, "staleness": 1, "attempt": 0, "arrival": 9, "version": 1}
    json.dumps(found, allow_nan=False)


def test_the_trainers_logprobs_are_the_rollouts_own(run: Run) -> None:
    """The factory counts through the batch: 0, -0.1, ... -1.9, again."""
    before = 0
    for rollout_id in ("0.0", "0.1", "0.2", "0.3", "1.0"):
        row = run.index.counted(rollout_id)
        assert row is not None and row.inside is not None
        expected = [place % 20 / -10 for place in range(before, before + row.inside.num_sampled)]
        assert trained_logprobs(run, row) == pytest.approx(expected, abs=1e-3)
        before += row.inside.num_sampled
    untrained = run.index.counted("4.0")
    assert untrained is not None
    assert trained_logprobs(run, untrained) is None


def test_advantages_are_those_that_were_trained_with(run: Run) -> None:
    rewards = [0.0, 0.25, 0.5, 0.75]
    found = advantages_of(run, run.index.groups["0"])
    assert list(found.values()) == list(grpo(rewards))
    assert advantages_of(run, run.index.groups["4"]) == {}


def test_code_that_a_run_folder_names_is_not_run(tmp_path: Path) -> None:
    written = small_run(tmp_path)
    written.close()
    config = json.loads(written.folder.config.read_text())
    config["algorithm"]["advantages"] = "os:system"
    written.folder.config.write_text(json.dumps(config))
    run = Run(written.root)
    run.index.update()
    assert run.config is not None
    assert advantages_of(run, run.index.groups["0"]) == {}


def test_a_failure_is_told_with_its_stage(run: Run) -> None:
    found = rollout_values(run, "5.0")
    assert found is not None
    assert found["trajectory"] is None
    assert found["failures"][0]["stage"] == "reward"
    assert rollout_values(run, "9.9") is None


def test_a_body_that_was_exchanged_is_noticed(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    honest = run.trajectory(0, 0, [(TurnKind.PROMPT, "a"), (TurnKind.ASSISTANT, "honest")])
    run.arrive(honest)
    run.close()
    opened = Run(run.root)
    opened.index.update()
    record, _ = opened.index.body(opened.index.rows[0])
    other = record.model_copy(update={"headers": {**record.headers, "checksum": "crc32:0:0"}})
    again = WrittenRun(tmp_path, name="again")
    again.journal.append(other, b"{}")
    again.close()
    opened = Run(again.root)
    opened.index.update()
    found = rollout_values(opened, "0.0")
    assert found is not None
    assert "does not match the body" in found["problem"]


def test_pieces_join_to_the_text(run: Run) -> None:
    from tokenizers import Tokenizer

    path = run.folder.checkpoints / "step_1" / "hf" / "tokenizer.json"
    for text in ("the sum is 128", "grüße, 世界 🎉", " \n\ttabs"):
        ids = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids
        pieces = run.pieces.texts(ids)
        assert pieces is not None
        assert len(pieces) == len(ids)
        assert "".join(pieces) == text
    assert run.pieces.texts([2**31 - 1]) is not None


def test_without_a_tokenizer_it_says_where_it_looked(tmp_path: Path) -> None:
    pieces = Pieces.find([tmp_path])
    assert pieces.texts([1, 2]) is None
    assert str(tmp_path) in pieces.problem
    (tmp_path / "tokenizer.json").write_text("{")
    assert "cannot be read" in Pieces.find([tmp_path]).problem


def test_charts_are_thinned_and_take_a_step_s_last_line(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    metrics = MetricsFile(run.folder.metrics)
    for step in range(1, 2 * MAX_POINTS + 1):
        metrics.append("step", {"step": step, "train/loss": float(step), "name": "text"})
    metrics.append("step", {"step": 1, "train/loss": 3.0, "train/kl": math.nan})
    run.close()
    found = chart_columns(Run(run.root))
    assert found["every"] == 2
    assert found["steps"]["x"][:2] == [2, 4]
    assert found["steps"]["columns"]["train/loss"][:2] == [2.5, 3.5]
    assert len(found["steps"]["x"]) == MAX_POINTS
    assert "name" not in found["steps"]["columns"]


def test_spread() -> None:
    assert spread([0.0, 1.0]) == {"mean": 0.5, "std": 0.5, "min": 0.0, "max": 1.0}
    assert spread([])["mean"] is None
    assert spread([0.1] * 3)["std"] == pytest.approx(0.0, abs=1e-12)
