"""A broker in memory, for one worker."""

import asyncio
from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

from infra.amqp.codec import decode, encode
from infra.amqp.errors import PublishTimeout
from infra.amqp.message import Delivery, Lease, Outgoing
from infra.amqp.topology import WORK_KEYS
from schemas.headers import Headers
from schemas.work import Failure, Rollout, RolloutTask, Snapshot, Trajectory

RUN_ID = "run-1"
QUEUE_OF = {key: queue for queue, key in WORK_KEYS.items()}
MODELS = {m.__name__: m for m in (RolloutTask, Snapshot, Rollout, Trajectory, Failure)}


class FakeBroker:
    """Queues, confirms and redelivery as RabbitMQ's, in one process.

    `log` holds ("publish", queue, id) when a message is confirmed, and ("ack", queue, id).
    """

    def __init__(self) -> None:
        self.app_id = "rollout/w"
        self.queues: dict[str, deque[Delivery]] = defaultdict(deque)
        self.dead: list[Failure] = []
        self.sent: list[Outgoing] = []
        self.log: list[tuple[str, str, str]] = []
        self.gets: list[str] = []
        self.unacked: dict[int, Delivery] = {}
        self.most_unacked = 0
        self.confirming = asyncio.Event()
        self.confirming.set()
        self.giving = True
        self.connected = True
        self.blocked = False
        self._lease = Lease(epoch=1)
        self._tag = 0

    def put(self, queue: str, model: Any, **headers: Any) -> None:
        """Put a message into a queue as a producer would."""
        task = model.task if isinstance(model, Snapshot) else model
        fields = {
            "run_id": RUN_ID,
            "purpose": task.purpose,
            "group": task.group,
            "index": task.index,
            "rollout_id": task.rollout_id,
            **headers,
        }
        envelope, body = encode(
            model,
            app_id="test",
            correlation_id=task.rollout_id,
            headers=Headers(**fields).to_amqp(),
        )
        self.queues[queue].append(self._message(queue, envelope, body))

    def _message(self, queue: str, envelope: Any, body: bytes) -> Delivery:
        return Delivery(
            queue=queue,
            envelope=envelope,
            body=body,
            redelivered=False,
            delivery_count=0,
            tag=0,
            epoch=0,
            lease=self._lease,
        )

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(0)
                await self.confirming.wait()
        except TimeoutError as error:
            raise PublishTimeout("not confirmed") from error
        self.sent.append(message)
        if message.exchange == "dead" or message.routing_key == "dead_letters":
            self.dead.append(decode(message.envelope, message.body, Failure))
            queue = "dead" if message.exchange else "dead_letters"
        else:
            key = message.routing_key
            queue = QUEUE_OF[key] if message.exchange else key
            self.queues[queue].append(self._message(queue, message.envelope, message.body))
        self.log.append(("publish", queue, message.envelope.correlation_id))

    async def get(self, queue: str) -> Delivery | None:
        self.gets.append(queue)
        await asyncio.sleep(0)
        if not self.giving or not self.queues[queue]:
            return None
        self._tag += 1
        delivery = replace(
            self.queues[queue].popleft(), tag=self._tag, epoch=self._lease.epoch, lease=self._lease
        )
        self._lease.outstanding[self._tag] = None
        self.unacked[self._tag] = delivery
        self.most_unacked = max(self.most_unacked, len(self.unacked))
        return delivery

    async def take(self, *queues: str, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for queue in queues:
            while len(taken) < limit and (delivery := await self.get(queue)) is not None:
                taken.append(delivery)
        return taken

    def held(self, delivery: Delivery) -> bool:
        return delivery.lease.alive and delivery.tag in delivery.lease.outstanding

    def ack(self, delivery: Delivery) -> bool:
        if not self.held(delivery):
            return False
        del delivery.lease.outstanding[delivery.tag]
        del self.unacked[delivery.tag]
        self.log.append(("ack", delivery.queue, delivery.envelope.correlation_id))
        return True

    def lose_deliveries(self) -> None:
        """A reconnect: everything unacknowledged is in its queue again."""
        self._lease.alive = False
        for delivery in reversed(list(self.unacked.values())):
            self.queues[delivery.queue].appendleft(
                replace(delivery, redelivered=True, delivery_count=delivery.delivery_count + 1)
            )
        self.unacked.clear()
        self._lease = Lease(epoch=self._lease.epoch + 1)

    def bodies(self, queue: str) -> list[Any]:
        """Decoded bodies of what lies in a queue."""
        return [decode(one, one.body, MODELS[one.envelope.type]) for one in self.queues[queue]]

    def headers(self, queue: str) -> list[Headers]:
        """Headers of what lies in a queue."""
        return [Headers.from_amqp(one.envelope.headers) for one in self.queues[queue]]
