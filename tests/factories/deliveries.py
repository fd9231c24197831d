"""Messages as the broker gives them to a role, without a broker."""

from infra.amqp.message import Delivery, Envelope, Lease


def delivery(queue: str, envelope: Envelope, body: bytes) -> Delivery:
    """Given for the first time."""
    return Delivery(
        queue=queue,
        envelope=envelope,
        body=body,
        redelivered=False,
        delivery_count=0,
        tag=1,
        epoch=1,
        lease=Lease(epoch=1),
    )
