"""Which members are lost: never those that somebody holds, few while work flows."""

from consumers.trainer.books.evaluation import OpenEvaluation
from consumers.trainer.books.group import Member, MemberState, OpenGroup
from consumers.trainer.books.silence import Asked, Silence
from schemas.headers import Purpose


def asked(number: int, *, attempt: int = 0, confirmed: bool = True) -> Asked:
    """One member of two is out."""
    return Asked(
        purpose=Purpose.TRAIN, number=number, attempt=attempt, confirmed=confirmed, pending=(0,)
    )


def lost(silence: Silence, all_asked: list[Asked], now: float) -> dict[int, tuple[int, ...]]:
    """With a grace of 30 s and a patience of 600 s."""
    found = silence.missing(all_asked, now=now, grace_s=30, after_s=600)
    return {one.number: indexes for one, indexes in found}


def test_silent_members_are_lost_when_all_queues_are_empty() -> None:
    every, silence = [asked(n) for n in range(40)], Silence()
    silence.observe(every, held=frozenset(), empty=True, now=0)
    assert lost(silence, every, 29) == {}
    silence.observe(every, held=frozenset({"3.0"}), empty=True, now=29)
    assert lost(silence, every, 31) == {n: (0,) for n in range(40) if n != 3}
    silence.observe(every, held=frozenset(), empty=False, now=31)
    assert lost(silence, every, 62) == {}


def test_while_work_flows_a_tenth_is_out_again_at_once() -> None:
    """A fleet that is merely slow: nothing comes back, and the requests do not pile up."""
    every, silence = [asked(n) for n in range(40)], Silence()
    silence.observe(every, held=frozenset(), empty=False, now=0)
    assert lost(silence, every, 599) == {}
    for now in range(600, 5000, 5):
        silence.observe(every, held=frozenset(), empty=False, now=now)
        for one, indexes in silence.missing(every, now=now, grace_s=30, after_s=600):
            silence.asked(one, indexes, now)
            every[one.number] = asked(one.number, attempt=one.attempt + 1)
    assert sorted(one.attempt for one in every) == [0] * 36 + [1] * 4


def test_the_next_ones_follow_when_those_are_held_or_back() -> None:
    every, silence = [asked(n) for n in range(20)], Silence()
    silence.observe(every, held=frozenset(), empty=False, now=0)
    for one, indexes in silence.missing(every, now=600, grace_s=30, after_s=600):
        silence.asked(one, indexes, 600)
    silence.observe(every, held=frozenset(), empty=False, now=605)
    assert lost(silence, every, 605) == {}
    silence.observe(every, held=frozenset({"0.0"}), empty=False, now=610)
    assert lost(silence, every, 610) == {2: (0,)}
    silence.observe(every[2:], held=frozenset(), empty=False, now=615)
    assert lost(silence, every[2:], 615) == {2: (0,)}


def test_patience_doubles_and_unconfirmed_credits_are_left_alone() -> None:
    every, silence = [asked(0, attempt=2), asked(1, confirmed=False)], Silence()
    silence.observe(every, held=frozenset(), empty=False, now=0)
    assert lost(silence, every, 2399) == {}
    assert lost(silence, every, 2400) == {0: (0,)}


def test_members_that_failed_are_not_out() -> None:
    """They are asked for again at once, by another rule."""
    members = [Member(attempt=0, min_version=0) for _ in range(4)]
    members[1].state, members[2].failed = MemberState.USABLE, True
    group = OpenGroup(number=7, members=members, min_version=0, confirmed=True)
    one = Asked.of_group(group)
    assert one.pending == (0, 3) and one.name(3) == "7.3"


def test_evaluations_are_looked_after_too() -> None:
    evaluation = OpenEvaluation(4, 3, confirmed=True, attempt=1, rewards={1: 0.5}, failed={2})
    one = Asked.of_evaluation(evaluation)
    assert (one.purpose, one.number, one.attempt) == (Purpose.EVAL, 4, 1)
    assert one.pending == (0,) and one.name(0) == "eval4.0"
