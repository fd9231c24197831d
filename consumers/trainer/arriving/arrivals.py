"""What comes back, taken in: journaled, then acknowledged.

trajectories --+                                        +--> ledger, evaluations --> bell
evaluations  --+--> screen --> append ... --> one fsync +--> acknowledge
failures     --+       |
requeues     --+       +--> not in order: to `dead` with the reason, then acknowledged
                       +--> a replay, whatever it is: acknowledged
"""

import asyncio
import contextlib
import logging

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.screening import (
    Screened,
    screen_failure,
    screen_requeue,
    screen_trajectory,
)
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.books.balance import Report
from consumers.trainer.books.group import MemberState
from consumers.trainer.steering.credits import Credits
from infra.amqp.codec import decode
from infra.amqp.dead import give_up
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery
from infra.roles.context import RoleContext
from infra.roles.errors import DeadlinePassed
from infra.runs.failpoints import FailPoint, reach
from schemas.headers import REPLAY, Purpose
from schemas.journal import Arrived, Late
from schemas.work import Failure, FailureKind, OriginalMessage, Requeue

logger = logging.getLogger(__name__)

QUEUES = ("trajectories", "evaluations", "failures")
PREFETCH = 256


class Arrivals:
    """The intake loop."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        tally: Tally,
        *,
        run_id: str,
        vocab_size: int,
        credits: Credits,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._tally = tally
        self._run_id = run_id
        self._vocab_size = vocab_size
        self._credits = credits
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()
        self.newest_published = -1
        """Newest version that any worker can have."""
        self.replays_ignored = 0
        """Replays acknowledged without a look: they count nowhere."""

    async def run(self) -> None:
        """Take in what comes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for queue in QUEUES:
                tasks.create_task(self._pump(queue))
            while True:
                deliveries = await self._some()
                taken, refused = self._take(deliveries)
                self._chronicle.close_due()
                reach(FailPoint.ARRIVALS_TAKEN)
                await self._chronicle.commit()
                for delivery in taken:
                    reach(FailPoint.ACK)
                    self._ctx.broker.ack(delivery)
                    reach(FailPoint.ACKED)
                for delivery, reason in refused:
                    tasks.create_task(self._give_up(delivery, reason))
                self._watch_fruitless()

    async def _pump(self, queue: str) -> None:
        with contextlib.closing(self._ctx.broker.subscribe(queue, prefetch=PREFETCH)) as deliveries:
            async for delivery in deliveries:
                self._inbox.put_nowait(delivery)

    async def _some(self) -> list[Delivery]:
        deliveries = [await self._inbox.get()]
        while not self._inbox.empty() and len(deliveries) < PREFETCH:
            deliveries.append(self._inbox.get_nowait())
        return [delivery for delivery in deliveries if self._ctx.broker.held(delivery)]

    def _take(
        self, deliveries: list[Delivery]
    ) -> tuple[list[Delivery], list[tuple[Delivery, str]]]:
        taken: list[Delivery] = []
        refused: list[tuple[Delivery, str]] = []
        for delivery in deliveries:
            if delivery.envelope.replayed:
                self._ignore_replay(delivery)
                taken.append(delivery)
                continue
            if delivery.envelope.type == Requeue.__name__ and delivery.queue == "failures":
                reason = self._take_requeue(delivery)
            elif delivery.queue == "failures":
                reason = self._take_failure(delivery)
            else:
                reason = self._take_trajectory(delivery)
            if reason is None:
                taken.append(delivery)
            else:
                refused.append((delivery, reason))
        return taken, refused

    def _ignore_replay(self, delivery: Delivery) -> None:
        if not self.replays_ignored:
            logger.info(
                "replay %s: what is replayed is acknowledged here and counts nowhere",
                delivery.envelope.headers[REPLAY],
            )
        self.replays_ignored += 1

    def _take_trajectory(self, delivery: Delivery) -> str | None:
        """Note a trajectory; the reason when it must be given up."""
        newest = max(self.newest_published, self._chronicle.ledger.version)
        try:
            screened = screen_trajectory(
                delivery,
                run_id=self._run_id,
                newest_version=newest,
                vocab_size=self._vocab_size,
            )
        except BadMessage as error:
            return error.reason
        expected = self._expects(screened.record)
        if expected is Report.UNKNOWN:
            return f"{screened.record.rollout_id!r} was never issued"
        self._count(screened, expected, delivery.body)
        return None

    def _take_failure(self, delivery: Delivery) -> str | None:
        """Note a failure. What is not ours stays in `dead_letters`, for people."""
        screened = screen_failure(delivery, run_id=self._run_id)
        if isinstance(screened, str):
            logger.warning("a dead letter closes nothing here: %s", screened)
            return None
        expected = self._expects(screened.record)
        if expected is Report.UNKNOWN:
            logger.warning("a dead letter of %r, never issued", screened.record.rollout_id)
            return None
        self._count(screened, expected, delivery.body)
        return None

    def _take_requeue(self, delivery: Delivery) -> str | None:
        """Note that a dead member is wanted back; the reason when it cannot be."""
        try:
            record, original = screen_requeue(delivery, run_id=self._run_id)
        except BadMessage as error:
            return error.reason
        evaluating = record.purpose is Purpose.EVAL
        books = self._chronicle.evaluations if evaluating else self._chronicle.ledger
        expected = books.requeues(record.group, record.index)
        if expected is Report.UNKNOWN and evaluating:
            return f"the evaluation of version {record.group} is closed: nobody waits for it"
        if expected is Report.UNKNOWN:
            return f"{record.rollout_id} was never issued"
        if expected is Report.LATE:
            logger.info("%s is not requeued: asked for again, or back already", record.rollout_id)
            return None
        self._chronicle.note(record)
        logger.info("%s is requeued by %s", record.rollout_id, record.by)
        self._credits.bring_back(record, original)
        return None

    def _expects(self, record: Arrived) -> Report:
        if record.purpose is Purpose.EVAL:
            return self._chronicle.evaluations.expects(record.group, record.index)
        return self._chronicle.ledger.expects(record.group, record.index)

    def _count(self, screened: Screened, expected: Report, body: bytes) -> None:
        record, trajectory = screened.record, screened.trajectory
        if expected is not Report.COUNTED:
            self._count_late(record)
            return
        where = self._chronicle.journal.end
        report = self._chronicle.note(record, body)
        if trajectory is None or report is not Report.COUNTED:
            return
        self._tally.add(trajectory)
        if record.purpose is Purpose.TRAIN:
            self._chronicle.shelf.keep(where, trajectory)
            self._report_stale(record)

    def _count_late(self, record: Arrived) -> None:
        logger.debug("%s came late: attempt %d", record.rollout_id, record.attempt)
        self._chronicle.note(
            Late(
                type=record.type,
                rollout_id=record.rollout_id,
                group=record.group,
                index=record.index,
                attempt=record.attempt,
                purpose=record.purpose,
            )
        )

    def _report_stale(self, record: Arrived) -> None:
        member = self._chronicle.ledger.groups[record.group].members[record.index]
        if member.state is MemberState.STALE:
            logger.info(
                "%s is too old to train on: %d tokens, oldest of version %s, now %d",
                record.rollout_id,
                record.num_tokens,
                record.oldest_version,
                self._chronicle.ledger.version,
            )

    async def _give_up(self, delivery: Delivery, reason: str) -> None:
        self._tally.count("given_up")
        envelope = delivery.envelope
        logger.warning(
            "gave up a message on %s (%s from %s): %s",
            delivery.queue,
            envelope.type or "no type",
            envelope.app_id or "unknown",
            reason,
        )
        failure = _failure(delivery, reason, self._ctx.worker)
        if envelope.type == Requeue.__name__:
            failure = failure.model_copy(update={"original": _requeued(delivery)})
        await give_up(self._ctx.broker, delivery, failure)

    def _watch_fruitless(self) -> None:
        """Raises DeadlinePassed when too many groups closed without one to train on."""
        fruitless = self._chronicle.fruitless
        if not fruitless.exceeded:
            return
        message = fruitless.explain()
        if self._ctx.config.deadlines.on_deadline == "stop" or fruitless.hopeless:
            raise DeadlinePassed(
                message, hint="look at the rewards and at 'dead_letters', or raise max_fruitless"
            )
        logger.warning("%s", message)
        fruitless.said()


def _requeued(delivery: Delivery) -> OriginalMessage | None:
    """What an operator wanted back, so that it lies in `dead_letters` as it did before."""
    try:
        return decode(delivery, delivery.body, Requeue).original
    except BadMessage:
        return None


def _failure(delivery: Delivery, reason: str, worker: str) -> Failure:
    headers = delivery.envelope.headers
    group, index = headers.get("group", -1), headers.get("index", -1)
    attempt = headers.get("attempt", 0)
    return Failure(
        rollout_id=str(headers.get("rollout_id", "")),
        group=group if isinstance(group, int) else -1,
        index=index if isinstance(index, int) else -1,
        purpose=Purpose.EVAL if headers.get("purpose") == "eval" else Purpose.TRAIN,
        attempt=attempt if isinstance(attempt, int) and attempt >= 0 else 0,
        stage="trainer",
        kind=FailureKind.DATA,
        error=reason,
        worker=worker,
    )
