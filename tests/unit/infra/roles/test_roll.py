"""Who has to answer a command, and what is said of who did not."""

from infra.roles.command.control import operator
from infra.roles.command.roll import Roll, line
from schemas.control import Command, CommandAck, Heartbeat, Verb


def beat(role: str, worker: str = "1", state: str = "running", *, run_id: str = "a") -> Heartbeat:
    return Heartbeat(run_id=run_id, role=role, worker=worker, host="h", pid=1, state=state)


def ack(command: Command, role: str, *, done: bool = True, detail: str = "") -> CommandAck:
    return CommandAck(
        run_id=command.run_id,
        role=role,
        worker="1",
        host="h",
        verb=command.verb,
        number=command.number,
        by=command.by,
        done=done,
        detail=detail,
    )


def roll(verb: Verb = "pause") -> Roll:
    return Roll(Command(run_id="a", verb=verb, number=5, by="me"), settled=True)


def unsettled() -> Roll:
    return Roll(Command(run_id="", verb="stop", number=5, by="me"))


def test_everybody_who_is_heard_has_to_do_it() -> None:
    ours = roll()
    assert not ours.complete
    assert ours.missing_text() == "nobody of this run was heard"
    for role in ("trainer", "rollout"):
        ours.beat(beat(role), 0.0)
    ours.ack(ack(ours.command, "trainer"), 1.0)
    ours.ack(ack(ours.command, "rollout", done=False, detail="2 left"), 1.0)
    assert not ours.complete
    assert ours.missing_text() == "1 of 2 have not done it: rollout/1 on h heard: 2 left"
    ours.ack(ack(ours.command, "rollout"), 2.0)
    assert ours.complete
    ours.beat(beat("reward"), 3.0)
    assert "reward/1 on h no answer" in ours.missing_text()


def test_answers_to_others_do_not_count() -> None:
    ours = roll()
    for other in (
        Command(run_id="a", verb="pause", number=5, by="you"),
        Command(run_id="a", verb="pause", number=4, by="me"),
        Command(run_id="b", verb="pause", number=5, by="me"),
    ):
        ours.ack(ack(other, "trainer"), 0.0)
    assert not ours.roles


def test_the_run_is_the_one_whose_trainer_speaks_and_other_runs_roles_are_not_waited_for() -> None:
    ours = unsettled()
    ours.beat(beat("rollout", run_id="old"), 0.0)
    ours.beat(beat("reward", run_id=""), 0.0)
    ours.beat(beat("trainer", run_id="old", state="left"), 0.0)
    assert not ours.settled and ours.heard_run_id == "old"
    ours.beat(beat("trainer", run_id="new"), 1.0)
    assert ours.settled and ours.command.run_id == "new"
    ours.beat(beat("rollout", "2", run_id="old"), 2.0)
    assert list(ours.roles) == ["reward/1", "trainer/1"]
    ours.beat(beat("trainer", run_id="old", state="left"), 3.0)
    assert not ours.roles["trainer/1"].left


def test_where_nobody_belongs_to_a_run_yet_the_first_is_meant() -> None:
    ours = unsettled()
    ours.beat(beat("trainer", run_id=""), 0.0)
    ours.settle(ours.heard_run_id)
    assert ours.command.run_id == "" and list(ours.roles) == ["trainer/1"]
    ours.beat(beat("trainer", run_id="a"), 1.0)
    ours.beat(beat("rollout", run_id="b"), 1.0)
    assert ours.command.run_id == "a" and list(ours.roles) == ["trainer/1"]


def test_without_a_trainer_nothing_is_done() -> None:
    ours = roll()
    ours.ack(ack(ours.command, "rollout"), 0.0)
    assert not ours.complete
    assert "no trainer was heard" in ours.missing_text() and "--resume" in ours.hint()


def test_who_leaves_meanwhile_is_not_waited_for() -> None:
    ours = roll()
    for role in ("reward", "trainer"):
        ours.beat(beat(role), 0.0)
    ours.ack(ack(ours.command, "trainer"), 1.0)
    assert not ours.over
    ours.beat(beat("reward", state="left"), 1.0)
    ours.beat(beat("rollout", state="left"), 1.0)
    assert list(ours.roles) == ["trainer/1"] and ours.complete and ours.over


def test_after_a_stop_everybody_has_to_hand_over_before_it_leaves() -> None:
    ours = roll("stop")
    for role in ("reward", "rollout", "trainer"):
        ours.ack(ack(ours.command, role, done=role != "rollout"), 0.0)
        assert not ours.over
        ours.beat(beat(role, state="left"), 1.0)
    assert ours.over and not ours.complete
    assert "rollout/1 on h heard: left without handing over" in ours.missing_text()


def test_strangers_names_do_not_reach_the_terminal_as_they_are() -> None:
    ours = roll()
    ours.beat(beat("rollout", "\x1b[2Jx"), 0.0)
    assert line(ours.roles["rollout/\x1b[2Jx"]) == "rollout/\\x1b[2Jx on h no answer"


def test_operators_are_told_apart() -> None:
    assert operator() != operator()
