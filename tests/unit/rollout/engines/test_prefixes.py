"""Cached prefixes of the transformers engine: what is found, what is given up, what is exact."""

import asyncio

import pytest
import torch

from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.transformers import batch as batch_module
from consumers.rollout.engines.transformers.batch import Batch, RunningSequence
from consumers.rollout.engines.transformers.engine import TransformersEngine
from consumers.rollout.engines.transformers.prefixes import Prefixes
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


def sequence(token_ids, max_tokens=8) -> RunningSequence:
    asked = GenerateRequest(
        request_id="s", token_ids=tuple(token_ids), max_tokens=max_tokens, temperature=0.0
    )
    return RunningSequence(asked, max_model_len=models.CONTEXT)


def test_what_a_sequence_shares_with_each_row():
    prefixes = Prefixes(3, 8)
    prefixes.hold(0, [5, 6, 7, 8])
    prefixes.hold(1, [5, 6, 9])
    assert prefixes.shared([5, 6, 7, 1]).tolist() == [3, 2, 0]
    assert prefixes.shared([5, 6, 7]).tolist() == [2, 2, 0], "the last must be computed"
    assert prefixes.shared([4]).tolist() == [0, 0, 0]
    prefixes.exchange(0, 2)
    assert prefixes.shared([5, 6, 7, 1]).tolist() == [0, 2, 3]
    prefixes.hold(2, [5])
    assert prefixes.shared([5, 6, 7, 1]).tolist() == [0, 2, 1]
    prefixes.forget()
    assert prefixes.shared([5, 6, 7, 1]).tolist() == [0, 0, 0]


def test_the_least_recently_used_row_goes_first():
    prefixes = Prefixes(4, 8)
    for row in range(4):
        prefixes.hold(row, [row])
    prefixes.use(1)
    assert [prefixes.oldest(first) for first in (0, 1, 2)] == [0, 2, 2]
    prefixes.exchange(0, 3)
    assert prefixes.oldest(1) == 3


def test_siblings_that_join_together_compute_their_prompt_once(reference):
    running = Batch(reference, num_rows=6, max_model_len=models.CONTEXT)
    siblings = [sequence(prompt(40)) for _ in range(3)]
    other = sequence(prompt(30))
    with torch.inference_mode():
        running.join([*siblings, other])
        for _ in range(7):
            running.step()
    assert sorted(one.num_cached for one in siblings) == [0, 39, 39]
    assert other.num_cached == 0
    for one in (*siblings, other):
        assert one.new_ids == greedy(reference, one.request.token_ids, 8)


def test_a_turn_takes_over_the_row_of_the_turn_before(reference):
    running = Batch(reference, num_rows=3, max_model_len=models.CONTEXT)
    turns = [sequence(prompt(40, seed), 100) for seed in range(3)]
    with torch.inference_mode():
        running.join(turns)
        running.step()
        for one in turns:
            running.leave(one)
        later = [sequence([*one.token_ids, *prompt(3)], 100) for one in turns]
        for one in later:
            running.join([one])
            running.step()
    for one in later:
        assert one.num_cached == 41, "none of the three took the row of another"
        assert one.new_ids == greedy(reference, one.request.token_ids, len(one.new_ids))


def test_a_sibling_copies_from_the_running_and_leaves_them_alone(reference):
    running = Batch(reference, num_rows=3, max_model_len=models.CONTEXT)
    first, second = sequence(prompt(60), 100), sequence(prompt(60)[:50], 100)
    with torch.inference_mode():
        running.join([first])
        running.step()
        running.join([second])
        for _ in range(20):
            running.step()
    assert second.num_cached == 49
    for one in (first, second):
        assert one.new_ids == greedy(reference, one.request.token_ids, len(one.new_ids))


def test_random_comings_and_goings_are_exact(reference):
    """Few stems, so that rows are shared, taken over and given up all the time."""
    generator = torch.Generator().manual_seed(7)

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    running = Batch(reference, num_rows=4, max_model_len=models.CONTEXT)
    gone: list[RunningSequence] = []
    with torch.inference_mode():
        for _ in range(60):
            joining = []
            for _ in range(draw(running.free_rows + 1)):
                stem = prompt(120, draw(3))
                if gone and draw(2):
                    stem = tuple(gone[draw(len(gone))].token_ids)
                joining.append(sequence([*stem[: 1 + draw(len(stem))], *prompt(1 + draw(3))], 99))
            running.join(joining)
            for _ in range(draw(3)):
                if running.sequences:
                    running.step()
            while running.sequences and draw(2):
                gone.append(running.sequences[draw(len(running.sequences))])
                running.leave(gone[-1])
    assert sum(one.num_cached for one in gone) > 500
    for one in (*gone, *running.sequences):
        assert one.new_ids == greedy(reference, one.request.token_ids, len(one.new_ids))


def test_padding_beside_a_full_context_harms_nobody(reference, monkeypatch):
    """The padded tail of the longer prefix would reach beyond the last column."""
    monkeypatch.setattr(batch_module, "_PADDING_TOKENS", 10_000)
    running = Batch(reference, num_rows=3, max_model_len=models.CONTEXT)
    full, other = prompt(models.CONTEXT - 2), prompt(100, 1)
    with torch.inference_mode():
        running.join([sequence(full[:-1], 2)])
        running.leave(running.sequences[0])
        pair = [sequence(full, 2), sequence(other, 2)]
        running.join(pair)
        running.step()
    assert [one.num_cached for one in pair] == [models.CONTEXT - 3, 0]
    for one in pair:
        assert one.new_ids == greedy(reference, one.request.token_ids, 2)


@pytest.mark.parametrize("kv_cache", ["recompute", "keep"])
async def test_keys_of_old_weights_are_not_found_again(folder, tmp_path, kv_cache):
    """Neither those of who had left, nor of who ran over the swap, by who was queued or is new."""
    newer = models.build(tmp_path / "newer", tied=False, seed=1)
    engine = TransformersEngine(
        model_folder=folder,
        dtype="float32",
        slots=2,
        max_model_len=models.CONTEXT,
        options={"kv_cache": kv_cache},
    )
    await engine.start(starting(folder, "float32"))
    await run(engine, request("left", prompt(50), max_tokens=4))
    over = [
        await underway(engine, request(f"o{i}", prompt(50), max_tokens=200 - 90 * i))
        for i in range(2)
    ]
    queued = asyncio.create_task(run(engine, request("queued", prompt(50), max_tokens=8)))
    await asyncio.sleep(0)
    await engine.load_weights(starting(tmp_path / "newer", "float32", version=1))
    turns = [await queued, await run(engine, request("new", prompt(50), max_tokens=8))]
    long = (await over[0]).token_ids
    start = [*prompt(50), *long[:-1]]
    turns.append(await run(engine, request("after", start, max_tokens=4)))
    for turn, begin in zip(turns, (prompt(50), prompt(50), start), strict=True):
        assert set(turn.versions) == {1}
        assert turn.logprobs == pytest.approx(scored(newer, begin, turn.token_ids), abs=1e-4)
    await engine.close()
