"""The rollouts that this worker holds, and the deliveries it holds them by."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from consumers.rollout.agents.state import RolloutFailed, RolloutState
from consumers.rollout.delivery.poison import Returns, Verdict
from infra.amqp.message import Delivery
from schemas.headers import Headers
from schemas.work import Rollout, RolloutTask, Snapshot

Work = RolloutTask | Snapshot
Outcome = Rollout | Snapshot | RolloutTask | RolloutFailed

_REMEMBERED = 4096


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """One rollout in a slot. One generation, however many deliveries name it."""

    headers: Headers
    work: Work
    """As it was taken from the queue."""
    deliveries: list[Delivery]
    """Unacknowledged; some may be lost."""
    returns: Returns
    state: RolloutState | None = None
    """None until it is admitted."""
    runner: asyncio.Task[None] | None = None
    outcome: Outcome | None = None
    """What it came to, kept until a delivery comes again."""
    progressed: bool = False
    """New tokens or a new turn since it was taken."""
    resumed: bool = False
    """Restored from a snapshot since the last swap."""
    publishing: bool = False
    """What it came to is on its way to the broker."""
    suspected: bool = False
    """The engine died under it: its progress does not speak for it."""
    num_prefilled: int = 0
    num_cached: int = 0
    num_reprefilled: int = 0
    """Of its state's, what is counted already, as the two before it."""
    cut_version: int | None = None
    """Of the sync that is cutting it."""
    cut_settled: asyncio.Event | None = None
    """Set when the cut is confirmed, refused, or came too late."""
    age_s: float = 0.0
    """Since it was taken, standing still as the worker's timers do."""
    still_s: float = 0.0
    """Since it last moved (a token, a turn, a tool result), standing still likewise."""
    mark: tuple[int, ...] = ()
    """How far it had moved at the last look."""
    num_noted: int = 0
    """Tokens sampled here since it was taken, in states that were replaced or have ended."""
    lost_s: float = 0.0
    """Since its last delivery was lost, counted while the broker is there."""
    jitter: float = field(default_factory=lambda: random.uniform(0.9, 1.1))
    """Of the snapshot interval, so that not all rollouts are cut at once."""
    marks: dict[str, str | int] = field(default_factory=dict)
    """Headers that are not ours; they travel on."""

    @property
    def rollout_id(self) -> str:
        """As everybody names it; a replay's differs from that of what it replays."""
        return self.headers.name

    @property
    def alone(self) -> bool:
        """Whether it may only run while nothing else does."""
        return self.returns.verdict is Verdict.ALONE

    @property
    def waiting(self) -> bool:
        """Whether it was not admitted yet."""
        return self.runner is None and self.outcome is None

    @property
    def interruptible(self) -> RolloutState | None:
        """Its state while there is something to cut, else None."""
        return self.state if self.runner is not None and self.outcome is None else None

    @property
    def moving(self) -> RolloutState | None:
        """Its state while it samples, calls tools or is asked, else None."""
        return None if self.publishing else self.interruptible

    @property
    def gained(self) -> bool:
        """Whether anything would be lost if it began again where it was taken."""
        state = self.moving
        here = state is not None and bool(
            state.num_new_tokens or state.num_new_turns or state.results
        )
        return self.progressed or here

    @property
    def num_unsaved_tokens(self) -> int:
        """Sampled since it was taken: what a killed worker costs."""
        state = self.moving
        return self.num_noted + (state.num_new_tokens if state is not None else 0)

    def settle_cut(self) -> None:
        """Whoever cut it need not wait for it any longer."""
        self.cut_version = None
        if self.cut_settled is not None:
            self.cut_settled.set()
            self.cut_settled = None


class Slots:
    """All held rollouts by id.

    Args:
        size: Slots of the worker.
        is_held: Whether a delivery is still ours (`Broker.held`).
    """

    def __init__(self, size: int, is_held: Callable[[Delivery], bool]) -> None:
        self.size = size
        self._is_held = is_held
        self._by_id: dict[str, Held] = {}
        self.num_alone = 0
        """Rollouts that may only run alone; kept beside, for it is asked at every admission."""
        self._settled: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._by_id.values()))

    def __contains__(self, held: Held) -> bool:
        return self._by_id.get(held.rollout_id) is held

    def get(self, rollout_id: str) -> Held | None:
        """The rollout of this id, if we hold it."""
        return self._by_id.get(rollout_id)

    def put(self, held: Held) -> None:
        """Take up a rollout."""
        self._by_id[held.rollout_id] = held
        self.num_alone += held.alone
        for delivery in held.deliveries:
            self.forget_settled(delivery)

    def remove(self, held: Held) -> None:
        """Free the slot."""
        if held in self:
            del self._by_id[held.rollout_id]
            self.num_alone -= held.alone

    def attach(self, held: Held, delivery: Delivery, headers: Headers) -> None:
        """Another delivery of a rollout that we hold: the same one again, or a second message."""
        name = delivery.envelope.message_id
        held.deliveries = [  # a lost one is kept while its message may come again
            known
            for known in held.deliveries
            if self._is_held(known) or known.envelope.message_id != name
        ]
        held.deliveries.append(delivery)
        held.lost_s = 0.0
        held.headers = held.headers.model_copy(
            update={
                "attempt": max(held.headers.attempt, headers.attempt),
                "min_version": max(held.headers.min_version, headers.min_version),
            }
        )

    def live(self, held: Held) -> list[Delivery]:
        """Its deliveries that are still ours."""
        return [delivery for delivery in held.deliveries if self._is_held(delivery)]

    @property
    def num_free(self) -> int:
        """Messages that may be taken now. A rollout whose delivery was lost blocks no slot: else
        nobody would fetch the message that it waits for."""
        occupied = used = 0
        for held in self._by_id.values():
            num_live = len(self.live(held))
            used += num_live
            occupied += 1 if num_live else 0
        return self.size - max(occupied, used)

    @property
    def num_pinned(self) -> int:
        """Rollouts that no snapshot can express: they stay here until they end."""
        return sum(held.state is not None and held.state.pinned for held in self._by_id.values())

    def remember_settled(self, delivery: Delivery) -> None:
        """What came of this message is confirmed; should it come again, that was the broker."""
        self._settled[delivery.envelope.message_id] = None
        while len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)

    def forget_settled(self, delivery: Delivery) -> None:
        """A message of this id is to be done, whatever became of an earlier one."""
        self._settled.pop(delivery.envelope.message_id, None)

    def already_settled(self, delivery: Delivery) -> bool:
        """Whether this delivery only repeats one whose acknowledgement was lost."""
        return delivery.redelivered and delivery.envelope.message_id in self._settled
