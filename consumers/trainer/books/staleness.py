"""The bound on the age of tokens, kept by waiting: earliest deadline first.

A group whose oldest token is of version `b` can be trained while the trainer's version is at most
`b + max_version_lag`. Batches take the oldest groups first, so the open group in place `i` behind a
batch is trained `i // groups_per_step + 1` batches later at the earliest; each published batch
raises the version. If that is too late for any of them, the batch must wait for older members.

With at most `(1 + max_staleness) x groups_per_step` groups outstanding, and
`max_version_lag >= max_staleness` (rounded up), waiting always suffices.
"""

import math
from collections.abc import Collection, Sequence

from consumers.trainer.books.group import MemberState, OpenGroup


def must_wait_for(
    batch: Sequence[OpenGroup],
    open_groups: Collection[OpenGroup],
    *,
    step: int,
    version: int,
    groups_per_step: int,
    steps_per_publish: int,
    max_version_lag: int,
) -> OpenGroup | None:
    """The oldest unfinished group without which a batch must not be taken; None to go ahead.

    Args:
        batch: What would be trained in step `step + 1`.
        open_groups: All open groups, those of the batch included.
        step: Steps taken so far.
        version: Newest published.
    """
    taken = {group.number for group in batch}
    rest = sorted(
        (group for group in open_groups if group.number not in taken),
        key=lambda group: (group.bound, group.number),
    )
    oldest_pending: OpenGroup | None = None
    for place, group in enumerate(rest):
        if oldest_pending is None and group.indexes(MemberState.PENDING):
            oldest_pending = group
        steps_before = step + 1 + place // groups_per_step
        published = steps_before // steps_per_publish - step // steps_per_publish
        if version + published - group.bound > max_version_lag and oldest_pending is not None:
            return oldest_pending
    return None


def forecast(
    open_groups: Collection[OpenGroup],
    *,
    step: int,
    version: int,
    groups_per_step: int,
    steps_per_publish: int,
    num_classes: int,
) -> tuple[int, ...]:
    """How stale the oldest token of each open group is when its turn comes, if none is filtered.

    Returns:
        Groups by staleness 0, 1, ...; the last of at most `num_classes` holds all beyond.
    """
    counts = [0] * num_classes
    for place, group in enumerate(sorted(open_groups, key=lambda one: (one.bound, one.number))):
        steps_before = step + place // groups_per_step
        published = steps_before // steps_per_publish - step // steps_per_publish
        counts[max(0, min(num_classes - 1, version + published - group.bound))] += 1
    while counts and counts[-1] == 0:
        counts.pop()
    return tuple(counts)


def min_version_at_issue(version: int, *, max_staleness: float, max_version_lag: int) -> int:
    """`min_version` of a credit issued under `version`.

    With staleness allowed a worker may start one version behind, unless the bound has no room
    for it; on-policy it may not.
    """
    room = max_version_lag - math.ceil(max_staleness)
    slack = min(1, max(0, room)) if max_staleness > 0 else 0
    return max(0, version - slack)
