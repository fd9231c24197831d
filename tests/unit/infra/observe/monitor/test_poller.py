"""The management API may answer anything: it is asked on."""

import threading
from typing import Any

import pytest

from infra.amqp.admin import Management, QueueRow
from infra.observe.monitor import poller
from infra.observe.monitor.poller import Poller


@pytest.mark.parametrize("error", [RecursionError, OverflowError, IndexError, KeyError])
def test_an_answer_that_makes_no_sense_is_told_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    asked: list[str] = []
    third = threading.Event()

    def answer(_management: Management, run: str) -> list[QueueRow]:
        asked.append(run)
        if len(asked) == 3:
            third.set()
        raise error("of no sense\nat all")

    def no_alarms(_management: Management) -> list[Any]:
        return []

    monkeypatch.setattr(poller, "_PERIOD_S", 0.001)
    monkeypatch.setattr(Management, "queues", answer)
    monkeypatch.setattr(Management, "alarms", no_alarms)
    asking = Poller(lambda: "amqp://u:p@h/", run="r")
    asking.start()
    heard = third.wait(30.0)
    asking.stop()
    assert heard
    assert asking.told.error.startswith(f"{error.__name__}: ")
    assert "of no sense" in asking.told.error


def test_an_absurd_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    absurd = 10**400
    rate = {"publish_details": {"rate": float("inf")}}
    queue = {"name": "r.prompts", "messages_ready": absurd, "message_stats": rate}
    queue |= {"arguments": {"x-max-length-bytes": absurd}}
    monkeypatch.setattr(Management, "_get", lambda _management, _path: [queue])
    (row,) = Management("http://u:p@h").queues("r")
    assert (row.num_ready, row.max_bytes, row.publish_rate) == (2**63, 2**63, 2.0**63)
