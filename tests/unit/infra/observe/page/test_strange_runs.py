"""Run folders that nobody of ours has written: each is shown as far as it can be, with its fault,
and takes no other run and no other question with it."""

import os
import re
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from infra.observe.page import index as index_module
from infra.observe.page.answers import Answers
from infra.observe.page.index import Index, segment_sizes
from infra.observe.page.rollout import spread
from infra.observe.page.runs import MAX_CONFIG_BYTES, Run, Runs
from infra.observe.page.server import PageServer
from infra.runs.frames import encode_frame, read_frames
from tests.factories.run_folders import WrittenRun, small_run


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> WrittenRun:
    """A run for a test to write its metrics."""
    run = WrittenRun(tmp_path_factory.mktemp("strange"))
    run.close()
    return run


def answer(root: Path, what: str, query: Mapping[str, str] | None = None) -> Any:
    """As a browser gets it."""
    return orjson.loads(orjson.dumps(Answers(Runs(root)).answer(what, query or {})))


def begun(folder: Path) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(b'{"kind":"step","step":3}\n')
    return folder


def test_a_recipe_without_end_is_none(tmp_path: Path, strange: WrittenRun) -> None:
    piped, endless, long = (begun(tmp_path / name) for name in ("piped", "endless", "long"))
    os.mkfifo(piped / "config.json")
    (endless / "config.json").symlink_to("/dev/zero")
    (long / "config.json").write_bytes(b" " * MAX_CONFIG_BYTES + strange.folder.config.read_bytes())
    found = answer(tmp_path, "runs")["runs"]
    assert [(run["name"], run["steps_asked"], run["step"]) for run in found] == [
        ("endless", None, 3), ("long", None, 3), ("piped", None, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("algorithm", "group_size", "9" * 25),
        ("run", "steps", "9" * 5000),
        ("algorithm", "max_staleness", "1e999"),
        ("model", "path", '"\\ud800"'),
        ("model", "path", f'"{"x" * 5000}"'),
    ],
)
def test_a_recipe_with_hostile_values_hides_no_run(
    tmp_path: Path, strange: WrittenRun, section: str, key: str, value: str
) -> None:
    begun(tmp_path / "good")
    tree = orjson.loads(strange.folder.config.read_bytes())
    tree[section][key] = "HOSTILE"
    text = orjson.dumps(tree).decode().replace('"HOSTILE"', value)
    (begun(tmp_path / "bad") / "config.json").write_text(text)
    assert [run["name"] for run in answer(tmp_path, "runs")["runs"]] == ["bad", "good"]
    assert answer(tmp_path, "overview", {"run": "bad"})["step"] == 3
    assert "tokens are shown by their ids" in Run(tmp_path / "bad").pieces.problem


def test_a_run_that_cannot_be_read_is_shown_with_its_fault(tmp_path: Path) -> None:
    begun(tmp_path / "good")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "metrics.jsonl").symlink_to("/proc/self/mem")
    good, memory = answer(tmp_path, "runs")["runs"]
    assert (good["name"], good["step"], good["problem"]) == ("good", 3, "")
    assert memory["name"] == "memory"
    assert "error" in memory["problem"]
    assert "error" in answer(tmp_path, "overview", {"run": "memory"})["problem"]


def test_a_name_that_is_no_text_is_shown_and_found(tmp_path: Path) -> None:
    named = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    begun(named)
    (run,) = answer(tmp_path, "runs")["runs"]
    assert run["name"] == r"bad\xff"
    assert answer(tmp_path, "charts", {"run": r"bad\xff"})["steps"]["x"] == [3]


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        ("[]", []),
        ("5", []),
        ("{}", []),
        ('{"kind":"step"}', []),
        ('{"kind":"step","step":"a"}\n{"kind":"step","step":1}', [1]),
        ('{"kind":"step","step":[1]}\n{"kind":"step","step":true}', []),
        ('{"kind":"step","step":' + "[" * 500 + "]" * 500 + "}", []),
        ('{"kind":"eval"}\n{"kind":"eval","version":{}}', []),
    ],
)
def test_metrics_that_are_none_are_left_out(
    strange: WrittenRun, lines: str, steps: list[int]
) -> None:
    strange.folder.metrics.write_text(lines + "\n")
    found = answer(strange.root, "charts", {"run": strange.root.name})
    assert (found["steps"]["x"], found["evals"]["x"]) == (steps, [])
    assert answer(strange.root, "runs")["runs"][0]["step"] == (steps or [0])[-1]


def test_huge_values_have_a_mean(strange: WrittenRun) -> None:
    line = '{"kind":"step","step":%d,"x":1e308}\n'
    strange.folder.metrics.write_text("".join(line % step for step in range(401)))
    found = answer(strange.root, "charts", {"run": strange.root.name})
    assert found["every"] == 2
    assert set(found["steps"]["columns"]["x"]) == {1e308}


def test_the_spread_of_huge_rewards_is_finite() -> None:
    assert spread([1e200, -1e200]) == {"mean": 0.0, "std": 1e200, "min": -1e200, "max": 1e200}
    assert spread([1e308] * 3)["mean"] == 1e308
    assert spread([1e308, -1e308])["std"] == 1e308
    assert spread([5e-324])["mean"] == 5e-324
    assert spread([0.0, 0.0])["std"] == 0.0


@pytest.mark.parametrize("name", [b"num_tokens", b"index", b"oldest_version", b"group"])
def test_a_number_beyond_64_bit_is_no_record(tmp_path: Path, name: bytes) -> None:
    run = small_run(tmp_path)
    run.close()
    segment = next(run.folder.journal.glob("*.journal"))
    written = re.compile(rb'"%s":\d+' % name)
    frames = [
        encode_frame(
            written.sub(b'"%s":%s' % (name, b"9" * 30), frame.header)
            if b'"rollout_id":"2.0"' in frame.header
            else frame.header,
            frame.body,
        )
        for frame in read_frames(segment.read_bytes())
    ]
    segment.write_bytes(b"".join(frames))
    query = {"run": run.root.name}
    for what in ("groups", "rollouts", "steps", "overview"):
        assert "is damaged at byte" in answer(run.root, what, query)["problem"]
    assert answer(run.root, "groups", query)["total"] > 0


def test_a_segment_that_is_removed_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path)
    run.close()
    gone = run.folder.journal / "000000-000001.journal"
    kept = segment_sizes(run.folder.journal)
    assert len(kept) == 1
    gone.symlink_to(tmp_path / "nowhere")
    assert segment_sizes(run.folder.journal) == kept
    assert Run(run.root).stamp().startswith("metrics:")

    def refused(_journal: Path) -> dict[str, int]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(index_module, "segment_sizes", refused)
    index = Index(run.folder.journal)
    index.update()
    assert "Permission denied" in index.problem


def test_what_was_asked_cannot_steer_the_terminal(
    written_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_answers: Answers, _what: str, _query: Mapping[str, str]) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(Answers, "answer", broken)
    with PageServer(Runs(written_root)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as client:
            client.sendall(b"GET /api/x\x1b[2J?y=\x1b]0;z\x07 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with client.makefile("rb") as answer:
                status = answer.read().split(b"\r\n")[0]  # to its end: what is said comes before
        server.close()
        thread.join()
    assert b" 500 " in status
    (said,) = (record.getMessage() for record in caplog.records if record.exc_info)
    assert said.isprintable()
