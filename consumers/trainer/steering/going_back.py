"""A message that died, on its way back to the queue that it came from."""

import base64
import binascii
import time

from pydantic import ValidationError

from infra.amqp.headers import travelling
from infra.amqp.message import MAX_BODY_BYTES, Envelope, Outgoing
from infra.amqp.topology import WORK_KEYS
from schemas.headers import Headers
from schemas.journal import Requeued
from schemas.work import OriginalMessage

_TYPES = ("RolloutTask", "Snapshot", "Rollout", "Trajectory")
"""Not a credit: one that died is issued anew."""
_ENCODINGS = (None, "zstd")


def can_go_back(original: OriginalMessage, record: Requeued) -> bool:
    """Whether it is whole, and of the one member that is requeued."""
    if original.truncated or original.type not in _TYPES or original.queue not in WORK_KEYS:
        return False
    if original.content_encoding not in _ENCODINGS:
        return False
    try:
        headers = Headers.from_amqp(original.headers)
        body = base64.b64decode(original.body, validate=True)
    except (ValidationError, binascii.Error, ValueError):
        return False
    if len(body) > MAX_BODY_BYTES:
        return False
    said = (headers.rollout_id, headers.group, headers.index, headers.purpose)
    return said == (record.rollout_id, record.group, record.index, record.purpose)


def going_back(original: OriginalMessage, attempt: int, app_id: str) -> Outgoing:
    """The same bytes, straight to their queue, as a new attempt.

    Args:
        original: One that can go back.
        attempt: Of the record that asks for the member.
        app_id: Of the sender.
    """
    flat = {k: v for k, v in original.headers.items() if isinstance(v, str | int)}
    headers = {**travelling(flat), "attempt": attempt}
    rollout_id = str(original.headers["rollout_id"])
    envelope = Envelope(
        message_id=f"{original.type}:{rollout_id}:{attempt}:0",
        type=original.type,
        correlation_id=rollout_id,
        app_id=app_id,
        headers=headers,
        content_encoding=original.content_encoding,
        timestamp=int(time.time()),
    )
    return Outgoing(
        exchange="",
        routing_key=original.queue,
        envelope=envelope,
        body=base64.b64decode(original.body),
    )
