"""The fake server tells what the real one told: the same keys, with values of the same types.

`tests/data/sglang_answers.json` holds answers of SGLang 0.5.23 on a CPU; long lists are cut.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from consumers.rollout.engines.sglang.answer import Reading
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.running import Running, running

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data" / "sglang_answers.json").read_text(encoding="utf-8")
)["calls"]
PROMPT = [1, *range(10, 30)]


def shape(value: Any) -> Any:
    """Keys and types. Floats and ints are one, lists are what their first element is."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value)


@pytest.fixture
async def server(tiny_folder: Path):
    async with running(tiny_folder, Quirks()) as started:
        yield started


@pytest.mark.parametrize(
    "name",
    [
        "generate_length",
        "generate_eos",
        "generate_top_logprobs",
        "generate_sampling_mask",
    ],
)
async def test_answers(server: Running, name: str) -> None:
    told = RECORDED[name]["response"]
    body = RECORDED[name]["request"]["body"]
    if told["meta_info"]["cached_tokens"]:  # the prompt had been seen
        await server.post("/generate", body | {"rid": "before"})
    answer = await server.post("/generate", body | {"input_ids": body["input_ids"]})
    assert answer.status == 200
    found = answer.json()
    assert shape(found) == shape(told) | {"meta_info": shape(told["meta_info"])}
    assert list(found["meta_info"]["finish_reason"]) == list(told["meta_info"]["finish_reason"])


async def test_a_stream(server: Running) -> None:
    *told, done = RECORDED["generate_stream"]["events"]
    assert done == "data: [DONE]"
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": len(told), "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    await server.post("/generate", body | {"stream": False})
    events = [event async for event in server.events(body)]
    first, last = events[0], events[-1]
    assert shape(first)["meta_info"].items() >= essentials(told[0]).items()
    assert shape(last)["meta_info"].items() >= essentials(told[-1]).items()
    assert first["output_ids"] == last["output_ids"][: len(first["output_ids"])]
    assert len(last["output_ids"]) == len(told)


def essentials(event: dict[str, Any]) -> dict[str, Any]:
    """What does not tell the time."""
    meta = shape(event["meta_info"])
    return {key: value for key, value in meta.items() if not key.endswith(("_ts", "_latency"))}


@pytest.mark.parametrize(
    "name",
    [
        "generate_bad_sampling_key",
        "generate_empty",
        "generate_too_long",
        "pause_bad_mode",
        "update_missing_dir",
        "tensor_without_session",
        "abort_request",
        "pause_retract",
        "ready_while_paused",
        "continue",
        "ready",
        "flush_ok",
        "update_weight_version",
        "weights_checker",
    ],
)
async def test_control(server: Running, name: str) -> None:
    recorded = RECORDED[name]
    method, path = recorded["request"]["method"], recorded["request"]["path"]
    if name == "ready_while_paused":
        await server.post("/pause_generation", {"mode": "retract"})
    answer = await server.call(method, path, recorded["request"]["body"])
    assert answer.status == recorded["status"]
    if isinstance(recorded["response"], str):
        assert answer.text == recorded["response"]
    elif name == "weights_checker":
        ours, theirs = answer.json()["ranks"][0], recorded["response"]["ranks"][0]
        assert shape(ours) | {"checksums": None} == shape(theirs) | {"checksums": None}
        assert {len(value) for value in ours["checksums"].values()} == {16}
    else:
        assert answer.json().keys() == recorded["response"].keys()


async def test_an_update_that_was_not_flushed(server: Running, tiny_folder: Path) -> None:
    server.quirks.not_flushed = 1
    await server.post("/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(tiny_folder), "weight_version": "2"}
    answer = await server.post("/update_weights_from_disk", body)
    recorded = RECORDED["update_changed_but_not_flushed"]
    assert (answer.status, answer.json()) == (recorded["status"], recorded["response"])
    assert (await server.call("GET", "/model_info")).json()["weight_version"] == "default"


async def test_aborts(server: Running) -> None:
    running_one = {
        "rid": "running",
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 200, "ignore_eos": True},
        "return_logprob": True,
    }
    await server.post("/generate", running_one | {"sampling_params": {"max_new_tokens": 1}})
    task = server.later("/generate", running_one)
    await server.until(lambda app: app.scheduler.running and app.scheduler.running[0].tokens)
    await server.post("/abort_request", {"rid": "running"})
    recorded = RECORDED["generate_aborted_running"]["response"]
    assert shape((await task).json()["meta_info"]).items() >= essentials(recorded).items()

    task = server.later("/generate", running_one)
    await server.until(lambda app: app.scheduler.running and len(app.scheduler.running[0].tokens))
    await server.post("/pause_generation", {"mode": "retract"})
    await server.post("/abort_request", {"rid": "running"})
    recorded = RECORDED["generate_aborted_queued"]["response"]
    assert shape((await task).json()) == shape(recorded)


@pytest.mark.parametrize(
    "name",
    [
        "generate_length",
        "generate_eos",
        "generate_prompt_scoring",
        "generate_top_logprobs",
        "generate_sampling_mask",
        "generate_stream",
        "generate_aborted_queued",
    ],
)
def test_the_adapter_reads_what_the_real_one_told(name: str) -> None:
    recorded = RECORDED[name]
    events = recorded.get("events", [recorded.get("response")])
    events = [event for event in events if event != "data: [DONE]"]
    reading = Reading(version=1, known={1}, vocab_size=1 << 20, truncated="mask" in name)
    chunks, reason = [], None
    for event in events:
        renamed = json.loads(json.dumps(event).replace('"v1"', '"1"'))
        more, reason = reading.take(renamed)
        chunks += more
    told = events[-1]["meta_info"]
    assert sum((chunk.token_ids for chunk in chunks), ()) == tuple(events[-1]["output_ids"])
    assert len(reading.versions) == told["completion_tokens"]
    kind = told["finish_reason"]["type"]
    assert reason == ("interrupted" if kind == "abort" else kind)
