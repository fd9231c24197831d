"""Small messages for broker tests."""

import time
import uuid

from infra.amqp.message import Envelope, Outgoing


def outgoing(
    routing_key: str, body: bytes = b"body", *, exchange: str = "work", message_id: str = ""
) -> Outgoing:
    """A message with every envelope field set."""
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=body,
        envelope=Envelope(
            message_id=message_id or uuid.uuid4().hex,
            type="Thing",
            correlation_id="7.3",
            app_id="test/0",
            headers={"run_id": "run", "group": 7, "purpose": "train"},
            timestamp=int(time.time()),
        ),
    )
