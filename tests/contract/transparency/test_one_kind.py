"""Conversations with tools, cut anywhere, handed from worker to worker: nobody can tell."""

import random

import pytest

from schemas.work import Snapshot
from tests.contract.sglang.server import WITH_SERVER
from tests.contract.transparency.checks import assert_same, assert_traced
from tests.contract.transparency.conftest import AT_ONCE, uncut
from tests.factories.cuts.cutting import play_all
from tests.factories.cuts.plan import place_of, random_cuts, summary

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

PLACES = {
    "before the first token",
    "before a later turn",
    "inside a turn",
    "inside a call",
    "while tools ran",
    "while a partner was asked",
}


@pytest.mark.parametrize(
    ("engine", "sampled", "number", "least"),
    [
        ("transformers", False, 300, 250),
        ("transformers", True, 300, 250),
        ("sglang", False, 80, 50),
        ("sglang", True, 80, 50),
        pytest.param("vllm", False, 100, 50, marks=pytest.mark.vllm),
        pytest.param("sglang_server", False, 60, 40, marks=[pytest.mark.sglang, WITH_SERVER]),
        pytest.param("sglang_server", True, 60, 40, marks=[pytest.mark.sglang, WITH_SERVER]),
    ],
)
async def test_resumed_equals_uncut(
    park, tell, engine: str, sampled: bool, number: int, least: int
) -> None:
    """Sampled, this holds where the noise is a function of seed and position (SGLang: in its
    deterministic mode).

    Args:
        number: Of conversations.
        least: Of these, really cut.
    """
    workers = await park.workers([f"{engine}-0", f"{engine}-1"])
    tasks, whole, redrawn = await uncut(park, workers, number, first=0, sampled=sampled)
    cuts = [random_cuts(one.rollout, random.Random(f"cuts {n}")) for n, one in enumerate(whole)]
    cut = await play_all(tasks, workers, cuts, at_once=AT_ONCE)
    kind = "sampled" if sampled else "greedy"
    tell(summary(f"{engine}, {kind}", cut, redrawn=redrawn))
    for one, other in zip(cut, whole, strict=True):
        assert_same(one, other)
        assert_traced(one)
    assert {place_of(work) for one in cut for work in one.handed} == PLACES
    assert {len(one.handed) for one in cut} >= {1, 2, 3, 4, 5}
    handed = [work for one in cut for work in one.handed if isinstance(work, Snapshot)]
    assert any(work.pending_calls for work in handed)
    assert sum(bool(one.handed) for one in cut) >= least
