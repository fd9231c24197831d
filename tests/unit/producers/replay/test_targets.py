"""Where replayed messages go: a file of its own name, a queue that is there."""

import errno
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from infra.amqp.errors import Unroutable
from infra.amqp.message import Envelope, Outgoing
from infra.roles.errors import ConfigError
from producers.replay.dump import from_line
from producers.replay.pace import Pace
from producers.replay.recorded import Recorded
from producers.replay.replaying import Replaying
from producers.replay.selection import Selection
from producers.replay.targets import FileTarget, QueueTarget


def message(number: int, *, kind: str = "Rollout") -> Recorded:
    envelope = Envelope(
        message_id=f"m{number}", type=kind, correlation_id="", app_id="", headers={}, timestamp=0
    )
    return Recorded(number, envelope, b"{}")


def offsets(path: Path) -> list[int]:
    lines = path.read_bytes().splitlines(keepends=True)
    return [from_line(line, where="here").offset for line in lines]


async def test_two_that_write_one_name_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    one, other = FileTarget(path), FileTarget(path)
    await one.send([message(1), message(2)])
    await other.send([message(3)])
    assert not path.exists()
    one.finish()
    with pytest.raises(ConfigError, match=r"x\.jsonl exists: it was written meanwhile"):
        other.finish()
    one.discard()
    other.discard()
    assert offsets(path) == [1, 2]
    assert list(tmp_path.iterdir()) == [path]


async def test_a_file_system_without_links_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(_source: Path, _name: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "x.jsonl"
    one, other = FileTarget(path), FileTarget(path)
    await one.send([message(1)])
    one.finish()
    with pytest.raises(ConfigError, match="exists"):
        other.finish()
    assert offsets(path) == [1]


class NoQueues:
    """A broker that has none."""

    run = "r"

    async def publish_all(self, messages: Sequence[Outgoing]) -> None:
        raise Unroutable(f"no queue takes queue / {messages[0].routing_key}", hint="mistyped?")


async def test_a_queue_that_is_not_there_is_a_wrong_command_line() -> None:
    target = QueueTarget(NoQueues(), "rolouts", "r1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no queue takes queue / rolouts") as caught:
        await target.send([message(1)])
    assert "rollouts" in caught.value.hint


async def test_no_type_of_a_stranger_steers_the_terminal() -> None:
    async def messages() -> AsyncGenerator[Recorded]:
        yield message(1, kind="\x1b[2J\u202e")
        yield message(2, kind="x" * 250)

    replaying = Replaying("r1", Selection(), None, Pace(float("inf")))
    await replaying.run(messages())
    lines = replaying.summary().splitlines()
    assert lines[2:] == ["        1 \\x1b[2J\\u202e", f"        1 {'x' * 80}…"]
