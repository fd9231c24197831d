"""The fence after a reconnect: held again, fought for, or the connection begins again."""

from types import SimpleNamespace
from typing import Any

import pytest
from pika import exceptions

from infra.amqp.io.control import Control


class Connection:
    """One whose channels the broker refuses."""

    is_closed = False

    def channel(self, **_: Any) -> None:
        raise exceptions.ChannelWrongStateError("no channel")


@pytest.mark.parametrize(("same", "dropped"), [(True, 1), (False, 0)])
async def test_a_fence_that_cannot_be_taken_again_is_never_just_given_up(
    same: bool, dropped: int
) -> None:
    connection, drops = Connection(), []
    control = Control("r", "trainer/0", reclaim_s=1.0, on_fatal=drops.append)
    link: Any = SimpleNamespace(
        connection=connection if same else Connection(), broken=drops.append
    )
    control.link = link
    await control._reclaim("trainer", connection, 1)
    assert len(drops) == dropped
    assert not control.holds("trainer")
