"""Letters as text and as JSON. Whatever they hold is a stranger's: nothing of it is a command."""

import time
from typing import Any

import orjson

from infra.amqp.errors import BadMessage
from infra.observe.columns import trimmed
from infra.observe.harmless import harmless
from infra.roles.command.dead.letter import Letter, read_original, why_not

MAX_BODY_CHARS = 20_000
"""Of the message that died, in `show` without `--json`."""
_COLUMNS = ("id", "stage", "kind", "tries", "when", "error")


def to_json(letter: Letter, *, whole: bool) -> dict[str, Any]:
    """For machines.

    Args:
        whole: With traceback and the message that died.
    """
    headers = letter.headers
    fields: dict[str, Any] = {
        "id": letter.id,
        "type": letter.type,
        "rollout_id": letter.rollout_id,
        "group": None if headers is None else headers.group,
        "purpose": None if headers is None else headers.purpose,
        "run_id": None if headers is None else headers.run_id,
        "stage": letter.stage,
        "kind": letter.kind,
        "attempts": letter.attempts,
        "worker": letter.worker,
        "at": letter.at,
        "size_bytes": letter.size_bytes,
        "error": letter.error,
        "cannot_be_requeued": why_not(letter),
    }
    if whole:
        original = letter.original
        fields["traceback"] = letter.traceback
        fields["headers"] = None if headers is None else headers.model_dump(mode="json")
        fields["original"] = None if original is None else original.model_dump(mode="json")
    return fields


def table(letters: list[Letter]) -> str:
    """One line each."""
    rows = [_COLUMNS, *map(_row, letters)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    return trimmed("\n".join(lines) + "\n")


def page(letter: Letter) -> str:
    """Everything about one."""
    facts = {
        "rollout": letter.rollout_id or "none",
        "given up by": f"{letter.stage} ({letter.worker or 'unknown worker'}), {_when(letter.at)}",
        "kind": f"{letter.kind}, tried {letter.attempts} times",
        "headers": _headers(letter),
        "can be requeued": f"no: {why}" if (why := why_not(letter)) else "yes",
    }
    lines = [f"--- {harmless(letter.id)}"]
    lines += [f"{name:<16} {harmless(text)}" for name, text in facts.items()]
    lines += ["error", _indented(letter.error)]
    if letter.traceback:
        lines += ["traceback", _indented(letter.traceback)]
    lines += _original(letter)
    return trimmed("\n".join(lines) + "\n")


def _row(letter: Letter) -> tuple[str, ...]:
    first = letter.error.splitlines()[0] if letter.error else ""
    return (
        harmless(letter.id, limit=60),
        harmless(letter.stage, limit=12),
        harmless(letter.kind, limit=8),
        str(letter.attempts),
        _when(letter.at),
        harmless(first, limit=120),
    )


def _original(letter: Letter) -> list[str]:
    original = letter.original
    if original is None:
        return []
    what = f"the message that died: {original.type} in {original.queue}, {original.message_id}"
    try:
        body = orjson.dumps(read_original(original).model_dump(mode="json"), option=_INDENT)
        text = body.decode()
    except BadMessage as error:
        text = f"cannot be read: {error.reason}"
    more = len(text) - MAX_BODY_CHARS
    rest = [f"  ... {more} characters more: --json has all"] if more > 0 else []
    return [harmless(what), _indented(text[:MAX_BODY_CHARS]), *rest]


_INDENT = orjson.OPT_INDENT_2


def _headers(letter: Letter) -> str:
    if letter.headers is None:
        return "none of ours"
    fields = letter.headers.model_dump(mode="json", exclude_defaults=True)
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {harmless(line)}" for line in text.splitlines())


def _when(at: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"
