"""Requests and interrupts against a server with SGLang's habits."""

import asyncio
import json
import logging
from unittest.mock import AsyncMock

import pytest

from consumers.rollout.engines.base import EngineFailed, TokenChunk
from consumers.rollout.engines.sglang import streams
from consumers.rollout.engines.sglang.client import Answer
from tests.contract.harness import greedy, prompt, request, run, scored
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.running import engine_for, running
from tests.factories import models
from tests.factories.loading import starting

DELTAS = "--incremental-streaming-output"


async def begun(server, count: int) -> None:
    """So many requests have their first tokens."""
    await server.until(lambda app: sum(bool(job.tokens) for job in app.scheduler.running) >= count)


@pytest.mark.parametrize(
    "arguments",
    [(), (DELTAS,), (DELTAS, "--stream-interval", "16"), ("--stream-interval", "7")],
    ids=" ".join,
)
async def test_every_form_of_stream_is_read(tiny_folder, tiny_model, arguments):
    async with (
        running(tiny_folder, Quirks(), *arguments) as server,
        engine_for(server, tiny_folder) as engine,
    ):
        turn = await run(engine, request("whole", prompt(9), max_tokens=40))
        assert turn.token_ids == greedy(tiny_model, prompt(9), 40)
        assert turn.logprobs == pytest.approx(
            scored(tiny_model, prompt(9), turn.token_ids), abs=1e-4
        )
        task = asyncio.create_task(run(engine, request("cut", prompt(9), max_tokens=200)))
        await begun(server, 1)
        await engine.interrupt()
        turn = await asyncio.wait_for(task, 20)
        assert turn.reason == "interrupted"
        assert turn.token_ids == greedy(tiny_model, prompt(9), len(turn.token_ids))


async def test_ids_are_never_prefixes_of_each_other(tiny_folder):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        tasks = [
            asyncio.create_task(run(engine, request(name, prompt(5, n), max_tokens=100)))
            for n, name in enumerate(("p-1", "p-10", "p-11"))
        ]
        await begun(server, 3)
        await engine.interrupt({"p-1"})
        assert [(await task).reason for task in tasks] == ["interrupted", "length", "length"]
        ids = [body["rid"] for path, body in server.app.seen if "stream" in body]
        assert {len(one) for one in ids} == {32}
        assert len(set(ids)) == len(ids)


async def test_unknown_ids_never_reach_the_server(tiny_folder):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        for token in (-1, models.VOCAB_SIZE):
            with pytest.raises(ValueError, match="the vocabulary ends at"):
                await run(engine, request("bad", (5, token)))
        assert (await run(engine, request("good", (5, 6), max_tokens=2))).reason == "length"


async def test_an_abort_that_does_nothing_ends_the_stream_after_its_deadline(
    tiny_folder, tiny_model, monkeypatch, caplog
):
    monkeypatch.setattr(streams, "_ABORT_S", 0.3)
    quirks = Quirks(silent_before_abort=True)
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        waiting = [
            asyncio.create_task(run(engine, request(f"a{n}", prompt(5, n), max_tokens=240)))
            for n in range(12)
        ]
        await begun(server, 8)
        server.app.scheduler.paused = True  # as good as hanging
        await engine.interrupt()
        for n, task in enumerate(waiting):
            turn = await asyncio.wait_for(task, 20)
            assert turn.reason == "interrupted"
            assert turn.token_ids == greedy(tiny_model, prompt(5, n), len(turn.token_ids))
        assert "did not end a request" in caplog.text


@pytest.mark.parametrize("quirk", ["broken_streams", "dropped"])
async def test_a_request_that_the_server_gives_up_goes_on_from_there(
    tiny_folder, tiny_model, caplog, quirk
):
    quirks = Quirks()
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        setattr(quirks, quirk, 1)
        head = await run(engine, request("head", prompt(9), max_tokens=30))
        assert head.reason == "interrupted"
        assert 0 < len(head.token_ids) < 30
        assert "gave a request up" in caplog.text
        rest = request("tail", [*prompt(9), *head.token_ids], max_tokens=30 - len(head.token_ids))
        tail = await run(engine, rest)
        assert head.token_ids + tail.token_ids == greedy(tiny_model, prompt(9), 30)


async def test_a_server_that_dies_fails_the_engine(tiny_folder):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        task = asyncio.create_task(run(engine, request("last", prompt(9), max_tokens=240)))
        await begun(server, 1)
        server.app.scheduler.die()
        with pytest.raises(EngineFailed, match="is lost"):
            await asyncio.wait_for(task, 30)
        with pytest.raises(EngineFailed):
            await run(engine, request("never", prompt(9)))


@pytest.mark.parametrize("says", [(500, "oops"), (502, "<html>"), (200, "<html>")])
async def test_a_server_of_which_only_a_proxy_is_left_fails_the_engine(
    tiny_folder, other_folder, says
):
    quirks = Quirks()
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        quirks.says = says
        with pytest.raises(EngineFailed, match=f"is lost.*{says[0]}: {says[1]}"):
            await asyncio.wait_for(run(engine, request("r", prompt(5))), 20)
        with pytest.raises(EngineFailed):
            await engine.load_weights(starting(other_folder, "float32", version=1))
        with pytest.raises(EngineFailed):
            engine.serving()


