"""Bodies survive the trip; hostile ones become a reason, and nothing else."""

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from infra.amqp.codec import MAX_DECODED_BYTES, checksum, decode, encode
from infra.amqp.dead import give_up, original_message
from infra.amqp.errors import BadMessage, PublishTimeout
from infra.amqp.io.wire import to_properties
from infra.amqp.message import Delivery, Envelope, Lease, Outgoing
from schemas.arrays import IntArray
from schemas.base import Message
from schemas.work import Credit, Failure, FailureKind

HEADERS = {"run_id": "r1", "purpose": "train", "group": 7, "index": 3, "rollout_id": "7.3"}


class Blob(Message):
    """A message with what hostile senders like to fill."""

    text: str = ""
    number: float = 0.0
    tokens: IntArray = np.zeros(0, dtype=np.int32)
    anything: dict[str, Any] = Field(default_factory=dict)


class Outer(Message):
    """A message around another."""

    inner: Blob
    number: int


def credit(**changes: Any) -> Credit:
    values: dict[str, Any] = {
        "group": 7,
        "indexes": (0, 1),
        "dataset_fingerprint": "f",
        "seed": 1,
        "group_size": 2,
    }
    return Credit(**(values | changes))


def envelope(body: bytes, *, type: str = "Blob", **changes: Any) -> Envelope:
    return Envelope(
        message_id="m",
        type=type,
        correlation_id="c",
        app_id="test/0",
        headers={"checksum": checksum(body)},
        timestamp=0,
        **changes,
    )


def reason(body: bytes, **changes: Any) -> str:
    """Why a body with a correct checksum is refused."""
    with pytest.raises(BadMessage) as caught:
        decode(envelope(body, **changes), body, Blob)
    return caught.value.reason


@given(
    text=st.text(max_size=200),
    number=st.floats(allow_nan=False, allow_infinity=False),
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50),
    padding=st.sampled_from([0, 100_000]),
)
def test_what_goes_in_comes_out(text: str, number: float, tokens: list[int], padding: int) -> None:
    sent = Blob(text=text + "x" * padding, number=number, tokens=tokens)
    ours, body = encode(sent, app_id="a/0", correlation_id="7.3", headers=HEADERS)
    received = decode(ours, body, Blob)
    assert received.text == sent.text
    assert received.number == sent.number
    assert received.tokens.tolist() == tokens
    assert (ours.content_encoding == "zstd") == (padding > 0)


def test_the_envelope() -> None:
    ours, body = encode(credit(), app_id="trainer/0", correlation_id="7", headers=HEADERS)
    assert ours.type == "Credit"
    assert ours.correlation_id == "7"
    assert ours.app_id == "trainer/0"
    expected = f"crc32:{zlib.crc32(body) & 0xFFFFFFFF:08x}:{len(body)}"
    assert ours.headers == {**HEADERS, "checksum": expected}
    assert json.loads(body)["group"] == 7
    again, _ = encode(
        credit(), app_id="a", correlation_id="7", headers={}, message_id=ours.message_id
    )
    assert again.message_id == ours.message_id
    other, _ = encode(credit(), app_id="a", correlation_id="7", headers={})
    assert other.message_id != ours.message_id


@given(st.integers(0, 400), st.integers(0, 7))
def test_a_flipped_bit_is_found_before_decoding(position: int, bit: int) -> None:
    ours, body = encode(Blob(text="x" * 380), app_id="a", correlation_id="", headers={})
    flipped = bytearray(body)
    flipped[position] ^= 1 << bit
    with pytest.raises(BadMessage, match="checksum"):
        decode(ours, bytes(flipped), Blob)


@given(st.integers(1, 1000))
def test_truncation_is_found(cut: int) -> None:
    ours, body = encode(Blob(text="x" * 1000), app_id="a", correlation_id="", headers={})
    with pytest.raises(BadMessage, match="checksum"):
        decode(ours, body[:-cut], Blob)


def test_a_missing_checksum_is_refused() -> None:
    ours, body = encode(Blob(), app_id="a", correlation_id="", headers={})
    with pytest.raises(BadMessage, match="checksum None"):
        decode(replace(ours, headers={}), body, Blob)


@given(st.binary(max_size=300), st.sampled_from([None, "zstd", "gzip", "", "\N{SNOWMAN}" * 90]))
def test_random_bytes_are_refused_and_nothing_else_happens(
    body: bytes, encoding: str | None
) -> None:
    assert len(reason(body, content_encoding=encoding)) < 1000


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=20))
def test_any_json_is_refused_or_valid(value: object) -> None:
    body = orjson.dumps({"schema_version": 1, "tokens": value})
    try:
        assert decode(envelope(body), body, Blob).tokens.ndim == 1
    except BadMessage as error:
        assert error.reason


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"schema_version": 2}', "schema_version '2' is unknown"),
        ("{}", "schema_version 'None' is unknown"),
        ('{"schema_version": true}', "unknown"),
        ('{"schema_version": 1, "number": NaN}', "JSON"),
        ('{"schema_version": 1, "number": Infinity}', "JSON"),
        ('{"schema_version": 1, "number": "nan"}', "finite"),
        ('{"schema_version": 1, "number": 1e999}', ""),
        ('{"schema_version": 1, "surprise": 1}', "surprise"),
        ('{"schema_version": 1, "tokens": [99999999999999999999]}', ""),
        ('{"schema_version": 1, "tokens": [[1], [2, 3]]}', ""),
        ('{"schema_version": 1, "tokens": "####"}', "base64"),
        ('{"schema_version": 1, "text": "\\ud800"}', "JSON"),
        ("[]", ""),
        ("null", ""),
        ("7", ""),
        ('{"schema_version": 1', "JSON"),
        ("[" * 100_000, ""),
        ('{"schema_version":1,"anything":' + '{"a":' * 100_000 + "1" + "}" * 100_001, ""),
    ],
)
def test_hostile_json(text: str, word: str) -> None:
    assert word in reason(text.encode())


