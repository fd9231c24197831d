"""A recording as a text file: one message per line, to be read by people and by `jq`.

    {"offset": 12, "time": ..., "type": ..., ..., "headers": {...}, "size": 345, "body": {...}}

A body that is JSON in one line stands at the end as it came, byte for byte: `size` tells how many,
so that its checksum holds when the line is sent again. Any other, compressed ones above all, is
kept in `base64`, and `body` is what can be read of it, or null.
"""

import base64
import binascii
from datetime import UTC, datetime

import orjson
from pydantic import Field, ValidationError

from infra.amqp.codec import inflate
from infra.amqp.errors import BadMessage
from infra.amqp.message import Envelope
from infra.roles.errors import ConfigError
from producers.replay.recorded import Recorded
from schemas.base import Count, Frozen

_BODY = b',"body":'
_MAX_TIME = 253_402_300_799
"""The last second of the year 9999."""


class _Line(Frozen):
    """What stands before the body."""

    offset: Count
    type: str
    message_id: str = ""
    correlation_id: str = ""
    app_id: str = ""
    timestamp: int = Field(default=0, ge=0, lt=2**63)
    content_encoding: str | None = None
    headers: dict[str, str | int] = Field(default_factory=dict)
    size: Count | None = None
    base64: str | None = None


def to_line(message: Recorded) -> bytes:
    """A message as a line, with its end."""
    envelope, body = message.envelope, message.body
    plain = _is_json_line(body)
    readable = body if plain else _readable(message)
    head = {
        "offset": message.offset,
        "time": datetime.fromtimestamp(min(envelope.timestamp, _MAX_TIME), UTC).isoformat(),
        "type": envelope.type,
        "message_id": envelope.message_id,
        "correlation_id": envelope.correlation_id,
        "app_id": envelope.app_id,
        "timestamp": envelope.timestamp,
        "content_encoding": envelope.content_encoding,
        "headers": envelope.headers,
    }
    if plain:
        head["size"] = len(body)
    else:
        head["base64"] = base64.b64encode(body).decode("ascii")
    return orjson.dumps(head)[:-1] + _BODY + readable + b"}\n"


def from_line(line: bytes, *, where: str) -> Recorded:
    """The message of a line.

    Raises:
        ConfigError: It is none, with the reason; begins with `where`.
    """
    line = line.rstrip()
    try:
        value = orjson.loads(line)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        head = _Line.model_validate({key: value[key] for key in _Line.model_fields if key in value})
        body = _exact_body(head, line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise _no_message(where, f"{place}: {problem['msg']}") from None
    except (ValueError, binascii.Error) as error:
        raise _no_message(where, str(error)) from None
    envelope = Envelope(
        message_id=head.message_id,
        type=head.type,
        correlation_id=head.correlation_id,
        app_id=head.app_id,
        headers=head.headers,
        content_encoding=head.content_encoding,
        timestamp=head.timestamp,
    )
    return Recorded(head.offset, envelope, body)


def _exact_body(head: _Line, line: bytes) -> bytes:
    if head.base64 is not None:
        return base64.b64decode(head.base64, validate=True)
    if head.size is None:
        raise ValueError("neither size nor base64")
    start = len(line) - 1 - head.size
    if start < len(_BODY) or line[start - len(_BODY) : start] != _BODY:
        raise ValueError(
            "the body at the end is not of the stated size: the line was written anew; give the "
            "body as base64 instead of size"
        )
    return line[start:-1]


def _is_json_line(body: bytes) -> bool:
    if not body or b"\n" in body or b"\r" in body or body != body.strip():
        return False
    try:
        orjson.loads(body)
        orjson.loads(b"[[" + body + b"]]")  # a line nests it deeper
    except ValueError:
        return False
    return True


def _readable(message: Recorded) -> bytes:
    try:
        value = orjson.loads(inflate(message.body, message.envelope.content_encoding))
        return orjson.dumps(value)
    except (BadMessage, ValueError, TypeError):  # the last: nested too deep to be written
        return b"null"


def _no_message(where: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{where} is no recorded message: {reason[:300]}",
        hint="write such a file with 'run.py replay queue --to-file X.jsonl'",
    )
