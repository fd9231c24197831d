"""A message that goes back to the end of its queue, with other headers."""

from dataclasses import replace

from infra.amqp.headers import travelling
from infra.amqp.message import Delivery, Outgoing
from infra.amqp.topology import WORK_KEYS, ExchangeName
from schemas.headers import Headers


def returned(delivery: Delivery, headers: Headers, *, app_id: str) -> Outgoing:
    """The same body under the same id, for the queue that it came from."""
    envelope = replace(
        delivery.envelope,
        app_id=app_id,
        headers={**travelling(delivery.envelope.headers), **headers.to_amqp()},
    )
    return Outgoing(
        exchange=ExchangeName.WORK,
        routing_key=WORK_KEYS[delivery.queue],
        envelope=envelope,
        body=delivery.body,
    )
