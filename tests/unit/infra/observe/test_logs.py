"""Log lines and their way to the screen."""

import io
import logging
from pathlib import Path

import pytest

from infra.observe.logs import LineFormatter, alert_level
from infra.observe.relay import LogTail, Relay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(level: int, message: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("x", level, "f.py", 1, message, args, None)
    made.created = 0.0
    return made


def test_lines_name_time_worker_and_what_is_wrong() -> None:
    plain = LineFormatter("rollout-1", colour=False)
    assert plain.format(record(logging.INFO, "took %d", 3))[8:] == " rollout-1  took 3"
    warned = plain.format(record(logging.WARNING, "odd"))
    assert warned[8:] == " rollout-1  WARNING  odd"
    assert alert_level(warned) == "WARNING"
    assert alert_level(plain.format(record(logging.INFO, "WARNING  not one"))) == "WARNING"
    assert alert_level(plain.format(record(logging.INFO, "fine"))) == ""


def test_colour_only_when_wanted() -> None:
    assert "\x1b[" not in LineFormatter("x", colour=False).format(record(logging.ERROR, "e"))
    assert "\x1b[31m" in LineFormatter("x", colour=True).format(record(logging.ERROR, "e"))


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    assert list(tail.lines()) == []
    log.write_text("one\ntwo")
    assert list(tail.lines()) == ["one"]
    with log.open("a") as file:
        file.write("!\nthree")
    assert list(tail.lines()) == ["two!"]
    assert list(tail.lines(last=True)) == ["three"]
    assert list(tail.lines(last=True)) == []


def test_a_role_that_is_started_again_is_followed_into_its_next_log(tmp_path: Path) -> None:
    """Nothing of either is lost, nothing shown twice."""
    screen = io.StringIO()
    relay = Relay(everything_of="trainer", stream=screen)
    first, second = tmp_path / "trainer-1.log", tmp_path / "trainer-1.2.log"
    first.write_text("one\n")
    relay.follow("trainer", "trainer", first)
    relay.pump()
    with first.open("a") as file:
        file.write("its last words")
    second.write_text("two\n")
    relay.follow("trainer", "trainer", second)
    relay.pump(last=True)
    assert screen.getvalue() == "one\nits last words\ntwo\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_screen_shows_the_trainer_and_alarms_of_others(
    tmp_path: Path, stream: type[io.StringIO]
) -> None:
    screen = stream()
    relay = Relay(everything_of="trainer", stream=screen)
    relay.follow("trainer", "trainer", tmp_path / "trainer")
    relay.follow("rollout-1", "rollout", tmp_path / "rollout")
    (tmp_path / "trainer").write_text("12:00:00 trainer  Step 1\n")
    (tmp_path / "rollout").write_text("12:00:00 rollout-1  busy\n12:00:01 rollout-1  ERROR  bad\n")
    relay.pump()
    relay.pump(last=True)
    shown = screen.getvalue()
    assert ("\x1b[" in shown) == (stream is Terminal)
    assert "Step 1" in shown
    assert "ERROR  bad" in shown
    assert "busy" not in shown
    assert shown.count("\n") == 2


def test_what_a_log_quotes_does_not_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "r.log").write_text("12:00:00 reward-1  WARNING  it said \x1b[2J\u202e\n")
    screen = io.StringIO()
    relay = Relay(everything_of="trainer", stream=screen)
    relay.follow("reward-1", "reward", tmp_path / "r.log")
    relay.pump()
    assert screen.getvalue() == "12:00:00 reward-1  WARNING  it said \\x1b[2J\\u202e\n"
