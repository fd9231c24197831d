"""The transformers engine beyond the contract: long prompts, failures, options, life cycle."""

import asyncio
import dataclasses
import json
import threading

import pytest
import torch

from consumers.rollout.engines.base import EngineFailed, GenerateRequest
from consumers.rollout.engines.build import build_engine
from consumers.rollout.engines.transformers import batch as batch_module
from consumers.rollout.engines.transformers.batch import Batch, RunningSequence
from consumers.rollout.engines.transformers.engine import TransformersEngine
from infra.roles.errors import ConfigError
from infra.weights.fingerprint import fingerprint
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.config import RunConfig
from tests.contract.harness import greedy, prompt, request, run, scored, underway
from tests.factories import models
from tests.factories.loading import starting


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m"
    models.build(path, tied=False, seed=0)
    return path


@pytest.fixture(scope="module")
def reference(folder):
    return models.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def engine_of(folder, **changes) -> TransformersEngine:
    values = {"dtype": "float32", "slots": 4, "max_model_len": models.CONTEXT, "options": {}}
    return TransformersEngine(model_folder=folder, **(values | changes))


def sequence(token_ids, max_tokens=8) -> RunningSequence:
    asked = GenerateRequest(
        request_id="s", token_ids=tuple(token_ids), max_tokens=max_tokens, temperature=0.0
    )
    return RunningSequence(asked, max_model_len=models.CONTEXT)


@pytest.mark.parametrize("width", [1, 3, 7, 64])
def test_prefill_in_pieces_equals_prefill_at_once(reference, monkeypatch, width):
    monkeypatch.setattr(batch_module, "_PREFILL_WIDTH", width)
    running = Batch(reference, num_rows=6, max_model_len=models.CONTEXT)
    lengths = [1, 2, 9, 20, 21, 40]
    sequences = [sequence(prompt(length)) for length in lengths]
    with torch.inference_mode():
        running.join(sequences)
        for _ in range(7):
            running.step()
    for length, one in zip(lengths, sequences, strict=True):
        assert one.new_ids == greedy(reference, prompt(length), 8)


def test_prefill_is_cut_into_groups_that_fit_memory(reference, monkeypatch):
    monkeypatch.setattr(batch_module, "_PREFILL_TOKENS", 45)
    running = Batch(reference, num_rows=6, max_model_len=models.CONTEXT)
    sequences = [sequence(prompt(length)) for length in (40, 3, 20, 9, 21, 4)]
    groups = []
    prefill = running._prefill

    def watched(group):
        groups.append([len(one.token_ids) for one in group])
        return prefill(group)

    monkeypatch.setattr(running, "_prefill", watched)
    with torch.inference_mode():
        running.join(sequences)
    assert groups == [[3, 4, 9], [20, 21], [40]]
    for one in sequences:
        assert one.new_ids == greedy(reference, one.request.token_ids, 1)


def test_rows_that_leave_do_not_disturb_those_that_stay(reference):
    running = Batch(reference, num_rows=4, max_model_len=models.CONTEXT)
    stays = [sequence(prompt(length), 200) for length in (5, 60, 11)]
    leaves = sequence(prompt(30), 200)
    with torch.inference_mode():
        running.join([stays[0], leaves, stays[1]])
        for _ in range(3):
            running.step()
        running.leave(leaves)
        running.step()
        running.join([stays[2]])
        for _ in range(100):
            running.step()
        running.leave(stays[0])
        running.step()
    for one in stays:
        assert one.new_ids == greedy(reference, one.request.token_ids, len(one.new_ids))
    assert running.free_rows == 2


async def test_more_requests_than_slots_are_served_in_order_of_arrival(folder, reference):
    engine = engine_of(folder, slots=2)
    await engine.start(starting(folder, "float32"))
    ended = []

    async def one(index):
        turn = await run(engine, request(f"r{index}", prompt(4, index), max_tokens=20))
        ended.append(index)
        assert turn.token_ids == greedy(reference, prompt(4, index), 20)

    await asyncio.gather(*(one(index) for index in range(6)))
    await engine.close()
    assert ended == sorted(ended)


async def test_keeping_the_cache_marks_the_switch(folder, tmp_path):
    other = models.build(tmp_path / "other", tied=False, seed=1)
    engine = engine_of(folder, options={"kv_cache": "keep"})
    await engine.start(starting(folder, "float32"))
    task = await underway(engine, request("k", prompt(9), max_tokens=240))
    await engine.load_weights(starting(tmp_path / "other", "float32", version=4))
    turn = await task
    assert set(turn.versions) == {0, 4}
    later = await run(engine, request("n", prompt(9)))
    assert later.logprobs == pytest.approx(scored(other, prompt(9), later.token_ids), abs=1e-4)
    await engine.close()


