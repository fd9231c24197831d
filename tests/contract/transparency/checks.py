"""What a cut must not change, and what it has to leave behind."""

from typing import Any

import pytest

from schemas.work import Rollout, Snapshot
from tests.factories.agent_runs import essence
from tests.factories.cuts.cutting import Played

LOGPROB_TOLERANCE = 1e-4
"""Nats; of every engine in float32, against itself and against the others."""


def assert_same(cut: Played, whole: Played) -> None:
    """Token for token, with masks, turns, messages, results and end; logprobs within tolerance."""
    expected, found = _comparable(whole.rollout), _comparable(cut.rollout)
    name = f"{whole.rollout.rollout_id}, cut at {_places(cut)} on {cut.workers}"
    assert found == expected, name
    logprobs = [one.rollout.progress.tokens.logprobs for one in (cut, whole)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=LOGPROB_TOLERANCE), name


def assert_traced(cut: Played) -> None:
    """Each cut is on record, with its worker; a call that must not run twice ran once."""
    taken = [work for work in cut.handed if isinstance(work, Snapshot)]
    progress = cut.rollout.progress
    assert [one.at_token for one in progress.interruptions] == _places(cut)
    assert [one.worker for one in progress.interruptions] == [one.worker for one in taken]
    moved = [work.worker != taker for work, taker in _takers(cut)]
    assert progress.num_resumed_elsewhere == sum(moved)
    assert cut.rollout.worker == cut.workers[-1]
    names = {one.call.id: one.call.function.name for one in progress.tool_results}
    for call_id, count in cut.runs.items():
        assert count == 1 or names[call_id] == "ask", f"{call_id} ran {count} times"


def _comparable(rollout: Rollout) -> dict[str, Any]:
    return {key: value for key, value in essence(rollout).items() if key != "logprobs"}


def _places(cut: Played) -> list[int]:
    return [len(one.progress.tokens) for one in cut.handed if isinstance(one, Snapshot)]


def _takers(cut: Played) -> list[tuple[Snapshot, str]]:
    pairs = zip(cut.handed, cut.workers[1:], strict=True)
    return [(work, taker) for work, taker in pairs if isinstance(work, Snapshot)]
