"""Models to bodies and back. What comes in is hostile until it is validated."""

import time
import uuid
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
import zstandard
from pydantic import BaseModel, ValidationError

from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery, Envelope
from schemas.headers import Headers

M = TypeVar("M", bound=BaseModel)

COMPRESS_ABOVE_BYTES = 64 * 1024
MAX_DECODED_BYTES = 64 * 1024 * 1024
CHECKSUM = "checksum"
_ZSTD = "zstd"

_HOSTILE = (
    ValueError,  # orjson, pydantic, numpy, base64
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    zstandard.ZstdError,
)
"""What decoding raises, and what validators of models may raise, on a hostile body."""


def checksum(body: bytes) -> str:
    """`crc32:<8 hex digits>:<length in bytes>` of a body as it travels."""
    return f"crc32:{zlib.crc32(body):08x}:{len(body)}"


def encode(
    model: BaseModel,
    *,
    app_id: str,
    correlation_id: str,
    headers: Mapping[str, str | int],
    message_id: str | None = None,
    known: Mapping[str, bytes] | None = None,
) -> tuple[Envelope, bytes]:
    """JSON of a model, compressed above 64 KiB, with its envelope.

    Args:
        message_id: The one of an earlier attempt; drawn when None.
        known: JSON of fields that came in a message of the same content, so that they need not
            be written again.
    """
    fields = model.model_dump(mode="json", exclude=set(known) if known else None)
    for name, json in (known or {}).items():
        fields[name] = orjson.Fragment(json)
    body = orjson.dumps(fields)
    compressed = len(body) > COMPRESS_ABOVE_BYTES
    if compressed:
        body = zstandard.ZstdCompressor(level=1).compress(body)
    envelope = Envelope(
        message_id=message_id or uuid.uuid4().hex,
        type=type(model).__name__,
        correlation_id=correlation_id,
        app_id=app_id,
        headers={**headers, CHECKSUM: checksum(body)},
        content_encoding=_ZSTD if compressed else None,
        timestamp=int(time.time()),
    )
    return envelope, body


def decode(source: Delivery | Envelope, body: bytes, model_type: type[M]) -> M:
    """The model in a body: checksum, then size, then syntax, then `schema_version`, then fields.

    Raises:
        BadMessage: With the reason; nothing else.
    """
    envelope = source.envelope if isinstance(source, Delivery) else source
    if envelope.type != model_type.__name__:
        raise BadMessage(f"is a {envelope.type[:80]!r}, expected {model_type.__name__}")
    stated = envelope.headers.get(CHECKSUM)
    if stated != checksum(body):
        raise BadMessage(f"checksum {str(stated)[:80]} does not match the body {checksum(body)}")
    try:
        value = orjson.loads(_decompress(body, envelope.content_encoding))
        _check_version(value, model_type)
        return model_type.model_validate(value)
    except ValidationError as error:
        raise BadMessage(f"{model_type.__name__}: {_summary(error)}") from None
    except _HOSTILE as error:
        text = f"{type(error).__name__}: {error}"
        raise BadMessage(f"{model_type.__name__}: {text[:300]}") from None


def inflate(body: bytes, encoding: str | None) -> bytes:
    """A body as it was before it was compressed.

    Raises:
        BadMessage: It cannot be read, or inflates to too much.
    """
    try:
        return _decompress(body, encoding)
    except _HOSTILE as error:
        raise BadMessage(f"{type(error).__name__}: {error}"[:300]) from None


def read_headers(source: Delivery | Envelope) -> Headers:
    """The headers of a data message.

    Raises:
        BadMessage: One of ours is missing or malformed; says which.
    """
    envelope = source.envelope if isinstance(source, Delivery) else source
    try:
        return Headers.from_amqp(envelope.headers)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise BadMessage(f"header {place}: {problem['msg']}") from None


def _decompress(body: bytes, encoding: str | None) -> bytes:
    if not encoding:
        if len(body) > MAX_DECODED_BYTES:
            raise ValueError(f"body of {len(body)} bytes")
        return body
    if encoding != _ZSTD:
        raise ValueError(f"unknown content_encoding {encoding[:80]!r}")
    stated = zstandard.frame_content_size(body)
    if stated > MAX_DECODED_BYTES:
        raise ValueError(f"inflates to {stated} bytes, more than {MAX_DECODED_BYTES}")
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_DECODED_BYTES)
    if stated > 0:  # the whole output is allocated at once
        return decompressor.decompress(body, allow_extra_data=False)
    with decompressor.stream_reader(body) as reader:
        inflated: bytes = reader.read(MAX_DECODED_BYTES + 1)
    if len(inflated) > MAX_DECODED_BYTES:
        raise ValueError(f"inflates to more than {MAX_DECODED_BYTES} bytes")
    return inflated


def _check_version(value: Any, model_type: type[BaseModel]) -> None:
    field = model_type.model_fields.get("schema_version")
    if field is None or not isinstance(value, dict):
        return
    found = value.get("schema_version")
    if type(found) is not int or found != field.default:
        raise ValueError(
            f"schema_version {str(found)[:20]!r} is unknown; this program reads {field.default}"
        )


def _summary(error: ValidationError) -> str:
    """The first problems with their places, without the input."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(str(p) for p in e['loc'])[:100]}: {e['msg'][:200]}" for e in problems[:3]]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(lines) + more
