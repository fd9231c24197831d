"""From a delivery to a rollout to be run, or to the reason why not. No I/O."""

from collections.abc import Callable

from consumers.rollout.delivery.poison import Returns, Verdict
from consumers.rollout.delivery.snapshots import marks_of
from consumers.rollout.slots import Held, Work
from infra.amqp.codec import decode, read_headers
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery
from schemas.headers import Headers, Purpose
from schemas.work import FailureKind, RolloutTask, Snapshot

QUEUES: dict[str, type[RolloutTask] | type[Snapshot]] = {
    "cancel_queue": Snapshot,
    "eval_prompts": RolloutTask,
    "prompts": RolloutTask,
}
"""In the order in which a free slot asks them, with what they hold."""

MAX_VERSIONS_UNHEARD = 1000
"""Versions that may have been published since we last heard of one."""


class Refused(Exception):
    """This message is given up.

    Attributes:
        headers: As far as they could be read.
        kind: Whose fault it is.
    """

    def __init__(self, reason: str, headers: Headers | None, kind: FailureKind) -> None:
        super().__init__(reason)
        self.headers = headers
        self.kind = kind


def read_own_headers(delivery: Delivery, foreign: Callable[[Headers], str | None]) -> Headers:
    """The headers of a message of this run. A replay waits for no version: the one that it was cut
    for may be another run's, and never come.

    Raises:
        Refused: They cannot be read, or belong to another run.
    """
    try:
        headers = read_headers(delivery)
    except BadMessage as error:
        raise Refused(error.reason, None, FailureKind.DATA) from None
    if reason := foreign(headers):
        raise Refused(reason, headers, FailureKind.INFRA)
    return headers.model_copy(update={"min_version": 0}) if headers.replay else headers


def check_reachable(headers: Headers, newest: int) -> None:
    """Refuse what waits for a version that is not to come: it would hold its slot for ever.

    Args:
        headers: Of the message.
        newest: Newest version heard of. The word of later ones may still be on its way.

    Raises:
        Refused: It asks for one far beyond.
    """
    if headers.min_version > newest + MAX_VERSIONS_UNHEARD:
        raise Refused(
            f"waits for version {headers.min_version}, the newest is {newest}",
            headers,
            FailureKind.DATA,
        )


def read_work(delivery: Delivery, headers: Headers) -> Work:
    """The body, which must be what its headers say.

    Raises:
        Refused: It cannot be decoded, or names another rollout.
    """
    try:
        work = decode(delivery, delivery.body, QUEUES[delivery.queue])
    except BadMessage as error:
        raise Refused(error.reason, headers, FailureKind.DATA) from None
    task = work.task if isinstance(work, Snapshot) else work
    said = (headers.rollout_id, headers.group, headers.index, headers.purpose)
    if said != (task.rollout_id, task.group, task.index, task.purpose):
        raise Refused(
            f"headers name rollout {headers.rollout_id!r}, the body {task.rollout_id!r}",
            headers,
            FailureKind.DATA,
        )
    return work


def take_up(delivery: Delivery, headers: Headers) -> Held:
    """A rollout, ready to be run.

    Raises:
        Refused: It cannot be decoded, or came back too often.
    """
    returns = Returns.of(
        headers, redelivered=delivery.redelivered, delivery_count=delivery.delivery_count
    )
    if returns.verdict is Verdict.DEAD:
        counted = {"returns": returns.since_progress, "returns_total": returns.total}
        raise Refused(
            f"came back {returns.since_progress} times without progress, {returns.total} in all",
            headers.model_copy(update=counted),
            FailureKind.INFRA,
        )
    work = read_work(delivery, headers)
    held = Held(
        headers=headers,
        work=work,
        deliveries=[delivery],
        returns=returns,
        marks=marks_of(delivery.envelope.headers),
    )
    if isinstance(work, Snapshot):
        held.num_prefilled = work.progress.num_prefilled
        held.num_cached = work.progress.num_cached
        held.num_reprefilled = work.progress.num_reprefilled
    return held


def supersedes(work: Work, known: Work) -> bool:
    """Whether a second message of a rollout that has not started carries it further."""
    if not isinstance(work, Snapshot):
        return False
    return not isinstance(known, Snapshot) or len(work.progress.tokens) > len(known.progress.tokens)


def closed_early(headers: Headers, closed: frozenset[int]) -> bool:
    """Whether nobody needs this rollout any more."""
    return headers.purpose is Purpose.TRAIN and not headers.replay and headers.group in closed
