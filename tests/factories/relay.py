"""A world whose messages really lie in every work queue on their way, to be lost there.

credits -> prompts -> cancel_queue -> rollouts -> trajectories
        -> eval_prompts --------------------------> evaluations
"""

import asyncio
from dataclasses import dataclass, field, replace

from infra.amqp.message import Outgoing
from schemas.headers import Headers
from schemas.work import Failure, Trajectory
from tests.factories.world import World, message_of

NEXT = {
    "prompts": "cancelled",
    "cancel_queue": "rollout",
    "rollouts": "trajectory",
    "eval_prompts": "evaluation",
}
"""Queue -> routing key of the one behind it."""
FIRST = {"trajectory": "prompt", "evaluation": "eval_prompt"}
_GLANCE_S = 0.02


@dataclass
class Relay(World):
    """Takes from a queue only while it is not in `held`."""

    held: set[str] = field(default_factory=set)
    lose: set[str] = field(default_factory=set)
    """Queues of which the next message is taken and dropped, instead of passed on."""
    num_lost: int = 0

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._credits(tasks))
            for queue in NEXT:
                tasks.create_task(self._pass_on(queue))

    async def send(self, model: Trajectory | Failure, headers: Headers) -> None:
        """A member begins its way."""
        message = message_of(model, headers, app_id=self.broker.app_id)
        key = FIRST.get(message.routing_key, message.routing_key)
        await self.broker.publish(replace(message, routing_key=key))

    async def hold_and_purge(self, queue: str, *, at_least: int = 1) -> int:
        """Let messages gather in a queue and lose them, until so many are lost; how many were."""
        self.held.add(queue)
        count = 0
        async with asyncio.timeout(60):
            while count < at_least:
                await asyncio.sleep(_GLANCE_S)
                count += await self.broker.purge(queue)
        self.held.remove(queue)
        return count

    async def _credits(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            delivery = None if "credits" in self.held else await self.broker.get("credits")
            if delivery is None:
                await asyncio.sleep(_GLANCE_S)
            else:
                tasks.create_task(self._answer(delivery))

    async def _pass_on(self, queue: str) -> None:
        while True:
            delivery = None if queue in self.held else await self.broker.get(queue)
            if delivery is None:
                await asyncio.sleep(_GLANCE_S)
                continue
            if queue in self.lose:
                self.lose.remove(queue)
                self.num_lost += 1
            else:
                await self.broker.publish(
                    Outgoing(
                        exchange="work",
                        routing_key=NEXT[queue],
                        envelope=delivery.envelope,
                        body=delivery.body,
                    )
                )
            self.broker.ack(delivery)
