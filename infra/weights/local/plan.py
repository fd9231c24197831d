"""Ways from what is held, or from a keyframe, to a version."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.weights.errors import WeightsCorrupt
from infra.weights.local.version import Version
from schemas.control import WeightsPublished

ReadManifest = Callable[[int], WeightsPublished | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A version to begin with, and deltas to apply to it one after the other."""

    start: Version | WeightsPublished
    """The held version, or a full one in the store."""
    deltas: tuple[WeightsPublished, ...]

    @property
    def num_bytes(self) -> int:
        """To be fetched."""
        full = () if isinstance(self.start, Version) else self.start.full
        deltas = (file for one in self.deltas for file in one.delta)
        return sum(file.size_bytes for file in (*full, *deltas))

    def __str__(self) -> str:
        held = isinstance(self.start, Version)
        number = self.start.number if isinstance(self.start, Version) else self.start.version
        start = f"version {number}, which is held" if held else f"keyframe {number}"
        count = len(self.deltas)
        return f"{start}, and {count} delta{'s' if count > 1 else ''}" if count else start


def plans(target: WeightsPublished, held: Version | None, read: ReadManifest) -> Iterator[Plan]:
    """Ways to a version, the cheapest first; older keyframes follow as long as the chain goes.

    Args:
        target: To be reached.
        held: What may be begun with, if anything.
        read: Gives the manifest of a version, or None.
    """
    near: list[Plan] = []
    for plan in _backwards(target, held, read):
        if held is None:
            yield plan
            continue
        near.append(plan)
        number = plan.start.number if isinstance(plan.start, Version) else plan.start.version
        if number <= held.number:
            yield from sorted(near, key=lambda each: each.num_bytes)
            near, held = [], None
    yield from sorted(near, key=lambda each: each.num_bytes)


def _backwards(
    target: WeightsPublished, held: Version | None, read: ReadManifest
) -> Iterator[Plan]:
    """By where they begin, the newest first."""
    deltas: tuple[WeightsPublished, ...] = ()
    one: WeightsPublished | None = target
    while one is not None:
        if held is not None and (one.version, one.fingerprint) == (held.number, held.fingerprint):
            if not (target.adapter and deltas == (target,)):  # that was the first one
                yield Plan(held, deltas)
        elif held is not None and one.adapter and not deltas:
            yield Plan(held, (one,))
        if one.full:
            yield Plan(one, deltas)
        if one.base_version is None:
            return
        deltas = (one, *deltas)
        try:
            one = read(one.base_version)
        except WeightsCorrupt:
            return
