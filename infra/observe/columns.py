"""Plain tables for terminals, files and pipes."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """One line for each row, two spaces between columns; the first is flush left, others right.

    Args:
        rows: All of the same length; at least one.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(f"  {_line(row, widths)}\n" for row in rows)


def trimmed(text: str) -> str:
    """Text without blanks at the ends of its lines, as padding leaves them."""
    return "\n".join(line.rstrip(" ") for line in text.split("\n"))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    cells = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
    return "  ".join(cells).rstrip()
