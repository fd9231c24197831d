"""What a stranger wrote does nothing to the terminal that shows it."""

import pytest

from infra.observe.harmless import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain öß 中", "plain öß 中"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert harmless(text) == shown
    harmless(text).encode()


def test_lines_and_lengths() -> None:
    assert harmless("a\nb\x00", lines=True) == "a\nb\\x00"
    assert harmless("abcdef", limit=3) == "abc…"
    assert harmless("abc", limit=3) == "abc"
