"""Headers of received messages that travel on in ours."""

from collections.abc import Mapping

from infra.amqp.codec import CHECKSUM
from schemas.headers import HEADER_NAMES, REPLAY

MAX_TEXT_BYTES = 1024
MAX_ID_BYTES = 200
MAX_HEADERS_BYTES = 8 * 1024
_OURS = HEADER_NAMES | {CHECKSUM}
_INT64 = 1 << 63


def travelling(headers: Mapping[str, str | int]) -> dict[str, str | int]:
    """Ours first, then a stranger's as far as they fit into a message, none of the broker's
    (`x-death`, `x-delivery-count`, ...)."""
    kept: dict[str, str | int] = {}
    room = MAX_HEADERS_BYTES
    names = list(headers)
    if not _OURS.issuperset(names):
        names.sort(key=lambda name: name not in _OURS)
    for name in names:
        value = headers[name]
        size = len(value.encode()) if isinstance(value, str) else 8
        fits = size <= MAX_TEXT_BYTES if isinstance(value, str) else -_INT64 <= value < _INT64
        size += len(name.encode())
        if fits and size <= room and not name.startswith("x-"):
            kept[name] = value
            room -= size
    if REPLAY in headers:
        kept.setdefault(REPLAY, "unknown")  # whatever it said: what comes of it counts nowhere
    return kept


def short(text: str) -> str:
    """What AMQP can carry of an id: a stranger's bytes grow where they were no text."""
    return text.encode()[:MAX_ID_BYTES].decode("utf-8", "ignore")
