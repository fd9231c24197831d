"""The management API may answer anything: it is asked on."""

import threading

import pytest

from infra.amqp.admin import Management
from infra.amqp.errors import ManagementUnreachable
from infra.observe.monitor import poller
from infra.observe.monitor.poller import Poller


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [5],
        [{"name": "r.prompts", "messages_ready": "many"}],
        [{"name": "r.prompts", "messages_ready": float("inf")}],
        [{"name": "r.prompts", "message_stats": [1]}],
        [{"name": "r.prompts", "arguments": "none\nat all"}],
    ],
)
def test_an_answer_that_makes_no_sense_is_told_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    asked: list[str] = []
    third = threading.Event()

    def get(_management: Management, path: str) -> object:
        asked.append(path)
        if len(asked) == 3:
            third.set()
        return answer

    monkeypatch.setattr(poller, "_PERIOD_S", 0.001)
    monkeypatch.setattr(Management, "_get", get)
    asking = Poller(lambda: "amqp://u:p@h/", run="r")
    asking.start()
    heard = third.wait(30.0)
    asking.stop()
    assert heard
    assert asking.told.error.startswith("GET /api/queues/%2F at http://h:15672: an answer of no ")


@pytest.mark.parametrize("named", ["http://[", "h:15672", "gopher://h"])
def test_a_management_url_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("WARREN_MANAGEMENT_URL", named)
    asking = Poller(lambda: "amqp://u:p@h/", run="r")
    with pytest.raises(ManagementUnreachable):
        asking._ask()


def test_an_absurd_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    absurd = 10**400
    rate = {"publish_details": {"rate": float("inf")}}
    queue = {"name": "r.prompts", "messages_ready": absurd, "message_stats": rate}
    queue |= {"arguments": {"x-max-length-bytes": absurd}}
    monkeypatch.setattr(Management, "_get", lambda _management, _path: [queue])
    (row,) = Management("http://u:p@h").queues("r")
    assert (row.num_ready, row.max_bytes, row.publish_rate) == (2**63, 2**63, 2.0**63)
