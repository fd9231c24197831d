"""The producer role.

    credits --> decode --> which row --> read it --> a task per member --> all confirmed --> ack
                  |                        |
                  |                        +--> cannot be read: a failure per member --> ack
                  +--> not ours, unreadable --> dead --> ack
                  +--> made for other data than ours --> leave, and leave the credit to others

A producer holds no state: the same credit makes the same tasks on any of them.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from infra.amqp.codec import decode, encode, read_headers
from infra.amqp.dead import give_up, original_message
from infra.amqp.errors import BadMessage, MessageTooLarge
from infra.amqp.message import Delivery, Outgoing
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError, WarrenError
from infra.roles.handling import handle_each
from infra.roles.lifecycle import run_role, serve
from producers.books import Books, open_datasets
from producers.datasets import Dataset
from producers.rows import DatasetError, Row
from producers.tasks import build_task, message_id, out_of_range, rollout_id, task_headers
from schemas.config import RunConfig
from schemas.headers import Headers, Purpose
from schemas.work import Credit, Failure, FailureKind, RolloutTask

logger = logging.getLogger(__name__)

ROLE = "producer"
PREFETCH = 8
MAX_CONCURRENT = 256
"""Publishes of one credit that wait for their confirms at the same time."""
QUEUES = {Purpose.TRAIN: "prompts", Purpose.EVAL: "eval_prompts"}


def run(config: RunConfig, *, worker: str | None = None) -> int:
    """Turn credits into tasks until told to stop; returns the exit code."""
    return run_role(serve(ROLE, config, produce, worker=worker))


def check(config: RunConfig) -> list[str]:
    """Open the datasets and read the first row of each.

    Raises:
        ConfigError: A file is missing, empty or of an unknown kind, a first row cannot become a
            prompt, or fewer rows are held out than `eval.prompts`.
    """
    datasets = open_datasets(config)
    lines = []
    try:
        for purpose, dataset in datasets.items():
            shown = " ".join(_first_row(dataset).messages[-1].content.split())[:60]
            lines.append(f"data.{purpose}: {len(dataset)} rows; {dataset.where(0)}: {shown!r}")
    finally:
        for dataset in datasets.values():
            dataset.close()
    return lines


def first_task(config: RunConfig) -> RolloutTask:
    """Row 0 of `data.train` as a task, to try a recipe with.

    Raises:
        ConfigError: As `check`.
    """
    dataset = Dataset(config.data.train, seed=config.run.seed)
    try:
        credit = Credit(
            group=0,
            indexes=(0,),
            dataset_fingerprint="",
            seed=config.run.seed,
            group_size=config.algorithm.group_size,
        )
        return build_task(config, credit, _first_row(dataset), row_number=0)
    finally:
        dataset.close()


def _first_row(dataset: Dataset) -> Row:
    try:
        return dataset.read(0)
    except DatasetError as error:
        raise ConfigError(error.args[0], hint=error.hint) from error


async def produce(context: RoleContext) -> None:
    """The role's body: subscribe, make tasks, publish, acknowledge."""
    stall = context.config.deadlines.stall
    async with context.waits("the datasets to be read and fingerprinted", deadline_s=stall):
        books = await asyncio.to_thread(Books, context.config)
    try:
        if not await context.unless_stopped(context.run_id()):
            return
        desk = _Desk(context, books)
        context.heartbeat(desk.describe)
        await handle_each(context, "credits", desk.handle, prefetch=PREFETCH)
    finally:
        books.close()


@dataclass(slots=True, kw_only=True)
class ProducerCounters:
    """Since the producer started."""

    credits: int = 0
    """Credits turned into tasks."""
    tasks: int = 0
    """Tasks whose message the broker confirmed."""

    def as_floats(self) -> dict[str, float]:
        """By name."""
        return {name: float(count) for name, count in asdict(self).items()}


