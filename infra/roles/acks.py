"""Answers to operators' commands, over `events`.

    Command --> heard --> the trainer's RunState wants the same --> nothing left to do --> done
       again --> the answer again
    stop -----> heard --> ... the role has handed over ... --> done: its last word

An answer may be lost: whoever misses it sends the command once more.
"""

import asyncio
import contextlib
import socket

from infra.roles.context import RoleContext
from schemas.base import Message
from schemas.control import WISHES, Command, CommandAck, Wanted

_GLANCE_S = 0.2


async def answer_commands(context: RoleContext) -> None:
    """Answer each command until cancelled: once when it is heard, once when it is done."""
    while True:
        await context.asked.wait()
        command = context.command
        assert command is not None
        said: bool | None = None
        while context.command is command and not said:
            ack = ack_of(context, command)
            if context.asked.is_set() or ack.done:
                context.asked.clear()
                await _emit(context, ack)
                said = ack.done
            if not said:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GLANCE_S):
                        await context.asked.wait()


async def say_done_with_stop(context: RoleContext) -> None:
    """If an operator stopped this role: it has handed over and leaves now."""
    if context.command is not None and context.command.verb == "stop":
        await _emit(context, _ack(context, context.command, True, "handed over, left"))


def ack_of(context: RoleContext, command: Command) -> CommandAck:
    """The answer as of now."""
    wish, state = WISHES[command.verb], context.run_state
    if wish is Wanted.STOPPED:
        return _ack(context, command, False, "handing over")
    if state is None:
        return _ack(context, command, False, "the trainer's word has not come yet")
    if state.wanted is not wish:
        return _ack(context, command, False, f"the trainer wants the run {state.wanted}")
    if context.stands is None:
        return _ack(context, command, True, "nothing taken up yet")
    standing = context.stands(wish)
    return _ack(context, command, standing.reached, standing.detail)


def _ack(context: RoleContext, command: Command, done: bool, detail: str) -> CommandAck:
    return CommandAck(
        run_id=context.known_run_id or "",
        role=context.role,
        worker=context.worker,
        host=socket.gethostname(),
        verb=command.verb,
        number=command.number,
        by=command.by,
        done=done,
        detail=detail,
    )


async def _emit(context: RoleContext, message: Message) -> None:
    from infra.amqp.codec import encode
    from infra.amqp.message import Outgoing

    headers = {"run_id": context.known_run_id or ""}
    envelope, body = encode(
        message, app_id=context.app_id, correlation_id=context.worker, headers=headers
    )
    await context.broker.emit(
        Outgoing(exchange="events", routing_key="reply", envelope=envelope, body=body)
    )
