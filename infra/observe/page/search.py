"""Which rollouts say something: a scan over the journal's bodies, remembered and continued.

The raw bytes are looked at first; only a body that may hold the text is parsed.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from infra.amqp.codec import inflate
from infra.amqp.errors import BadMessage
from infra.observe.page.facts import Row
from infra.observe.page.index import Index
from infra.runs.frames import PREFIX_BYTES, frame_bytes, read_frame

REMEMBERED = 8
MAX_CHARS = 200
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, BadMessage)
"""What a body may raise in a journal that nobody of ours has written."""


class Search:
    """Texts that were looked for in one run."""

    def __init__(self, index: Index, journal: Path) -> None:
        self._index = index
        self._journal = journal
        self._found: OrderedDict[str, tuple[int, set[int]]] = OrderedDict()
        self._rows: list[Row] = index.rows

    def numbers(self, text: str) -> set[int]:
        """Numbers of the rows that hold a text: in a message, a call, a tool's result, an error
        or the id. Case is ignored."""
        needle = text[:MAX_CHARS].casefold()
        with self._index.lock:
            rows = self._index.rows
            if rows is not self._rows:  # the index began anew: numbers mean other rows
                self._rows = rows
                self._found.clear()
            start, found = self._found.pop(needle, (0, set()))
            rows = rows[start:]
        for row, body in _bodies(self._journal, rows):
            told = row.rollout_id.casefold(), row.error.casefold()
            if any(needle in text for text in told) or _holds(body, needle, row.compressed):
                found.add(row.number)
        with self._index.lock:
            self._found[needle] = (start + len(rows), found)
            while len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return found


def _bodies(journal: Path, rows: Sequence[Row]) -> Iterator[tuple[Row, bytes]]:
    """Bodies in order of arrival; empty where one cannot be read any more."""
    file: IO[bytes] | None = None
    name = ""
    for row in rows:
        if row.position.segment != name:
            if file is not None:
                file.close()
            name = row.position.segment
            path = journal / name
            file = path.open("rb") if path.is_file() else None
        yield row, _body(file, row.position.offset)
    if file is not None:
        file.close()


def _body(file: IO[bytes] | None, offset: int) -> bytes:
    if file is None:
        return b""
    file.seek(offset)
    data = file.read(PREFIX_BYTES)
    if len(data) < PREFIX_BYTES:
        return b""
    frame = read_frame(data + file.read(frame_bytes(data) - PREFIX_BYTES), 0)
    return b"" if isinstance(frame, str) else frame.body


def _holds(body: bytes, needle: str, compressed: bool) -> bool:
    if not body:
        return False
    try:
        raw = inflate(body, "zstd" if compressed else None)
        if needle.isascii() and orjson.dumps(needle)[1:-1] not in raw.lower():
            return False
        return any(needle in text.casefold() for text in _texts(orjson.loads(raw)))
    except _UNREADABLE:
        return False


def _texts(message: Any) -> Iterator[str]:
    """Everything that somebody said in a trajectory or a failure."""
    if not isinstance(message, dict):
        return
    for key in ("error", "traceback"):
        if isinstance(text := message.get(key), str):
            yield text
    progress = message.get("rollout", {}).get("progress", {})
    for said in progress.get("messages", ()):
        yield said["content"]
        for call in said["tool_calls"]:
            yield call["function"]["name"]
            yield call["function"]["arguments"]
    for result in progress.get("tool_results", ()):
        yield result["content"]
