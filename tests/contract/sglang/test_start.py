"""Which servers the engine works with, and how it speaks to them."""

import asyncio
import logging

import pytest

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang.facts import check_given
from consumers.rollout.engines.sglang.options import ADMIN_KEY, API_KEY, SEEDS, Options
from infra.roles.errors import ConfigError
from tests.contract.harness import prompt, request, run
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.running import engine_for, running


@pytest.mark.parametrize(
    ("info", "complaint"),
    [
        ({"version": "0.5.9"}, "0.5.23 to"),
        ({"version": "0.6.0"}, "0.5.23 to"),
        ({"version": None}, "0.5.23 to"),
        ({"dtype": "bfloat16"}, "needs 'float32'"),
        ({"dp_size": 2}, "dp_size = 2"),
        ({"tokenizer_worker_num": 4}, "tokenizer_worker_num = 4"),
        ({"skip_tokenizer_init": False}, "skip_tokenizer_init = False"),
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm = 'EAGLE'"),
        ({"quantization": "fp8"}, "quantization = 'fp8'"),
        ({"preferred_sampling_params": {"top_p": 0.5}}, "preferred_sampling_params"),
        ({"max_req_input_len": 200}, r"sequences of 201 tokens, the recipe needs 256"),
    ],
)
async def test_servers_with_which_tokens_would_be_wrong_are_refused(tiny_folder, info, complaint):
    async with running(tiny_folder, Quirks(info=info)) as server:
        with pytest.raises(ConfigError, match=complaint):
            async with engine_for(server, tiny_folder):
                pass


async def test_check_asks_a_server_that_is_given(tiny_folder):
    room = {"dtype": "float32", "max_model_len": 256, "min_p": 0.1}
    async with running(tiny_folder, Quirks()) as server:
        await asyncio.to_thread(check_given, Options(url=server.url), **room)
    async with running(tiny_folder, Quirks(), SEEDS) as server:
        with pytest.raises(ConfigError, match="min_p would end an SGLang server"):
            await asyncio.to_thread(check_given, Options(url=server.url), **room)
    wrong = Quirks(info={"dp_size": 2, "quantization": "fp8"})
    async with running(tiny_folder, wrong) as server:
        with pytest.raises(ConfigError, match=r"dp_size = 2 .*, quantization = 'fp8'"):
            await asyncio.to_thread(check_given, Options(url=server.url), **room)


async def test_logprobs_before_temperature_are_found_out(tiny_folder):
    async with running(tiny_folder, Quirks(original_logprobs=True)) as server:
        with pytest.raises(EngineFailed, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
            async with engine_for(server, tiny_folder):
                pass


@pytest.mark.parametrize("seeded", [False, True])
async def test_seeds_without_effect_are_told(tiny_folder, caplog, seeded):
    arguments = ["--enable-deterministic-inference"] if seeded else []
    async with (
        running(tiny_folder, Quirks(), *arguments) as server,
        engine_for(server, tiny_folder) as engine,
    ):
        assert engine.seeded is seeded
        assert ("seeds have no effect" in caplog.text) is not seeded
        asked = {"max_tokens": 20, "temperature": 1.0, "seed": (1 << 64) - 5}
        first = await run(engine, request("a", prompt(5), **asked))
        again = await run(engine, request("b", prompt(5), **asked))
        assert (first.token_ids == again.token_ids) is seeded
        sent = server.app.seen[-1][1]["sampling_params"]
        assert sent.get("sampling_seed") == (-5 if seeded else None)


async def test_what_is_proved_is_told(tiny_folder, caplog):
    with caplog.at_level(logging.INFO):
        async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder):
            pass
        assert "the bytes of all 15 tensors are proved" in caplog.text
        caplog.clear()
        quirks = Quirks(info={"device": "cuda"})
        async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder):
            pass
        assert "the bytes of 0 of 15 tensors are proved" in caplog.text


async def test_keys_come_from_the_environment_and_are_told_to_nobody(
    tiny_folder, monkeypatch, caplog
):
    keys = ("--api-key", "key-for-tokens", "--admin-api-key", "key-for-control")
    async with running(tiny_folder, Quirks(), *keys) as server:
        with pytest.raises(EngineFailed, match=ADMIN_KEY) as refused:
            async with engine_for(server, tiny_folder):
                pass
        monkeypatch.setenv(API_KEY, "key-for-tokens")
        monkeypatch.setenv(ADMIN_KEY, "key-for-control")
        with caplog.at_level(logging.DEBUG):
            async with engine_for(server, tiny_folder) as engine:
                assert len((await run(engine, request("k", prompt(5)))).token_ids) == 16
                await engine.interrupt()
        assert "key-for" not in caplog.text + str(refused.value) + repr(vars(engine))


async def test_a_worker_that_was_killed_may_have_left_the_server_paused(tiny_folder):
    async with running(tiny_folder, Quirks()) as server:
        sampling = {"max_new_tokens": 250, "ignore_eos": True}
        server.later("/generate", {"rid": "left", "input_ids": [5], "sampling_params": sampling})
        await server.until(lambda app: app.scheduler.jobs)
        await server.post("/pause_generation", {"mode": "retract"})
        async with engine_for(server, tiny_folder, version=3) as engine:
            turn = await run(engine, request("n", prompt(5), max_tokens=3))
            assert turn.versions == [3, 3, 3]
            assert not server.app.scheduler.jobs


async def test_nobody_there(tiny_folder):
    async with running(tiny_folder, Quirks()) as server:
        pass
    with pytest.raises(EngineFailed, match="ConnectError"):
        async with engine_for(server, tiny_folder):
            pass