async def test_a_failure_reaches_every_stream_and_later_calls(folder, monkeypatch):
    engine = engine_of(folder, slots=2)
    await engine.start(starting(folder, "float32"))
    asked = [request(f"f{i}", prompt(5), max_tokens=200) for i in range(4)]
    tasks = [await underway(engine, one) for one in asked[:2]]
    tasks += [asyncio.create_task(run(engine, one)) for one in asked[2:]]
    await asyncio.sleep(0)

    def broken(self):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Batch, "step", broken)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, EngineFailed)
        assert "out of memory" in str(outcome)
    with pytest.raises(EngineFailed, match="out of memory"):
        await run(engine, request("g", prompt(5)))
    with pytest.raises(EngineFailed):
        await engine.interrupt()
    with pytest.raises(EngineFailed):
        await engine.load_weights(starting(folder, "float32"))
    await engine.close()


async def test_only_what_changed_is_copied_to_who_serves_the_base(folder):
    engine = engine_of(folder)
    base = starting(folder, "float32")
    await engine.start(base)
    name = "model.norm.weight"
    new = {**base.tensors, name: base.tensors[name] + 1}
    garbage = {other: torch.full_like(tensor, 7) for other, tensor in new.items() if other != name}
    weights = PreparedWeights(
        version=1,
        fingerprint=fingerprint(new),
        model_folder=folder,
        files=(),
        tensors={**garbage, name: new[name]},
        base_fingerprint=base.fingerprint,
        changed=frozenset({name}),
    )
    await engine.load_weights(weights)
    assert engine.serving() == ServedWeights(version=1, fingerprint=weights.fingerprint)
    with pytest.raises(EngineFailed, match="holds fingerprint"):  # it serves another base now
        await engine.load_weights(dataclasses.replace(weights, version=2))
    await engine.close()


async def test_a_swap_that_breaks_half_way_is_fatal_and_said(folder, monkeypatch):
    engine = engine_of(folder)
    await engine.start(starting(folder, "float32"))
    measured = "consumers.rollout.engines.transformers.hf_model.fingerprint"
    monkeypatch.setattr(measured, lambda tensors: "something else")
    with pytest.raises(EngineFailed, match="something else"):
        await engine.load_weights(starting(folder, "float32", version=1))
    with pytest.raises(EngineFailed):
        engine.serving()
    await engine.close()


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "generation"}


async def test_closing_ends_streams_and_the_thread(folder):
    before = threads()
    engine = engine_of(folder)
    await engine.start(starting(folder, "float32"))
    task = await underway(engine, request("c", prompt(5), max_tokens=240))
    await engine.close()
    assert (await task).reason == "interrupted"
    for thread in threads() - before:  # it has said that it ends, and may still be about to
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
    with pytest.raises(EngineFailed, match="closed"):
        await run(engine, request("d", prompt(5)))
    await engine.close()


async def test_an_engine_that_was_not_started_says_so(folder):
    engine = engine_of(folder)
    with pytest.raises(EngineFailed, match="not started"):
        await run(engine, request("n", prompt(5)))
    await engine.close()


async def test_weights_in_another_dtype_than_the_engines_do_not_start_it(folder):
    engine = engine_of(folder)
    with pytest.raises(Exception, match="bfloat16"):
        await engine.start(starting(folder, "bfloat16"))
    await engine.close()


async def test_bfloat16_serves_what_was_published(folder):
    engine = engine_of(folder, dtype="bfloat16")
    weights = starting(folder, "bfloat16")
    await engine.start(weights)
    assert engine.serving().fingerprint == weights.fingerprint
    turn = await run(engine, request("b", prompt(5), temperature=1.0))
    assert len(turn.token_ids) == 16
    await engine.close()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sliding_window": 16, "use_sliding_window": True}, "sliding"),
        ({"max_position_embeddings": 100}, "100 positions"),
    ],
)
async def test_models_that_it_cannot_run_are_refused(tmp_path, changes, complaint):
    models.build(tmp_path, tied=True, seed=0)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | changes
    config.pop("layer_types", None)
    config["max_window_layers"] = 0
    path.write_text(json.dumps(config))
    engine = engine_of(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        await engine.start(starting(tmp_path, "float32"))
    await engine.close()


@pytest.mark.parametrize("options", [{"gpu": 1}, {"kv_cache": "forget"}])
def test_unknown_options_are_refused(folder, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        engine_of(folder, options=options)


def recipe(folder, **rollout) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "steps": 1},
            "model": {"path": str(folder), "dtype": "float32"},
            "data": {"train": [{"path": "x.jsonl"}]},
            "reward": {"functions": [{"use": "f"}]},
            "trainer": {"lr": 1e-3},
            "rollout": rollout,
        }
    )


def test_the_recipe_names_the_engine(folder):
    built = build_engine(recipe(folder, engine_options={"device": "cpu"}))
    assert isinstance(built, TransformersEngine)
