"""A message that goes back to the end of its queue, with other headers."""

from dataclasses import replace

from infra.amqp.headers import travelling
from infra.amqp.message import Delivery, Outgoing
from schemas.headers import Headers


def returned(delivery: Delivery, headers: Headers, *, app_id: str) -> Outgoing:
    """The same body under the same id, for the queue that it came from."""
    envelope = replace(
        delivery.envelope,
        app_id=app_id,
        headers={**travelling(delivery.envelope.headers), **headers.to_amqp()},
    )
    return Outgoing.to_queue(delivery.queue, envelope, delivery.body)
