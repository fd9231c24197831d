"""Text of strangers, made harmless for a terminal."""

import unicodedata


def harmless(text: str, *, limit: int | None = None, lines: bool = False) -> str:
    r"""Every control, format and surrogate character as an escape: `\x1b`, `\u202e`.

    They would move the cursor, rewrite what was printed before, or turn the reading direction.

    Args:
        text: Whatever came over a queue.
        limit: Characters kept; a longer text ends in an ellipsis.
        lines: Keep line ends.
    """
    cut = limit is not None and len(text) > limit
    kept = text[:limit]
    shown = "".join(
        c
        if (lines and c == "\n") or unicodedata.category(c)[0] not in "CZ" or c == " "
        else _escape(c)
        for c in kept
    )
    return shown + "…" if cut else shown


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