class _Desk:
    def __init__(self, context: RoleContext, books: Books) -> None:
        self._context, self._broker, self._books = context, context.broker, books
        self._counters = ProducerCounters()

    def describe(self) -> dict[str, object]:
        """For the heartbeat."""
        return {"counters": self._counters.as_floats()}

    async def handle(self, delivery: Delivery) -> None:
        """One credit, from delivery to acknowledgement.

        Raises:
            ConfigError: The credit was made for another dataset, seed or group size.
        """
        try:
            headers = read_headers(delivery)
            reason = self._context.foreign(headers)
            if reason is not None:
                raise BadMessage(reason)
            credit = decode(delivery, delivery.body, Credit)
            self._check(credit, headers)
        except BadMessage as error:
            await self._refuse(delivery, error.reason)
            return
        await self._publish_all(delivery, credit, headers)
        self._broker.ack(delivery)
        self._counters.credits += not headers.replay

    def _check(self, credit: Credit, headers: Headers) -> None:
        """What it asks for must be ours to give.

        Raises:
            BadMessage: It contradicts its headers, or all that came before it.
            ConfigError: The trainer's data is not ours.
        """
        said = (headers.group, headers.purpose, headers.attempt, headers.min_version)
        if said != (credit.group, credit.purpose, credit.attempt, credit.min_version):
            raise BadMessage(f"headers name group {headers.group}, the body another credit")
        if (reason := out_of_range(credit)) is not None:
            raise BadMessage(reason)
        try:
            self._books.check_credit(credit)
        except ConfigError as error:
            # a replay may be of another run; else the trainer's were like ours all the time, and
            # this one is damaged
            if headers.replay or self._counters.credits:
                raise BadMessage(str(error)) from error
            raise

    async def _publish_all(self, delivery: Delivery, credit: Credit, headers: Headers) -> None:
        """Every member's task or failure, confirmed."""
        waiting: list[RolloutTask] = []
        for row, members in self._books.rows_of(credit).items():
            try:
                waiting += self._books.tasks(credit, row, members)
            except DatasetError as error:
                logger.warning("no prompt for %s: %s", _range(credit, members), error)
                for index in members:
                    await self._fail(delivery, credit, headers, index, error)
            if len(waiting) >= MAX_CONCURRENT:
                await self._publish(delivery, credit, headers, waiting)
                waiting = []
        await self._publish(delivery, credit, headers, waiting)

    async def _publish(
        self, delivery: Delivery, credit: Credit, headers: Headers, tasks: Sequence[RolloutTask]
    ) -> None:
        messages = [self._message(task, credit, headers) for task in tasks]
        try:
            await self._broker.publish_all(messages)
        except MessageTooLarge:
            for task, message in zip(tasks, messages, strict=True):
                try:
                    await self._broker.publish(message)
                except MessageTooLarge as error:
                    await self._fail(delivery, credit, headers, task.index, error)
                else:
                    self._counters.tasks += 1
        else:
            self._counters.tasks += len(tasks)

    def _message(self, task: RolloutTask, credit: Credit, headers: Headers) -> Outgoing:
        ours = task_headers(task, credit, run_id=headers.run_id, replay=headers.replay)
        envelope, body = encode(
            task,
            app_id=self._context.app_id,
            correlation_id=task.rollout_id,
            headers=ours.to_amqp(),
            message_id=message_id(ours),
        )
        return Outgoing.to_queue(QUEUES[task.purpose], envelope, body)

    async def _fail(
        self,
        delivery: Delivery,
        credit: Credit,
        headers: Headers,
        index: int,
        error: WarrenError,
    ) -> None:
        """Close one member: its row will be no better next time."""
        member = rollout_id(credit, index)
        failure = Failure(
            rollout_id=member,
            group=credit.group,
            index=index,
            purpose=credit.purpose,
            attempt=credit.attempt,
            stage=ROLE,
            kind=FailureKind.DATA,
            error=str(error),
            worker=self._context.worker,
            original=original_message(delivery),
        )
        ours = headers.model_copy(
            update={"rollout_id": member, "index": index, "purpose": credit.purpose}
        )
        envelope, body = encode(
            failure,
            app_id=self._context.app_id,
            correlation_id=member,
            headers=ours.to_amqp(),
            message_id=f"Failure:{ours.name}:{credit.attempt}:0",
        )
        await self._broker.publish(Outgoing.to_dead(envelope, body))

    async def _refuse(self, delivery: Delivery, reason: str) -> None:
        """A message that says nothing about any group of ours."""
        logger.warning("giving up %s: %s", delivery.envelope.message_id, reason)
        failure = Failure(
            stage=ROLE, kind=FailureKind.DATA, error=reason, worker=self._context.worker
        )
        await give_up(self._broker, delivery, failure)


def _range(credit: Credit, members: Sequence[int]) -> str:
    first, last = rollout_id(credit, members[0]), rollout_id(credit, members[-1])
    return first if first == last else f"{first} to {last}"
