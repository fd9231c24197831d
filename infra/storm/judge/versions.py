"""Version numbers: unique, increasing, and never on a token before they were published.

A version is published when its manifest lies in the store; the journal's `Published` follows. So
at a place of the journal, a worker may serve up to the newest manifest before the next `Published`.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from infra.storm.judge.spoken import Spoken
from infra.weights.errors import WeightsCorrupt
from infra.weights.manifest import Manifests
from schemas.control import WeightsPublished
from schemas.journal import Batch, Published


@dataclass(slots=True)
class Numbers:
    """What the journal says of versions; places are ordinal numbers of records."""

    published: list[tuple[int, Published]] = field(default_factory=list)
    came: list[tuple[int, Spoken]] = field(default_factory=list)
    """Trajectories for training."""


def manifests_of(store: Manifests) -> tuple[dict[int, WeightsPublished], list[str]]:
    """Every manifest by version, and what is wrong with those that cannot be read."""
    found, wrong = {}, []
    for version in sorted(store.versions()):
        try:
            manifest = store.read(version)
        except WeightsCorrupt as error:
            wrong.append(f"the manifest of version {version} is damaged: {error}")
            continue
        if manifest is not None:
            found[version] = manifest
    return found, wrong


def check_manifests(found: Mapping[int, WeightsPublished], run_id: str) -> list[str]:
    """One run's manifests: later versions come from no older trainer and no earlier step, and a
    step that was taken again gave the same weights."""
    wrong = [
        f"version {version} in the store is of run {manifest.run_id}, not {run_id}"
        for version, manifest in found.items()
        if manifest.run_id != run_id
    ]
    ordered = [found[version] for version in sorted(found)]
    for one, other in pairwise(ordered):
        if (other.incarnation, other.step) < (one.incarnation, one.step) or other.step < one.step:
            wrong.append(
                f"version {other.version} is of step {other.step} by trainer {other.incarnation}, "
                f"version {one.version} of step {one.step} by trainer {one.incarnation}"
            )
        if other.step == one.step and other.fingerprint != one.fingerprint:
            wrong.append(
                f"step {one.step} gave other weights when it was taken again: versions "
                f"{one.version} and {other.version}"
            )
    return wrong


def check_published(
    records: Sequence[Published], found: Mapping[int, WeightsPublished]
) -> list[str]:
    """The journal's publications: numbers rise, and each is what the store has."""
    wrong = [
        f"version {other.version} was published after version {one.version}"
        for one, other in pairwise(records)
        if other.version <= one.version
    ]
    for record in records:
        manifest = found.get(record.version)
        if manifest is None:
            wrong.append(f"version {record.version} was published and has no manifest")
        elif manifest.fingerprint != record.fingerprint:
            wrong.append(f"version {record.version} in the store is not the one published")
    return wrong


def check_arrivals(numbers: Numbers, manifests: Sequence[int]) -> list[str]:
    """Tokens: versions never decrease, and none is newer than what was published by then."""
    wrong = []
    places = [place for place, _ in numbers.published]
    versions = [record.version for _, record in numbers.published]
    stored = sorted(manifests)
    for place, spoken in numbers.came:
        if spoken.decreases:
            wrong.append(f"versions decrease within {spoken.rollout_id}: {spoken.versions}")
        behind = bisect_right(places, place)
        before = max(versions[:behind], default=-1)
        bound = before
        if behind < len(versions):
            bound = max(bound, _at_most(stored, versions[behind]))
        elif stored:
            bound = max(bound, stored[-1])
        newest = max(spoken.versions, default=-1)
        if newest > bound:
            wrong.append(
                f"{spoken.rollout_id} has tokens of version {newest} when version {bound} was "
                f"the newest"
            )
    return wrong


def check_damaged(numbers: Numbers, damaged: Collection[int]) -> list[str]:
    """Nothing was sampled under a version whose file was damaged before anybody could read it."""
    return [
        f"{spoken.rollout_id} has tokens of version {version}, whose file was damaged"
        for _, spoken in numbers.came
        for version in spoken.versions
        if version in damaged
    ]


def check_batches(
    batches: Sequence[Batch],
    trained: Mapping[str, Spoken],
    records: Sequence[Published],
    *,
    on_policy: bool,
) -> list[str]:
    """Tokens that were trained on: none newer than the policy; on-policy, none of another policy.

    Weights that nobody could read go out again under the next number: two versions of the same
    fingerprint are one policy.
    """
    wrong = []
    prints = {record.version: record.fingerprint for record in records}
    for batch in batches:
        for name in batch.members:
            versions = trained[name].versions if name in trained else ()
            if max(versions, default=-1) > batch.version:
                wrong.append(
                    f"step {batch.step} trains version {batch.version} on {name} with tokens of "
                    f"version {max(versions)}"
                )
            policy = prints.get(batch.version, "")
            if on_policy and any(
                version != batch.version and prints.get(version) != policy for version in versions
            ):
                wrong.append(
                    f"step {batch.step} is on-policy at version {batch.version}, {name} has "
                    f"tokens of versions {versions}"
                )
    return wrong


def _at_most(stored: Sequence[int], bound: int) -> int:
    place = bisect_right(stored, bound)
    return stored[place - 1] if place else -1
