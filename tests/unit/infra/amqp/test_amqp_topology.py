"""The table, and what of it each broker version is given."""

import pytest

from infra.amqp.topology import (
    EXCHANGES,
    QUEUE_NAMES,
    QUEUES,
    RECORDING,
    WORK_KEYS,
    consumer_arguments,
    full_name,
    parse_version,
    queue_arguments,
)

DAY_MS = 24 * 60 * 60 * 1000


def test_the_table_holds_every_name_of_the_contract() -> None:
    assert {e.name.value: e.kind for e in EXCHANGES} == {
        "work": "direct",
        "sync": "fanout",
        "events": "fanout",
        "dead": "fanout",
        "recording": "fanout",
    }
    assert WORK_KEYS == {
        "credits": "credit",
        "prompts": "prompt",
        "eval_prompts": "eval_prompt",
        "cancel_queue": "cancelled",
        "rollouts": "rollout",
        "trajectories": "trajectory",
        "evaluations": "evaluation",
    }
    assert set(QUEUE_NAMES) == {*WORK_KEYS, "dead_letters", "failures", "recording"}


def test_work_queues_are_quorum_without_length_limit_and_dead_letter_safely() -> None:
    for queue in QUEUES:
        arguments = queue_arguments(queue, run="run1")
        assert arguments["x-queue-type"] == "quorum"
        assert arguments["x-consumer-timeout"] == DAY_MS
        assert "x-max-length" not in arguments
        assert "x-max-length-bytes" not in arguments
        if queue.name in WORK_KEYS:
            assert arguments["x-delivery-limit"] == 64
            assert arguments["x-dead-letter-exchange"] == "run1.dead"
            assert arguments["x-dead-letter-strategy"] == "at-least-once"
        else:
            assert "x-dead-letter-exchange" not in arguments
            assert int(arguments["x-delivery-limit"]) > 10**9  # -1 drops at once on 3.10


def test_the_recording_is_a_bounded_stream() -> None:
    arguments = queue_arguments(RECORDING, run="run1")
    assert arguments["x-queue-type"] == "stream"
    assert 0 < int(arguments["x-max-length-bytes"]) < 2**40
    assert arguments["x-max-age"] == "30D"
    assert "x-delivery-limit" not in arguments


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((3, 10, 8), {}),
        ((3, 13, 7), {}),
        ((4, 0, 5), {}),
        ((4, 2, 9), {}),
        ((4, 3, 0), {"x-consumer-timeout": DAY_MS}),
        ((5, 0, 0), {"x-consumer-timeout": DAY_MS}),
    ],
)
def test_consumers_say_their_timeout_where_the_broker_listens(
    version: tuple[int, int, int], expected: dict[str, int]
) -> None:
    assert consumer_arguments("prompts", version=version) == expected


@pytest.mark.parametrize("version", [(3, 10, 8), (4, 0, 5), (4, 3, 6)])
def test_a_stream_is_read_from_its_start_unless_told(version: tuple[int, int, int]) -> None:
    assert consumer_arguments("recording", version=version) == {"x-stream-offset": "first"}
    assert consumer_arguments("recording", version=version, offset=7) == {"x-stream-offset": 7}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.10.8", (3, 10, 8)),
        ("3.10.8-1.1+deb12u1", (3, 10, 8)),
        ("4.3.6-rc.1", (4, 3, 6)),
        ("4.1", (4, 1, 0)),
        ("", (0, 0, 0)),
        ("weird", (0, 0, 0)),
    ],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


def test_names_carry_the_run() -> None:
    assert full_name("gsm8k-1", "prompts") == "gsm8k-1.prompts"
