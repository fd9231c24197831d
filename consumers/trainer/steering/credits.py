"""Credits go out: the only flow control there is.

    room = min(limit - open - held, needed - open)
    journal Issued -> publish, confirmed -> journal Confirmed
    members that failed (`on_failure = "replace"`) -> the same, with the next attempt
    members that were requeued -> the same; what died goes back to its queue instead of a credit

Groups that a step closes are held back until its weights are broadcast; others free room at once.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.books.staleness import min_version_at_issue
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.going_back import can_go_back, going_back
from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.roles.context import RoleContext
from infra.runs.dataset_fingerprint import credit_fingerprint
from infra.runs.failpoints import FailPoint, reach
from schemas.headers import Headers, Purpose, rollout_id_of
from schemas.journal import Confirmed, Issued, Requeued
from schemas.work import Credit, OriginalMessage

logger = logging.getLogger(__name__)


class Credits:
    """Issues credits of one run, train and evaluation."""

    def __init__(
        self, ctx: RoleContext, chronicle: Chronicle, clock: PausableClock, *, run_id: str
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._clock = clock
        self._run_id = run_id
        self._fingerprints: dict[Purpose, str] = {}
        self._originals: dict[tuple[Purpose, int, int], OriginalMessage] = {}
        self._held = 0
        self._open = False
        algorithm = ctx.config.algorithm
        self.limit = max(
            algorithm.groups_per_step,
            math.floor((1 + algorithm.max_staleness) * algorithm.groups_per_step),
        )
        """Groups outstanding at most."""

    def hold(self, num_groups: int) -> None:
        """Keep back the credits that a step releases."""
        self._held += num_groups

    def release(self) -> None:
        """The step's weights are out: so may the credits be."""
        self._held = 0
        self._open = True
        self._chronicle.changed.ring()

    def bring_back(self, record: Requeued, original: OriginalMessage) -> None:
        """Where the member is asked for once more, do it with the message that died. (A trainer
        that is killed before asks for it with a credit.)"""
        if record.purpose is Purpose.EVAL:
            pending = self._chronicle.evaluations.to_repeat
        else:
            pending = dict(self._chronicle.ledger.to_replace()).get(record.group, ())
        if record.index in pending and can_go_back(original, record):
            self._originals[record.purpose, record.group, record.index] = original

    def room(self) -> int:
        """How many may be issued now."""
        if not self._open or self._clock.paused:
            return 0
        ledger, config = self._chronicle.ledger, self._ctx.config
        num_open = len(ledger.groups)
        needed = (config.run.steps - ledger.step) * config.algorithm.groups_per_step
        return max(0, min(self.limit - num_open - self._held, needed - num_open))

    async def run(self) -> None:
        """Issue whenever there is room, until cancelled."""
        while True:
            failed = [] if self._clock.paused else self._chronicle.ledger.to_replace()
            room = self.room()
            again = () if self._clock.paused else self._chronicle.evaluations.to_repeat
            if failed:
                number, indexes = failed[0]
                logger.info("group %d: members %s failed, asking once more", number, indexes)
                await self.reissue(Purpose.TRAIN, number, indexes)
            elif again and (evaluation := self._chronicle.evaluations.open) is not None:
                await self.reissue(Purpose.EVAL, evaluation.version, again)
            elif room:
                await self._issue(room)
            else:
                await self._chronicle.changed.wait()

    async def publish_unconfirmed(self) -> int:
        """Publish again what the broker may not have; returns how many credits."""
        pending = [
            (group.number, group.asked, group.attempt, group.min_version)
            for group in self._chronicle.ledger.unconfirmed()
        ]
        for number, indexes, attempt, min_version in pending:
            await self._publish([number], indexes, attempt, min_version, Purpose.TRAIN)
        evaluation = self._chronicle.evaluations.open
        if evaluation is not None and not evaluation.confirmed:
            version, indexes, attempt = evaluation.version, evaluation.asked, evaluation.attempt
            await self._publish([version], indexes, attempt, version, Purpose.EVAL)
            return len(pending) + 1
        return len(pending)

    async def reissue(self, purpose: Purpose, number: int, indexes: tuple[int, ...]) -> None:
        """Ask again for members of an open group, or of the open evaluation."""
        evaluation = self._chronicle.evaluations.open
        if purpose is Purpose.EVAL and evaluation is not None:
            attempt, min_version = evaluation.attempt + 1, evaluation.version
        else:
            group = self._chronicle.ledger.groups[number]
            attempt, min_version = group.attempt + 1, group.min_version
        self._chronicle.note(
            Issued(
                groups=(number,),
                indexes=indexes,
                attempt=attempt,
                min_version=min_version,
                purpose=purpose,
                at=time.time(),
            )
        )
        await self._publish([number], indexes, attempt, min_version, purpose)

    async def evaluate(self, version: int, num_asked: int) -> None:
        """Ask for the evaluation of a version."""
        indexes = tuple(range(num_asked))
        record = Issued(
            groups=(version,),
            indexes=indexes,
            min_version=version,
            purpose=Purpose.EVAL,
            at=time.time(),
        )
        self._chronicle.note(record)
        await self._publish([version], indexes, 0, version, Purpose.EVAL)

    async def _issue(self, count: int) -> None:
        ledger, algorithm = self._chronicle.ledger, self._ctx.config.algorithm
        positions = tuple(ledger.positions.wanted[:count])
        first = ledger.num_issued
        numbers = range(first, first + (len(positions) or count))
        min_version = min_version_at_issue(
            ledger.version,
            max_staleness=algorithm.max_staleness,
            max_version_lag=algorithm.max_version_lag,
        )
        self._chronicle.note(
            Issued(
                groups=tuple(numbers),
                min_version=min_version,
                at=time.time(),
                positions=positions,
            )
        )
        for number, position in zip(numbers, positions, strict=False):
            logger.info("group %d stands in for a closed one, position %d", number, position)
        indexes = tuple(range(algorithm.group_size))
        await self._publish(numbers, indexes, 0, min_version, Purpose.TRAIN)

    async def _publish(
        self,
        numbers: Sequence[int],
        indexes: tuple[int, ...],
        attempt: int,
        min_version: int,
        purpose: Purpose,
    ) -> None:
        fingerprint = await self._fingerprint(purpose)
        await self._chronicle.commit()
        reach(FailPoint.CREDITS_JOURNALED)
        messages = self._brought_back(numbers, indexes, attempt, purpose)
        back = {message.envelope.correlation_id for message in messages}
        if rest := tuple(i for i in indexes if rollout_id_of(purpose, numbers[0], i) not in back):
            messages += [
                self._message(number, rest, attempt, min_version, purpose, fingerprint)
                for number in numbers
            ]
        what = f"the broker to confirm {len(messages)} credits ({messages[0].envelope.message_id})"
        async with self._ctx.waits(what, deadline_s=self._ctx.config.deadlines.stall):
            await asyncio.gather(*(self._send(message) for message in messages))
        reach(FailPoint.CREDITS_CONFIRMED)
        self._chronicle.note(Confirmed(groups=tuple(numbers), attempt=attempt, purpose=purpose))

    def _brought_back(
        self, numbers: Sequence[int], indexes: tuple[int, ...], attempt: int, purpose: Purpose
    ) -> list[Outgoing]:
        if not self._originals or len(numbers) != 1:
            return []
        found = [self._originals.pop((purpose, numbers[0], index), None) for index in indexes]
        return [going_back(one, attempt, self._ctx.app_id) for one in found if one is not None]

    async def _send(self, message: Outgoing) -> None:
        await self._ctx.broker.publish(message)
        reach(FailPoint.CREDITS_SENT)

    def _message(
        self,
        number: int,
        indexes: tuple[int, ...],
        attempt: int,
        min_version: int,
        purpose: Purpose,
        fingerprint: str,
    ) -> Outgoing:
        config = self._ctx.config
        train = purpose is Purpose.TRAIN
        position = self._chronicle.ledger.positions.of(number) if train else number
        credit = Credit(
            group=number,
            purpose=purpose,
            indexes=indexes,
            attempt=attempt,
            min_version=min_version,
            dataset_fingerprint=fingerprint,
            seed=config.run.seed,
            group_size=config.algorithm.group_size if train else config.eval.samples,
            position=None if position == number else position,
        )
        headers = Headers(
            run_id=self._run_id,
            purpose=purpose,
            group=number,
            attempt=attempt,
            min_version=min_version,
        )
        envelope, body = encode(
            credit,
            app_id=self._ctx.app_id,
            correlation_id=str(number),
            headers=headers.to_amqp(),
            message_id=f"Credit:{purpose.value}:{number}:{attempt}",
        )
        return Outgoing(exchange="work", routing_key="credit", envelope=envelope, body=body)

    async def _fingerprint(self, purpose: Purpose) -> str:
        if purpose not in self._fingerprints:
            self._fingerprints[purpose] = await asyncio.to_thread(
                credit_fingerprint, self._ctx.config, purpose
            )
        return self._fingerprints[purpose]
