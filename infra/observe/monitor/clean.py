"""Text and numbers for a terminal. Text may come from anywhere: nothing in it may steer it."""

import math
import unicodedata

MAX_CHARS = 400


def clean(text: str, limit: int = MAX_CHARS) -> str:
    """One line without control characters, escape sequences, or marks that turn text around."""
    line = " ".join(text[: 4 * limit].split())
    shown = "".join("·" if unicodedata.category(c)[0] == "C" else c for c in line)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def human_bytes(count: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_count(count: float) -> str:
    """`950`, `18.2k`, `3.1M`."""
    if abs(count) < 10_000:
        return f"{count:.0f}"
    return f"{count / 1e3:.1f}k" if abs(count) < 1e6 else f"{count / 1e6:.1f}M"


def human_seconds(seconds: float) -> str:
    """`12 ms`, `1.5 s`, `9 s`, `3 min`, `1.5 h`."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if 0 < seconds < 3 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def sparkline(values: tuple[float, ...], width: int) -> str:
    """The newest `width` values as blocks between their smallest and largest."""
    newest = [value / 2 for value in values[-width:] if math.isfinite(value)]
    low, high = min(newest, default=0.0), max(newest, default=0.0)
    span = high - low  # of halves: that of any two floats is finite
    if not span:
        return "▄" * len(newest)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * ((value - low) / span))] for value in newest)
