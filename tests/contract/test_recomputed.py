"""What the trainer recomputes is what the engine stored, for each sampling option."""

import pytest
import torch

from consumers.trainer.batch.packing import pack
from consumers.trainer.learn.logprobs import sampled_logprobs
from consumers.trainer.learn.sampled_from import SampledFrom
from schemas.config import RolloutSection
from schemas.work import Turn, TurnKind
from tests.contract.harness import prompt, request, run
from tests.factories import models
from tests.unit.trainer.batch.trajectories import held, trajectory

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOPS = frozenset({models.EOS, *range(20, 60)})


async def two_turns(served, section: RolloutSection, index: int):
    """A prompt and two sampled turns with a tool's answer in between, as a trajectory."""
    tokens, mask, logprobs, turns = list(prompt(5 + index)), [], [], []
    mask, logprobs = [0] * len(tokens), [0.0] * len(tokens)
    turns.append(Turn(kind=TurnKind.PROMPT, start=0, stop=len(tokens)))
    for number in range(2):
        asked = request(
            f"{index}.{number}",
            tokens,
            max_tokens=section.max_turn_tokens,
            temperature=section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            min_p=section.min_p,
            min_tokens=section.min_tokens,
            stop_token_ids=STOPS,
            seed=7 * index + number,
        )
        turn = await run(served.engine, asked)
        start = len(tokens)
        tokens += [*turn.token_ids, 9, 10, 11]
        mask += [1] * len(turn.token_ids) + [0] * 3
        logprobs += [*turn.logprobs, 0.0, 0.0, 0.0]
        turns.append(Turn(kind=TurnKind.ASSISTANT, start=start, stop=len(tokens) - 3))
        turns.append(Turn(kind=TurnKind.TOOL, start=len(tokens) - 3, stop=len(tokens)))
    made = trajectory(
        index=index, token_ids=tokens, mask=mask, logprobs=logprobs, turns=tuple(turns)
    )
    stops = tuple(sorted(STOPS)) if section.min_tokens else ()
    return held(made, min_tokens=section.min_tokens, stop_token_ids=stops)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"top_k": 6},
        {"top_p": 0.85},
        {"min_p": 0.04},
        {"min_tokens": 9},
        {"temperature": 1.3, "min_p": 0.01, "top_k": 30, "top_p": 0.8, "min_tokens": 5},
    ],
    ids=lambda options: "-".join(options),
)
async def test_recomputed_with_the_same_weights_is_stored(served, options):
    if served.refuses(**options):
        with pytest.raises(ValueError, match="request o has min_p"):
            await run(served.engine, request("o", prompt(5), **options))
        return
    section = RolloutSection(max_turn_tokens=24, **options)
    sampled = [await two_turns(served, section, index) for index in range(4)]
    (batch,) = pack(sampled, [0.0] * 4, 10_000)
    withheld = None if batch.withheld is None else torch.from_numpy(batch.withheld)
    mask = torch.from_numpy(batch.mask)
    stored = torch.from_numpy(batch.rollout_logprobs)[mask]

    def recomputed(sampled_from: SampledFrom, held: torch.Tensor | None) -> torch.Tensor:
        with torch.no_grad():
            return sampled_logprobs(
                served.references[0], torch.from_numpy(batch.token_ids), mask, sampled_from, held
            )[0]

    same = recomputed(SampledFrom.of(section), withheld)
    torch.testing.assert_close(same, stored, atol=1e-4, rtol=0)
    plain = recomputed(SampledFrom(), None)
    assert (plain - stored).abs().max() > 1e-2, "the option would not be noticed"
