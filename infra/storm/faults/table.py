"""Which function does which fault. None from it: there was nothing to do it to."""

from collections.abc import Awaitable, Callable, Mapping

from infra.storm.faults import broker, links, messages, processes, trainer, weights
from infra.storm.schedule import Planned
from infra.storm.world import Outcome, World
from schemas.storm import FaultKind

Inject = Callable[[World, Planned], Awaitable[Outcome | None]]

INJECT: Mapping[FaultKind, Inject] = {
    FaultKind.KILL: processes.kill,
    FaultKind.TERM: processes.term,
    FaultKind.FREEZE: processes.freeze,
    FaultKind.BROKER_KILL: broker.kill,
    FaultKind.BROKER_TERM: broker.term,
    FaultKind.BROKER_WIPE: broker.wipe,
    FaultKind.BROKER_ALARM: broker.alarm,
    FaultKind.CUT: links.cut,
    FaultKind.BLACK_HOLE: links.black_hole,
    FaultKind.SLOW: links.slow,
    FaultKind.DUPLICATE: messages.duplicate,
    FaultKind.REORDER: messages.reorder,
    FaultKind.TRUNCATE: messages.truncate,
    FaultKind.FLIP: messages.flip,
    FaultKind.WEIGHTS_TRUNCATE: weights.truncate,
    FaultKind.WEIGHTS_FLIP: weights.flip,
    FaultKind.PURGE: messages.purge,
    FaultKind.SECOND_TRAINER: trainer.second,
    FaultKind.DISK_FULL: trainer.disk_full,
}
