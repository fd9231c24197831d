"""`run.py dead requeue`: what died gets another chance, through the trainer's books.

The trainer journals the wish. Is the group still open, the message goes back to its queue as a new
attempt; is it closed, its prompt gets another group, for a group cannot be opened again.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.headers import travelling
from infra.amqp.message import Outgoing
from infra.observe.harmless import harmless
from infra.roles.command.dead.desk import (
    Choice,
    add_choice,
    at_desk,
    browse,
    check_found,
    choice_of,
    trainers_word,
)
from infra.roles.command.dead.letter import Letter, granted_anew, why_not
from infra.roles.errors import ExitCode
from schemas.control import RunState
from schemas.headers import Purpose
from schemas.work import Requeue

_CUT = "the connection was lost and the letter lies in the queue again"


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_choice(parser, everything=False)


def run(options: Namespace) -> int:
    """Requeue them; 1 when some were refused.

    Raises:
        BrokerUnreachable: No broker answers.
        ConfigError: There is none such.
        DeadlinePassed: The queue gives none of those that it has.
    """
    choice = choice_of(options)
    done, refused, trained = at_desk(options, lambda broker: requeue(broker, choice))
    if options.json:
        sys.stdout.write(json.dumps({"requeued": done, "refused": refused}) + "\n")
    else:
        lines = [f"requeued {harmless(one['rollout_id'] or one['id'])}" for one in done]
        lines += [f"refused {harmless(one['id'])}: {harmless(one['reason'])}" for one in refused]
        lines.append(f"{len(done)} requeued, {len(refused)} refused")
        if done and not trained:
            lines.append("no trainer is heard: they wait in 'failures' until one runs")
        sys.stdout.write("\n".join(lines) + "\n")
    check_found(choice, [frozenset({one["id"], one["rollout_id"]}) for one in done + refused])
    return ExitCode.FAILED if refused else ExitCode.DONE


async def requeue(
    broker: Broker, choice: Choice
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """Those requeued, those not with their reasons, and whether a trainer is heard."""
    state = await trainers_word(broker)
    done: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    async for letter, delivery in browse(broker, choice):
        one = {"id": letter.id, "rollout_id": letter.rollout_id}
        if reason := why_not(letter) or _not_now(letter, state):
            refused.append({**one, "reason": reason})
            continue
        if not broker.held(delivery):
            refused.append({**one, "reason": f"{_CUT}; it waits for another requeue"})
            continue
        await broker.publish(wish(letter, app_id=broker.app_id))
        if broker.ack(delivery):
            done.append(one)
        else:
            refused.append({**one, "reason": f"{_CUT}, though the trainer has been asked for it"})
    return done, refused, state is not None


def wish(letter: Letter, *, app_id: str) -> Outgoing:
    """The message that makes the trainer requeue it: straight to the queue of its failures."""
    assert letter.headers is not None
    headers = letter.headers.to_amqp()
    envelope, body = encode(
        Requeue(
            letter=letter.id, by=app_id.removeprefix("operator/"), original=granted_anew(letter)
        ),
        app_id=app_id,
        correlation_id=letter.rollout_id,
        headers=travelling(headers),
    )
    return Outgoing(exchange="", routing_key="failures", envelope=envelope, body=body)


def _not_now(letter: Letter, state: RunState | None) -> str:
    """What the trainer would say, as far as it is known."""
    headers = letter.headers
    if state is None or headers is None:
        return ""
    if headers.run_id != state.run_id:
        return f"it belongs to run {headers.run_id!r}, this is run {state.run_id!r}"
    if headers.purpose is Purpose.EVAL and headers.group != state.evaluating:
        return f"the evaluation of version {headers.group} is closed: nobody waits for it"
    return ""
