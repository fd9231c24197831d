"""Versions never go back: the same weights publish nothing, other weights take a new number."""

from pathlib import Path

import pytest

from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.policy import Policy
from infra.roles.errors import WarrenError
from infra.runs.incarnation import Superseded
from infra.runs.journal_reader import JournalReader
from schemas.config import RunConfig
from schemas.journal import Published
from tests.factories.publishing import Room, Told, move, recipe


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Every version whole."""
    return recipe(tmp_path_factory.mktemp("publish"), codec="full")


@pytest.fixture
def learner(config: RunConfig) -> Learner:
    """With the starting weights."""
    return Learner(config, Policy.load(Path(config.model.path)))


async def test_versions_are_stored_journaled_and_broadcast(
    config: RunConfig, learner: Learner, tmp_path: Path
) -> None:
    told = Told()
    room = Room(tmp_path, config, told)
    for step in range(4):
        await room.publisher.publish(learner, step)
        move(learner, 0.5)
    assert [weights.version for weights in told.versions] == [0, 1, 2, 3]
    assert len({weights.fingerprint for weights in told.versions}) == 4
    records = [e.record for e in JournalReader(tmp_path / "journal").records()]
    published = [record for record in records if isinstance(record, Published)]
    assert [(p.version, p.step) for p in published] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert room.chronicle.ledger.version == 3
    kept = [weights.folder for weights in told.versions[-2:]]
    assert sorted(path.name for path in (tmp_path / "weights").glob("v*")) == sorted(kept)


async def test_a_repeated_step_with_the_same_weights_publishes_nothing_new(
    config: RunConfig, learner: Learner, tmp_path: Path
) -> None:
    told = Told()
    await Room(tmp_path, config, told).publisher.publish(learner, 0)
    successor = Room(tmp_path, config, told)
    await successor.publisher.publish(learner, 0)
    first, again = told.versions
    assert again == first
    assert first.incarnation == 1 and successor.chronicle.fence.incarnation == 2


async def test_other_weights_take_the_next_free_number(
    config: RunConfig, learner: Learner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    first = Room(tmp_path, config, told)
    for step in range(3):
        await first.publisher.publish(learner, step)
        move(learner, 0.5)
    successor = Room(tmp_path, config, told)
    assert await successor.publisher.rebroadcast() == 2
    await successor.publisher.publish(learner, 0)
    assert [weights.version for weights in told.versions] == [0, 1, 2, 3]
    assert "other weights than v0 in the store: publishing v3" in caplog.text
    await successor.publisher.publish(learner, 1)
    assert told.versions[-1].version == 4


async def test_a_store_that_lost_the_newest_version_is_noticed(
    config: RunConfig, learner: Learner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another publication no worker could start, and nothing would ever arrive."""
    told = Told()
    room = Room(tmp_path, config, told)
    assert await room.publisher.rebroadcast() == -1 and not room.publisher.unsettled
    await room.publisher.publish(learner, 0)
    assert await room.publisher.rebroadcast() == 0 and not room.publisher.unsettled
    room.store.clear()
    assert await room.publisher.rebroadcast() == -1 and room.publisher.unsettled
    assert "v0 is not in" in caplog.text
    await room.publisher.publish(learner, 0)
    assert not room.publisher.unsettled
    first, again, new = told.versions
    assert again == first
    assert (new.version, new.fingerprint) == (1, first.fingerprint)


async def test_a_version_that_the_journal_does_not_know_is_taken_up_at_once(
    config: RunConfig, learner: Learner, tmp_path: Path
) -> None:
    """Its trainer died between manifest and journal, of weights that went out a second time: no
    step is due, yet workers find it in the store and may serve it."""
    told = Told()
    room = Room(tmp_path, config, told)
    await room.publisher.publish(learner, 0)
    tensors = learner.policy.published_tensors("float32")
    room.store.publish(tensors, version=1, run_id="r", incarnation=1, step=0, dtype="float32")
    assert await room.publisher.rebroadcast() == 1 and room.publisher.unsettled
    await room.publisher.publish(learner, 0, whole=True)
    assert not room.publisher.unsettled
    assert room.chronicle.ledger.version == 1
    assert [weights.version for weights in told.versions] == [0, 1]
    assert room.store.newest() == told.versions[1]


async def test_a_superseded_trainer_publishes_nothing(
    config: RunConfig, learner: Learner, tmp_path: Path
) -> None:
    told = Told()
    thawed = Room(tmp_path, config, told)
    Room(tmp_path, config, told)
    with pytest.raises(Superseded):
        await thawed.publisher.publish(learner, 0)
    assert told.versions == [] and thawed.store.newest() is None


async def test_the_store_of_another_run_is_refused(
    config: RunConfig, learner: Learner, tmp_path: Path
) -> None:
    room = Room(tmp_path, config, Told())
    tensors = learner.policy.published_tensors("float32")
    room.store.publish(tensors, version=0, run_id="other", incarnation=1, step=0, dtype="float32")
    with pytest.raises(WarrenError, match="holds versions of run other, this is run r"):
        await room.publisher.rebroadcast()
    with pytest.raises(WarrenError, match="version 0 appeared in"):
        await room.publisher.publish(learner, 0)


async def test_whatever_the_store_is_asked_for_is_waited_for_by_name(
    config: RunConfig, learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(tmp_path, config, Told())
    asked = {}
    for name in ("put", "prune", "newest"):
        do = getattr(room.store, name)

        def ask(*args: object, name: str = name, do: object = do, **more: object) -> object:
            asked[name] = room.waits.current()[0]
            return do(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(room.store, name, ask)
    await room.publisher.publish(learner, 0)
    await room.publisher.rebroadcast()
    store = f"the weight store {room.store.where}"
    assert asked == {
        "put": f"{store} to take v0",
        "prune": f"{store} to remove what is old",
        "newest": f"{store} to tell its newest version",
    }
