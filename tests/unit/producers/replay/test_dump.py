"""A dump is read by people, and gives back every byte."""

from pathlib import Path

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from infra.amqp.codec import CHECKSUM, checksum, decode, encode
from infra.amqp.message import Envelope
from infra.amqp.topology import WORK_QUEUES
from infra.roles.errors import ConfigError
from producers.replay.dump import from_line, to_line
from producers.replay.recorded import Recorded
from producers.replay.sources import read_dump
from schemas.headers import Headers, Purpose
from tests.factories.messages import model_for


def envelope(body: bytes = b"", **changes: object) -> Envelope:
    fields: dict[str, object] = {
        "message_id": "m",
        "type": "Rollout",
        "correlation_id": "7.3",
        "app_id": "rollout/w",
        "headers": {"run_id": "r", "group": 7, CHECKSUM: checksum(body)},
        "timestamp": 1_700_000_000,
    }
    return Envelope(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", WORK_QUEUES)
def test_real_messages_stand_readable_and_come_back_as_they_were(queue: str) -> None:
    model = model_for(queue)
    purpose = Purpose.EVAL if queue.startswith("eval") else Purpose.TRAIN
    headers = Headers(run_id="r", group=3, index=1, rollout_id="3.1", purpose=purpose)
    sealed, body = encode(model, app_id="a/b", correlation_id="3.1", headers=headers.to_amqp())
    message = Recorded(12, sealed, body)

    line = to_line(message)

    assert orjson.loads(line)["body"] == orjson.loads(body)
    assert from_line(line, where="here") == message
    assert decode(sealed, from_line(line, where="here").body, type(model)) == model


def test_a_compressed_body_is_readable_too() -> None:
    body = zstandard.compress(b'{"text": "long"}')
    message = Recorded(0, envelope(body, content_encoding="zstd"), body)
    line = to_line(message)
    assert orjson.loads(line)["body"] == {"text": "long"}
    assert from_line(line, where="here") == message


@given(
    body=st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists).map(orjson.dumps)
    | st.sampled_from([b'1,"body":2', b"{}\n", b" {}", b"[" * 1022 + b"]" * 1022, b"1e999"]),
    encoding=st.none() | st.sampled_from(["zstd", "gzip"]),
)
def test_any_body_keeps_every_byte_in_one_line(body: bytes, encoding: str | None) -> None:
    message = Recorded(5, envelope(body, content_encoding=encoding), body)
    line = to_line(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_line(line, where="here") == message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "line 1 column 1"),
        (b"[1]", "no JSON object"),
        (b'{"offset":1,"type":"Rollout","body":{}}', "neither size nor base64"),
        (b'{"offset":-1,"type":"Rollout","size":2,"body":{}}', "offset"),
        (b'{"offset":1,"type":"Rollout","size":2,"body": {}}', "written anew"),
        (b'{"offset":1,"type":"Rollout","size":99,"body":{}}', "written anew"),
        (b'{"offset":1,"type":"Rollout","base64":"?","body":null}', ""),
        (b'{"offset":1,"type":"Rollout","size":2,"headers":{"a":[]},"body":{}}', "headers.a"),
    ],
)
def test_what_is_no_dump_is_refused_with_its_line(line: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match="line 3 is no recorded message") as caught:
        from_line(line, where="line 3")
    assert reason in str(caught.value)


async def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    messages = [Recorded(n, envelope(b"{}"), b"{}") for n in range(3)]
    path.write_bytes(b"\n".join(map(to_line, messages)))
    assert [message async for message in read_dump(path)] == messages
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = [message async for message in read_dump(tmp_path)]
