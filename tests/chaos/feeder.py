"""Producers, rollout and reward workers in one: answers every credit with the recording.

    credits --> heard --> group after group, in order: failures, then trajectories
                              ^                                   |
                              +--- all its members journaled? ----+

Strictly in order: group n+1 is sent only when the journal holds every member of group n, or drops
them because a checkpoint knows of them. So the order of arrival, which may decide how batches are
composed, is the same however often the trainer dies in between, and whatever differs afterwards is
the trainer's doing. Credits and deliveries that come twice are answered and delivered twice.
"""

import asyncio
import contextlib
import json

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.ledger import Ledger
from infra.amqp.codec import decode
from infra.amqp.connection import Broker
from infra.amqp.message import Delivery
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from schemas.config import RunConfig
from schemas.control import RunState, Wanted, WeightsPublished
from schemas.headers import Purpose
from schemas.journal import Arrived, JournalRecord
from schemas.work import Credit, Failure, Trajectory
from tests.factories.recorded import RecordedStream
from tests.factories.world import headers_of, message_of

_GLANCE_S = 0.02


class Feeder:
    """Feeds one run's trainers, one after the other.

    Attributes:
        broadcast: Versions and fingerprints heard on `sync`.
        over: Set when a trainer said that the run is over.
        num_credits: Messages heard, repeated ones included.
    """

    def __init__(self, broker: Broker, config: RunConfig, stream: RecordedStream) -> None:
        self._broker = broker
        self._rules = Rules.of(config)
        self._checkpoints = RunFolder.of(config).checkpoints
        self._reader = JournalReader(RunFolder.of(config).journal)
        self._stream = stream
        self._credits: dict[int, tuple[Credit, str]] = {}
        self._heard = asyncio.Event()
        self._next = 0
        self.broadcast: set[tuple[int, str]] = set()
        self.over = asyncio.Event()
        self.num_credits = 0

    async def run(self) -> None:
        """Feed until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._feed())
            with contextlib.closing(self._broker.subscribe("credits", prefetch=32)) as credits:
                async for delivery in credits:
                    await self._take(delivery)

    async def repeat_last(self) -> None:
        """Send the newest complete group again, its rewards changed: late, and not to be trained.

        A worker that died between publishing and acknowledging does the same, but for the rewards.
        """
        if self._next == 0:
            return
        credit, run_id = self._credits[self._next - 1]
        for index in credit.indexes:
            other = self._stream.member(credit, index).model_copy(update={"reward": 77.0 + index})
            await self._send(other, credit, index, run_id)

    async def _take(self, delivery: Delivery) -> None:
        credit = decode(delivery, delivery.body, Credit)
        run_id = str(delivery.envelope.headers["run_id"])
        self.num_credits += 1
        if credit.purpose is Purpose.EVAL:
            for index in credit.indexes:
                await self._send(self._stream.evaluation(credit, index), credit, index, run_id)
        elif credit.group < self._next:
            await self._send_group(credit, run_id)
        else:
            self._credits[credit.group] = credit, run_id
            self._heard.set()
        self._broker.ack(delivery)

    async def _feed(self) -> None:
        while True:
            while self._next not in self._credits:
                self._heard.clear()
                await self._heard.wait()
            credit, run_id = self._credits[self._next]
            await self._send_group(credit, run_id)
            await self._journaled(credit.group, range(len(credit.indexes)))
            self._next += 1

    async def _send_group(self, credit: Credit, run_id: str) -> None:
        """Failures travel on another queue than trajectories: they are waited for first."""
        failing = [i for i in credit.indexes if self._stream.fails(credit.group, i)]
        for index in failing:
            await self._send(self._stream.failure(credit, index), credit, index, run_id)
        await self._journaled(credit.group, failing)
        for index in credit.indexes:
            if index not in failing:
                await self._send(self._stream.member(credit, index), credit, index, run_id)

    async def _journaled(self, group: int, indexes: "list[int] | range") -> None:
        wanted = {(group, index) for index in indexes}
        while wanted:
            records = await asyncio.to_thread(self._records)
            wanted -= await asyncio.to_thread(self._dropped, group)
            wanted -= {
                (record.group, record.index)
                for record in records
                if isinstance(record, Arrived) and record.purpose is Purpose.TRAIN
            }
            await asyncio.sleep(_GLANCE_S if wanted else 0)

    def _records(self) -> list[JournalRecord]:
        with contextlib.suppress(FileNotFoundError):  # removed while it was read: look again
            return [entry.record for entry in self._reader.records()]
        return []

    def _dropped(self, group: int) -> set[tuple[int, int]]:
        """Members of which the journal may have been trimmed before anybody looked."""
        with contextlib.suppress(FileNotFoundError):  # removed while it was read: look again
            if self._reader.begins_at_start():
                return set()
            newest = max(self._checkpoints.glob("step_*"), key=lambda path: int(path.name[5:]))
            state = json.loads((newest / "state" / "state.json").read_text())
            ledger = Ledger.from_json(state["extra"]["ledger"], self._rules)
            if ledger.ends.get(group) is not None:
                return {(group, index) for index in range(self._stream.group_size)}
            if group in ledger.groups:
                members = enumerate(ledger.groups[group].members)
                return {(group, i) for i, m in members if m.state is not MemberState.PENDING}
        return set()

    async def _send(
        self, model: Trajectory | Failure, credit: Credit, index: int, run_id: str
    ) -> None:
        headers = headers_of(credit, index, run_id=run_id)
        await self._broker.publish(message_of(model, headers, app_id=self._broker.app_id))

    async def _listen(self) -> None:
        with contextlib.closing(self._broker.control()) as control:
            async for delivery in control:
                if delivery.envelope.type == "WeightsPublished":
                    weights = decode(delivery, delivery.body, WeightsPublished)
                    self.broadcast.add((weights.version, weights.fingerprint))
                if delivery.envelope.type == "RunState":
                    state = decode(delivery, delivery.body, RunState)
                    if state.wanted is Wanted.STOPPED:
                        self.over.set()
