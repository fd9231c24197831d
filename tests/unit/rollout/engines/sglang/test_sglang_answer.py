"""Reading events: one rule for all forms, and versions that are exact or held back."""

from typing import Any

import pytest

from consumers.rollout.engines.base import EngineFailed, TokenChunk
from consumers.rollout.engines.sglang.answer import Dropped, Reading

STOP = {"type": "length", "length": 9}
ABORT = {"type": "abort", "message": "Aborted", "status_code": None}


def event(
    ids: list[int],
    count: int,
    *,
    label: str = "1",
    logprobs: list[int] | None = None,
    finish: dict[str, Any] | None = None,
    spans: list[tuple[str, int, int]] = (),
    **more: Any,
) -> dict[str, Any]:
    """Token `n` has log-probability `-n`."""
    meta = {
        "finish_reason": finish,
        "weight_version": label,
        "completion_tokens": count,
        "output_token_logprobs": [[-one, one, None] for one in logprobs or ids],
        **more,
    }
    if finish:
        names = ("version", "start", "end")
        meta["weight_versions"] = [dict(zip(names, span, strict=True)) for span in spans]
    return {"output_ids": ids, "meta_info": meta}


def reading(**changes: Any) -> Reading:
    usual = {"version": 1, "known": {1, 2, 3}, "vocab_size": 99, "truncated": False}
    return Reading(**(usual | changes))


def taken(read: Reading, *events: dict[str, Any]) -> tuple[list[tuple[int, int]], str | None]:
    """Pairs of token and version."""
    pairs, reason = [], None
    for one in events:
        chunks, reason = read.take(one)
        for chunk in chunks:
            assert isinstance(chunk, TokenChunk)
            assert chunk.logprobs == tuple(-token for token in chunk.token_ids)
            pairs += [(token, chunk.policy_version) for token in chunk.token_ids]
    return pairs, reason


FORMS = {
    "cumulative": ([5], [5, 6, 7], [5, 6, 7, 8]),
    "delta": ([5], [6, 7], [8]),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_of_streams(form: str) -> None:
    first, second, last = FORMS[form]
    found = taken(
        reading(),
        event(first, 1),
        event(second, 3),
        event(last, 4, finish=STOP, spans=[("1", 0, 4)]),
    )
    assert found == ([(5, 1), (6, 1), (7, 1), (8, 1)], "length")


def test_an_abort_in_the_queue_repeats_the_last_token_beside_all_logprobs() -> None:
    last = event([9], 9, logprobs=[1, *range(2, 10)], finish=ABORT, spans=[("1", 0, 9)])
    pairs, reason = taken(
        reading(), event([1], 1), event([2, 3, 4, 5], 5), event([6, 7, 8, 9], 9), last
    )
    assert [token for token, _ in pairs] == list(range(1, 10))
    assert reason == "interrupted"


def test_an_event_that_comes_twice_brings_nothing() -> None:
    assert taken(reading(), event([5], 1), event([5], 1))[0] == [(5, 1)]


def test_tokens_that_may_be_of_two_versions_are_held_until_the_spans_are_known() -> None:
    read = reading()
    assert taken(read, event([5], 1), event([6, 7, 8], 4, label="2"))[0] == [(5, 1)]
    assert taken(read, event([9], 5, label="2"))[0] == []
    last = event([10], 6, label="2", finish=STOP, spans=[("1", 0, 3), ("2", 3, 6)])
    assert taken(read, last)[0] == [(6, 1), (7, 1), (8, 2), (9, 2), (10, 2)]


def test_a_single_token_is_of_the_version_that_its_event_names() -> None:
    read = reading()
    last = event([8], 4, label="3", finish=STOP, spans=[("1", 0, 1), ("2", 1, 3), ("3", 3, 4)])
    found = taken(read, event([5], 1), event([6], 2, label="2"), event([7], 3, label="2"), last)
    assert found[0] == [(5, 1), (6, 2), (7, 2), (8, 3)]


def test_spans_that_contradict_what_was_passed_on() -> None:
    last = event([6], 2, finish=STOP, spans=[("1", 0, 1), ("2", 1, 2)])
    with pytest.raises(EngineFailed, match="only this worker may change"):
        taken(reading(), event([5, 6], 2), last)


@pytest.mark.parametrize("label", ["4", "default", "-1", "1.0"])
def test_versions_that_were_never_loaded(label: str) -> None:
    with pytest.raises(EngineFailed, match="not one of this run's"):
        taken(reading(), event([5], 1, label=label))


def test_logprobs_of_truncated_distributions() -> None:
    read = reading(truncated=True)
    one = event([5, 6], 2, logprobs=[5, 6], output_token_sampling_logprobs=[-0.5, -0.25])
    ((chunk,), reason) = read.take(one)
    assert (chunk.logprobs, reason) == ((-0.5, -0.25), None)


@pytest.mark.parametrize(
    "harmed",
    [
        {"output_ids": [5]},
        event([5, 6], 2, logprobs=[5]),
        event([5, 6], 2, logprobs=[6, 5]),
        event([5], 2),
        event([5], 1, output_token_logprobs=[[float("nan"), 5, None]]),
        event([5], 1, finish={"type": "new"}),
        event([5], 1, finish={"type": "abort", "message": "x", "status_code": 500}),
        event([5], 1, label=None),
        event([5], 1, finish=STOP, spans=[("1", 0, None)]),
        event([5], 1, finish=STOP) | {"output_ids": None},
        event([5], 1, finish=["stop"]),
        {"error": {"message": "x", "code": 500}},
        None,
        7,
        [],
    ],
)
def test_what_sglang_does_not_send(harmed: Any) -> None:
    with pytest.raises(EngineFailed):
        reading().take(harmed)


@pytest.mark.parametrize("wrong", [-1, 99, True, 5.0, "5"])
def test_tokens_that_are_not_in_the_vocabulary(wrong: Any) -> None:
    one = event([5], 1, output_token_logprobs=[[-1.0, wrong, None]]) | {"output_ids": [wrong]}
    with pytest.raises(EngineFailed, match="vocabulary of 99"):
        reading().take(one)


def test_a_server_that_was_started_anew_under_an_older_version() -> None:
    read = reading(version=3)
    with pytest.raises(EngineFailed, match="serves version 1 again, after version 3"):
        read.take(event([5], 1, label="1"))


def test_a_refusal_with_a_code_in_words() -> None:
    with pytest.raises(ValueError, match="SGLang refuses: too long"):
        reading().take({"error": {"message": "too long", "code": "invalid_request"}})


def test_fewer_tokens_than_before() -> None:
    with pytest.raises(EngineFailed):
        taken(reading(), event([5, 6], 2), event([5], 1))


@pytest.mark.parametrize(
    "told",
    [
        {"error": {"message": "too long", "code": 400}},
        event([], 0, finish={"type": "abort", "message": "too long", "status_code": 400}),
    ],
)
def test_refusals(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="too long"):
        reading().take(told)


def test_what_the_server_gave_up() -> None:
    with pytest.raises(Dropped, match="busy"):
        reading().take(
            event([], 0, finish={"type": "abort", "message": "busy", "status_code": 503})
        )


def test_failures() -> None:
    with pytest.raises(EngineFailed, match="no memory"):
        reading().take({"error": {"message": "no memory", "code": 500}})


def test_tokens_from_the_prefix_cache_are_those_of_the_first_event() -> None:
    read = reading()
    taken(read, event([5], 1, cached_tokens=20), event([6], 2, cached_tokens=0))
    assert read.num_cached_tokens == 20
