"""Changing the weights of a server with SGLang's habits."""

import asyncio
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from consumers.rollout.engines.base import EngineFailed, WeightsRefused
from infra.weights.fingerprint import fingerprint
from tests.contract.harness import greedy, prompt, request, run, scored
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.running import engine_for, running
from tests.contract.sglang.test_streams import DELTAS, begun
from tests.factories.loading import starting

UPDATE = "/update_weights_from_disk"


@pytest.mark.parametrize("interval", ["1", "16"])
@pytest.mark.parametrize("form", [(), (DELTAS,)], ids=["cumulative", "deltas"])
async def test_versions_are_exact_to_the_token(
    tiny_folder, other_folder, tiny_model, other_model, interval, form
):
    """Also of tokens that were not sent when the weights changed."""
    async with (
        running(tiny_folder, Quirks(), *form, "--stream-interval", interval) as server,
        engine_for(server, tiny_folder) as engine,
    ):
        tasks = [
            asyncio.create_task(run(engine, request(f"r{n}", prompt(9, n), max_tokens=150)))
            for n in range(10)
        ]
        await begun(server, 8)
        await engine.load_weights(starting(other_folder, "float32", version=1))
        await asyncio.sleep(0.1)
        await engine.load_weights(starting(tiny_folder, "float32", version=2))
        crossed = set()
        for n, task in enumerate(tasks):
            turn = await asyncio.wait_for(task, 60)
            crossed |= {tuple(sorted(set(turn.versions)))}
            assert turn.versions == sorted(turn.versions)
            for version, model in enumerate((tiny_model, other_model, tiny_model)):
                expected = scored(model, prompt(9, n), turn.token_ids)
                for at, served in enumerate(turn.versions):
                    if served == version:
                        assert turn.logprobs[at] == pytest.approx(expected[at], abs=1e-4)
        assert (0, 1, 2) in crossed


async def test_nothing_reaches_the_server_while_it_is_paused(tiny_folder, other_folder, tiny_model):
    quirks = Quirks(update_s=0.4)
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        crossing = asyncio.create_task(run(engine, request("c", prompt(9), max_tokens=240)))
        await begun(server, 1)
        server.app.seen.clear()
        loading = asyncio.create_task(
            engine.load_weights(starting(other_folder, "float32", version=1))
        )
        await server.until(lambda app: app.scheduler.paused)
        late = asyncio.create_task(run(engine, request("late", prompt(5), max_tokens=4)))
        given_up = asyncio.create_task(run(engine, request("given up", prompt(5))))
        await asyncio.sleep(0.05)
        await engine.interrupt({"c", "given up"})
        await loading
        cut = await asyncio.wait_for(crossing, 20)
        assert cut.reason == "interrupted", "the interrupt was not lost"
        assert set(cut.versions) <= {0, 1}
        assert ((await given_up).token_ids, (await given_up).reason) == ([], "interrupted")
        assert set((await late).versions) == {1}
        paths = server.paths
        paused = paths[paths.index("/pause_generation") : paths.index("/continue_generation")]
        assert set(paused) == {"/pause_generation", UPDATE, "/weights_checker"}


async def test_updated_but_not_flushed_is_mended(tiny_folder, other_folder, other_model):
    quirks = Quirks()
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        quirks.not_flushed = 1
        await engine.load_weights(starting(other_folder, "float32", version=1))
        assert server.paths.count("/flush_cache") == 1
        turn = await run(engine, request("n", prompt(9), max_tokens=20))
        assert turn.token_ids == greedy(other_model, prompt(9), 20)
        assert set(turn.versions) == {1}

        quirks.not_flushed = 2
        with pytest.raises(EngineFailed, match="but not its cache"):
            await engine.load_weights(starting(tiny_folder, "float32", version=2))
        with pytest.raises(EngineFailed, match="but not its cache"):
            engine.serving()


async def test_a_server_that_does_not_load_serves_on(tiny_folder, other_folder, tiny_model):
    quirks = Quirks()
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        task = asyncio.create_task(run(engine, request("on", prompt(9), max_tokens=100)))
        await begun(server, 1)
        quirks.refused = 1
        with pytest.raises(WeightsRefused, match="did not load it: Failed to get weights"):
            await engine.load_weights(starting(other_folder, "float32", version=1))
        assert (await task).token_ids == greedy(tiny_model, prompt(9), 100)
        assert engine.serving().version == 0
        await engine.load_weights(starting(other_folder, "float32", version=1))
        assert engine.serving().version == 1


async def test_weights_that_were_not_all_loaded_are_found_out(tiny_folder, other_folder):
    """The server says that all is well."""
    quirks = Quirks()
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        task = asyncio.create_task(run(engine, request("ends", prompt(9), max_tokens=240)))
        await begun(server, 1)
        quirks.garbled = 1
        with pytest.raises(EngineFailed, match=r"1 of 15 tensors have other values.*embed_tokens"):
            await engine.load_weights(starting(other_folder, "float32", version=1))
        with pytest.raises(EngineFailed, match="other values"):
            await asyncio.wait_for(task, 20)
        assert server.app.scheduler.paused, "nothing is generated under weights that nobody knows"


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def incomplete(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)


def reshaped(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.weight": torch.ones(64)}, path)


def without_config(folder):
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (truncated, "cannot be read"),
        (incomplete, "lacks or spoils model.norm.weight"),
        (reshaped, "lacks or spoils model.norm.weight"),
        (without_config, "has no config.json"),
    ],
)
async def test_a_folder_that_would_harm_the_server_is_never_named_to_it(
    tiny_folder, other_folder, tmp_path, harm, complaint
):
    good = starting(other_folder, "float32", version=1)
    copied = tmp_path / "version"
    shutil.copytree(other_folder, copied)
    harm(copied)
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        server.app.seen.clear()
        with pytest.raises(WeightsRefused, match=complaint):
            await engine.load_weights(replace(good, model_folder=copied))
        assert server.paths == []
        assert engine.serving().version == 0


async def test_other_values_than_in_the_folder_are_found_out(tiny_folder, other_folder):
    """What was verified in memory must be what the server reads from disk."""
    given = starting(other_folder, "float32", version=1)
    tensors = dict(given.tensors)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    other = replace(given, tensors=tensors, fingerprint=fingerprint(tensors))
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        with pytest.raises(EngineFailed, match=r"other values, first model\.norm\.weight"):
            await engine.load_weights(other)


async def test_somebody_else_at_the_server_is_found_out(tiny_folder):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        body = {"new_version": "99", "abort_all_requests": False}
        await server.post("/update_weight_version", body)
        with pytest.raises(EngineFailed, match="only this worker may change"):
            await run(engine, request("x", prompt(5)))