@pytest.mark.parametrize(
    "ranks", [[{}], [{"checksums": None}], [None], "none", [{"checksums": {"lm_head": 1}}]]
)
async def test_checksums_that_are_not_understood_fail_the_engine(
    tiny_folder, other_folder, monkeypatch, ranks
):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        told = Answer(status=200, text=json.dumps({"ranks": ranks}))
        monkeypatch.setattr(engine._weights, "_told", AsyncMock(return_value=told))
        with pytest.raises(EngineFailed, match=r"not understood|tells no|tells of other"):
            await engine.load_weights(starting(other_folder, "float32", version=1))
        with pytest.raises(EngineFailed):
            engine.serving()
        monkeypatch.undo()


async def test_the_end_token_of_the_model_ends_nothing_unasked(tiny_folder):
    """SGLang heeds no stop token without it, so the turn is put together from several requests."""
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        turns = await asyncio.gather(
            *(
                run(
                    engine,
                    request(
                        f"e{n}",
                        prompt(4, n),
                        max_tokens=100,
                        temperature=2.0,
                        stop_token_ids=frozenset({3}),
                    ),
                )
                for n in range(12)
            )
        )
        assert any(models.EOS in turn.token_ids[:-1] for turn in turns)
        for turn in turns:
            stopped = turn.token_ids[-1] == 3
            assert 3 not in turn.token_ids[:-1]
            assert turn.reason == ("stop" if stopped else "length")
            assert len(turn.token_ids) == 100 or stopped


async def test_idle_connections_are_not_trusted(tiny_folder):
    quirks = Quirks(keep_alive_s=0.05)
    async with running(tiny_folder, quirks) as server, engine_for(server, tiny_folder) as engine:
        for _ in range(3):
            assert len((await run(engine, request("k", prompt(5), max_tokens=2))).token_ids) == 2
            await engine.interrupt()
            await asyncio.sleep(0.15)


@pytest.mark.parametrize("min_p", [0.05, 0.4])
async def test_min_p_without_seeds(tiny_folder, tiny_model, min_p):
    async with running(tiny_folder, Quirks()) as server, engine_for(server, tiny_folder) as engine:
        turn = await run(
            engine, request("m", prompt(6), max_tokens=30, temperature=0.8, min_p=min_p)
        )
        for at, (token, logprob) in enumerate(zip(turn.token_ids, turn.logprobs, strict=True)):
            before = [*prompt(6), *turn.token_ids[:at]]
            logits = scored_logits(tiny_model, before) / 0.8
            kept = logits.softmax(-1) >= logits.softmax(-1).max() * min_p
            expected = logits.masked_fill(~kept, float("-inf")).log_softmax(-1)[token]
            assert logprob == pytest.approx(float(expected), abs=1e-4)


def scored_logits(model, tokens):
    from tests.contract.harness import logits_of

    return logits_of(model, tokens)[-1]


async def test_top_p_looks_at_as_many_tokens_as_the_server_tells_of(tiny_folder, caplog):
    """Of more than the server's limit it tells no log-probability."""
    limit = ("--sampling-mask-max-tokens", "100")
    with caplog.at_level(logging.INFO):
        async with (
            running(tiny_folder, Quirks(), *limit) as server,
            engine_for(server, tiny_folder) as engine,
        ):
            turn = await run(
                engine, request("t", prompt(6), max_tokens=5, temperature=1.0, top_p=0.99)
            )
            assert len(turn.token_ids) == 5
            sent = server.app.seen[-1][1]["sampling_params"]
    assert sent["top_k"] == 36
    assert "top_p and min_p are taken of the 36 most likely tokens" in caplog.text


async def test_settings_that_would_mean_something_else_are_refused(tiny_folder):
    seeded = "--enable-deterministic-inference"
    async with (
        running(tiny_folder, Quirks(), seeded) as server,
        engine_for(server, tiny_folder) as engine,
    ):
        for settings, complaint in (
            ({"top_k": 5, "top_p": 0.9}, "top_k, top_p: SGLang takes"),
            ({"min_p": 0.1}, "min_p 0.1, which would end"),
            ({"min_tokens": 2, "options": {"presence_penalty": 1.0}}, "would begin anew"),
        ):
            with pytest.raises(ValueError, match=complaint):
                await run(engine, request("r", prompt(5), temperature=1.0, **settings))
        await run(engine, request("p", prompt(5), options={"presence_penalty": 1.0}))
        assert server.app.seen[-1][1]["sampling_params"]["presence_penalty"] == 1.0


async def test_closing_ends_what_runs(tiny_folder):
    async with running(tiny_folder, Quirks()) as server:
        async with engine_for(server, tiny_folder) as engine:
            stream = engine.generate(request("open", prompt(5), max_tokens=240))
            items = [await anext(stream)]
            task = asyncio.create_task(run(engine, request("other", prompt(5), max_tokens=240)))
            await begun(server, 2)
        items += [item async for item in stream]
        assert all(isinstance(item, TokenChunk) for item in items[:-1])
        assert (items[-1].reason, (await task).reason) == ("interrupted", "interrupted")
        await server.until(lambda app: not app.scheduler.jobs)
