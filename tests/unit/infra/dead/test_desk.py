"""At the desk: what the broker gives out again is not done, and nobody waits for ever."""

import asyncio
from argparse import ArgumentParser
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from infra.amqp.message import Delivery, Outgoing
from infra.roles.command.dead import drop as dropping
from infra.roles.command.dead import requeue as requeueing
from infra.roles.command.dead.desk import Choice, add_choice, browse, choice_of
from infra.roles.command.dead.letter import STAGES
from infra.roles.errors import DeadlinePassed, ExitCode
from schemas.work import FailureKind
from tests.factories.deliveries import delivery
from tests.unit.infra.dead.test_letters import failed, message


class Desk:
    """A broker with a queue of letters, whose acknowledgements come to what `acks` says."""

    app_id = "operator/ana"

    def __init__(self, letters: list[Delivery], *, acks: list[bool], held: bool = True) -> None:
        self._letters = letters
        self._acks = iter(acks)
        self._held = held
        self.published: list[Outgoing] = []

    async def depth(self, queue: str) -> tuple[int, int]:
        return len(self._letters), 0

    async def take(self, queue: str, *, limit: int) -> list[Delivery]:
        taken, self._letters = self._letters[:limit], self._letters[limit:]
        return taken

    async def publish(self, outgoing: Outgoing) -> None:
        self.published.append(outgoing)

    def held(self, delivery: Delivery) -> bool:
        return self._held

    def ack(self, delivery: Delivery) -> bool:
        return next(self._acks)


def named(*ids: str) -> list[Delivery]:
    died = message().envelope
    return [delivery("dead_letters", replace(died, message_id=name), b"x") for name in ids]


@pytest.mark.parametrize(
    ("ids", "acks", "dropped", "kept", "cut"),
    [
        ("abc", [True, True, True], "abc", "", False),
        ("abc", [True, False, True], "ac", "b", True),
        ("aba", [False, True, True], "ba", "", True),
        ("aab", [False, False, True], "b", "aa", True),
    ],
)
async def test_only_what_was_acknowledged_was_dropped(
    ids: str, acks: list[bool], dropped: str, kept: str, cut: bool
) -> None:
    desk: Any = Desk(named(*ids), acks=acks)
    outcome = await dropping.drop(desk, Choice(), sure=True)
    assert (outcome.dropped, outcome.kept, outcome.cut) == ([*dropped], [*kept], cut)
    assert len(outcome.found) == len(ids)


@pytest.mark.parametrize(("kept", "code"), [([], 0), (["b\x1b[2J"], 1)])
def test_what_was_not_dropped_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept: list[str], code: int
) -> None:
    outcome = dropping.Outcome([frozenset("a")], ["a"], kept, cut=bool(kept))
    monkeypatch.setattr(dropping, "at_desk", lambda options, work: outcome)
    options: Any = SimpleNamespace(
        ids=[], reason="", stage="", kind="", all=True, yes=True, json=False
    )
    assert dropping.run(options) == code
    said = capsys.readouterr().out
    assert "1 dropped" in said and "\x1b" not in said
    assert ("not dropped b" in said, "dead list" in said) == (bool(kept), bool(kept))


@pytest.mark.parametrize(
    ("held", "acks", "wishes", "reason"),
    [
        (True, [True], 1, ""),
        (True, [False], 1, "the trainer has been asked"),
        (False, [], 0, "waits for another requeue"),
    ],
)
async def test_a_letter_that_lies_there_again_was_not_requeued(
    monkeypatch: pytest.MonkeyPatch, held: bool, acks: list[bool], wishes: int, reason: str
) -> None:
    async def nobody(broker: object) -> None:
        return None

    monkeypatch.setattr(requeueing, "trainers_word", nobody)
    desk: Any = Desk([failed(message(), kind=FailureKind.DATA)], acks=acks, held=held)
    done, refused, _ = await requeueing.requeue(desk, Choice())
    assert [one["id"] for one in done] == ([] if reason else ["m.dead"])
    assert [reason in one["reason"] for one in refused] == ([True] if reason else [])
    assert len(desk.published) == wishes


async def test_a_queue_that_gives_nothing_is_not_waited_for_for_ever() -> None:
    class Stuck(Desk):
        async def take(self, queue: str, *, limit: int) -> list[Delivery]:
            await asyncio.Event().wait()
            return []

    desk: Any = Stuck(named("a", "b"), acks=[])
    with pytest.raises(DeadlinePassed, match=r"'dead_letters' has 2 more") as failure:
        async for _ in browse(desk, Choice(), timeout_s=0.01):
            pass
    assert failure.value.exit_code == 5


def test_a_stage_that_is_none_is_told_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = ArgumentParser()
    add_choice(parser, everything=True)
    assert choice_of(parser.parse_args(["--stage", "reward"])).stage == "reward"
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--stage", "rewards"])
    assert left.value.code == ExitCode.USAGE
    said = capsys.readouterr().err
    assert all(stage in said for stage in STAGES)