def test_another_type_is_refused() -> None:
    assert "expected Blob" in reason(b"{}", type="Credit")
    assert len(reason(b"{}", type="x" * 10_000)) < 200


def test_reasons_do_not_repeat_the_body() -> None:
    body = orjson.dumps({"schema_version": 1, "text": ["secret" * 1000], "number": "secret"})
    assert "secret" not in reason(body)


def bomb(*, sized: bool) -> bytes:
    """20 KB that inflate to more than is allowed."""
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=sized)
    zeros = bytes(MAX_DECODED_BYTES + 1)
    return compressor.compress(zeros)


@pytest.mark.parametrize("sized", [True, False])
def test_a_zstd_bomb_is_defused(sized: bool) -> None:
    body = bomb(sized=sized)
    assert len(body) < 100_000
    assert "inflates to" in reason(body, content_encoding="zstd")


def test_a_lying_zstd_header_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(b"x" * 70_000)
    assert reason(honest + b"extra", content_encoding="zstd")
    assert reason(honest[:-5], content_encoding="zstd")


def test_a_stream_without_stated_size_is_read() -> None:
    json_bytes = orjson.dumps({"schema_version": 1, "text": "x" * 70_000})
    body = zstandard.ZstdCompressor(write_content_size=False).compress(json_bytes)
    assert decode(envelope(body, content_encoding="zstd"), body, Blob).text == "x" * 70_000


class FakeBroker:
    """Records what is done with it, in order."""

    app_id = "reward/0"

    def __init__(self, *, confirms: bool = True) -> None:
        self.done: list[tuple[str, Any]] = []
        self._confirms = confirms

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        if not self._confirms:
            raise PublishTimeout("no confirm")
        self.done.append(("confirmed", message))

    def ack(self, delivery: Delivery) -> bool:
        self.done.append(("acked", delivery))
        return True


def delivery(body: bytes) -> Delivery:
    headers: dict[str, str | int] = {**HEADERS, "checksum": "stale", "x-delivery-count": 2}
    ours = replace(envelope(b""), message_id="m1", correlation_id="7.3", headers=headers)
    return Delivery("rollouts", ours, body, False, 0, 1, 1, Lease(epoch=1))


async def test_giving_up_is_confirmed_before_the_ack() -> None:
    broker, broken = FakeBroker(), delivery(b"\xff\x00")
    failure = Failure(
        rollout_id="7.3", group=7, index=3, stage="reward", kind=FailureKind.DATA, error="boom"
    )
    await give_up(broker, broken, failure)
    assert [what for what, _ in broker.done] == ["confirmed", "acked"]
    sent = broker.done[0][1]
    assert sent.exchange == "dead"
    assert sent.envelope.message_id == "m1.dead"
    assert {key: sent.envelope.headers[key] for key in HEADERS} == HEADERS
    assert "x-delivery-count" not in sent.envelope.headers
    received = decode(sent.envelope, sent.body, Failure)
    assert received.error == "boom"
    assert received.original is not None
    assert base64.b64decode(received.original.body) == b"\xff\x00"
    assert received.original.queue == "rollouts"


async def test_no_id_and_no_header_of_a_stranger_keeps_it_from_being_given_up() -> None:
    """What RabbitMQ delivers need not fit back into a message with a longer id."""
    broken = delivery(b"")
    strange = {f"header-{n}": "x" * 900 for n in range(40)} | {"wide": "y" * 9000, "big": 1 << 63}
    envelope = replace(
        broken.envelope, message_id="i" * 255, headers={**strange, **broken.envelope.headers}
    )
    broker = FakeBroker()
    failure = Failure(stage="reward", kind=FailureKind.DATA, error="boom")
    await give_up(broker, replace(broken, envelope=envelope), failure)
    sent = broker.done[0][1].envelope
    to_properties(sent, persistent=True)
    assert {key: sent.headers[key] for key in HEADERS} == HEADERS
    again = FakeBroker()
    await give_up(again, replace(broken, envelope=envelope), failure)
    assert again.done[0][1].envelope.message_id == sent.message_id


async def test_without_a_confirm_nothing_is_acknowledged() -> None:
    broker = FakeBroker(confirms=False)
    failure = Failure(stage="reward", kind=FailureKind.DATA, error="boom")
    with pytest.raises(PublishTimeout):
        await give_up(broker, delivery(b""), failure)
    assert broker.done == []


def test_a_huge_original_is_cut_to_fit() -> None:
    kept = original_message(delivery(bytes(16 * 2**20)))
    assert kept.truncated
    assert len(kept.body) < 12 * 2**20


def test_fields_of_known_json_give_the_same_body() -> None:
    inner = Blob(text="é", number=0.5, tokens=np.arange(3, dtype=np.int32), anything={"a": [1]})
    outer = Outer(inner=inner, number=2)
    _, whole = encode(outer, app_id="", correlation_id="", headers=HEADERS)
    _, raw = encode(inner, app_id="", correlation_id="", headers=HEADERS)
    made, spliced = encode(
        outer, app_id="", correlation_id="", headers=HEADERS, known={"inner": raw}
    )
    assert orjson.loads(spliced) == orjson.loads(whole)
    assert decode(made, spliced, Outer).number == 2
