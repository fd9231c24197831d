"""A tracker may be slow, broken or stuck: the run goes on, and it is said once."""

from infra.observe.tracking.feed import Feed
from tests.unit.infra.observe.tracking.tracked import LINE, Broken, Listening, Stuck, tracked


def test_lines_arrive_in_order_and_the_tracker_is_closed(tmp_path):
    feed = Feed("mine", Listening, tracked(tmp_path))
    for step in range(50):
        feed.offer("step", {"step": step})
    feed.close(10)
    tracker = Listening.made[-1]
    assert tracker.heard == [("step", {"step": step}) for step in range(50)]
    assert tracker.closed and tracker.run.name == "r"


def test_one_that_is_stuck_loses_lines_and_holds_nobody_up(tmp_path, caplog):
    feed = Feed("mine", Stuck, tracked(tmp_path), room=2)
    feed.offer("step", LINE)
    tracker = next(one for one in reversed(Listening.made) if isinstance(one, Stuck))
    assert tracker.taken.wait(10)
    for _ in range(5):
        feed.offer("step", LINE)
    feed.close(0.01)
    feed.offer("step", LINE)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "tracker mine is 2 lines behind: it loses some",
        "tracker mine does not end within 0.01 s: left behind",
    ]
    tracker.go_on.set()


def test_one_that_refuses_lines_is_told_of_the_next_ones(tmp_path, caplog):
    feed = Feed("mine", Broken, tracked(tmp_path))
    for kind in ("step", "step", "end"):
        feed.offer(kind, LINE)
    feed.close(10)
    assert Listening.made[-1].heard == [("end", LINE)] and Listening.made[-1].closed
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("tracker mine did not take a line, the run goes on: ConnectionError(")


def test_one_that_cannot_begin_is_gone_without(tmp_path, caplog):
    def make(run):
        raise PermissionError("no account")

    feed = Feed("mine", make, tracked(tmp_path), room=1)
    for _ in range(9):
        feed.offer("step", LINE)
    feed.close(10)
    (said,) = {record.getMessage() for record in caplog.records} - {
        "tracker mine is 1 lines behind: it loses some"
    }
    assert said == "tracker mine cannot begin, the run goes on without it: " + repr(
        PermissionError("no account")
    )
