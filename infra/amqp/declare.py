"""Declares the table of `topology` over a channel. I/O thread only."""

from infra.amqp.channel import Channel
from infra.amqp.topology import EXCHANGES, QUEUES, full_name, queue_arguments


async def declare(channel: Channel, run: str) -> None:
    """Make every exchange, queue and binding of a run exist, in one round trip.

    Raises:
        LinkLost: The connection is gone.
        pika.exceptions.ChannelClosed: 406 when something exists with other arguments, 403 without
            permission, 404 when a durable queue's node is still coming up after a crash.
    """
    raw = channel.raw
    for exchange in EXCHANGES:
        raw.exchange_declare(
            full_name(run, exchange.name), exchange_type=exchange.kind, durable=exchange.durable
        )
    for queue in QUEUES:
        name = full_name(run, queue.name)
        raw.queue_declare(name, durable=True, arguments=queue_arguments(queue, run=run))
        for key in queue.routing_keys:
            raw.queue_bind(name, full_name(run, queue.exchange), routing_key=key)
    await channel.request(lambda callback: raw.basic_qos(prefetch_count=0, callback=callback))
