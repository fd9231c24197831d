"""A conversation goes on in another kind of engine, and comes back: greedily, nobody can tell."""

import random
from itertools import pairwise

import pytest

from tests.contract.sglang.server import WITH_SERVER
from tests.contract.transparency.checks import assert_same, assert_traced
from tests.contract.transparency.conftest import AT_ONCE, uncut
from tests.factories.cuts.cutting import play_all
from tests.factories.cuts.plan import random_cuts, summary

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "engines",
    [
        ("transformers", "sglang"),
        pytest.param(("transformers", "sglang_server"), marks=[pytest.mark.sglang, WITH_SERVER]),
        pytest.param(("transformers", "vllm"), marks=pytest.mark.vllm),
        pytest.param(("vllm", "sglang"), marks=pytest.mark.vllm),
    ],
    ids="-".join,
)
async def test_snapshots_move_between_kinds_of_engines(park, tell, engines) -> None:
    """The uncut conversations are the first engine's; whoever resumes is drawn at each cut."""
    workers = await park.workers([f"{name}-0" for name in engines])
    tasks, whole, redrawn = await uncut(park, workers[:1], 80, first=20_000)
    cuts = [random_cuts(one.rollout, random.Random(f"cuts {n}")) for n, one in enumerate(whole)]
    cut = await play_all(tasks, workers, cuts, at_once=AT_ONCE)
    tell(summary(" and ".join(engines), cut, redrawn=redrawn))
    for one, other in zip(cut, whole, strict=True):
        assert_same(one, other)
        assert_traced(one)
    ways = {way for one in cut for way in pairwise(one.workers)}
    names = [worker.name for worker in workers]
    assert ways == {(left, taken) for left in names for taken in names}
