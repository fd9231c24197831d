"""A scoring process: `python -m consumers.reward.child <socket> <function> ...`

    load the functions -> {"ready": true}, or {"config_error": ..., "hint": ...}
    loop:  rollout JSON -> function 1 -> answer -> function 2 -> answer ... -> next rollout

Each answer is sent as it is known, so that the role times each call and can blame the right one.
The process dies with the role. What functions print goes to the role's standard error.
"""

import asyncio
import io
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import orjson

from consumers.reward.call import Scorer
from consumers.reward.frames import frame, read_frame
from consumers.reward.view import RolloutView
from infra.roles.errors import ConfigError
from infra.roles.prctl import die_with
from infra.roles.registry import resolve

_MAX_CHARS = 20_000
"""Of an error, from its beginning, and of a traceback, from its end."""


def main(arguments: Sequence[str]) -> None:
    """Serve one socket until its other end is closed."""
    die_with(os.getppid())()
    os.dup2(2, 1)
    connection = socket.socket(fileno=int(arguments[0]))
    loop = asyncio.new_event_loop()
    try:
        scorers = [_load(use) for use in arguments[1:]]
    except ConfigError as error:
        _send(connection, {"config_error": error.args[0], "hint": error.hint})
        return
    _send(connection, {"ready": True})
    with io.BufferedReader(connection.makefile("rb", buffering=0), 1 << 16) as stream:
        while (body := read_frame(stream)) is not None:
            view = RolloutView(orjson.loads(body))
            for scorer in scorers:
                answer = _answer(scorer, view, loop)
                _send(connection, answer)
                if "error" in answer:
                    break


def _load(use: str) -> Scorer:
    """A user's module may raise anything while it is imported: that is the recipe's fault."""
    try:
        return Scorer.of(use, resolve("reward", use))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"reward {use!r} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"raised in {last.filename}:{last.lineno}",
        ) from error


def _answer(scorer: Scorer, view: RolloutView, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Call a user's function. This is the boundary: whatever it raises becomes an answer."""
    started = time.perf_counter()
    try:
        score = scorer(view, loop)
    except (Exception, SystemExit) as error:
        return {
            "error": _encodable(f"{type(error).__name__}: {error}"[:_MAX_CHARS]),
            "traceback": _encodable("".join(traceback.format_exception(error))[-_MAX_CHARS:]),
            "seconds": time.perf_counter() - started,
        }
    return {
        "score": score.value,
        "extras": score.extras,
        "seconds": time.perf_counter() - started,
    }


def _encodable(text: str) -> str:
    """Lone surrogates become question marks: the answer travels as JSON."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(frame(orjson.dumps(answer)))


if __name__ == "__main__":
    main(sys.argv[1:])
