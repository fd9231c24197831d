"""Plain tables: their lines end with their last word."""

from infra.observe.columns import columns, trimmed
from infra.roles.command.describe import describe_config


def test_columns_are_aligned_and_end_with_their_last_cell() -> None:
    assert columns([("a", "bb", ""), ("ccc", "d", "")]) == "  a    bb\n  ccc   d\n"


def test_padding_at_the_ends_of_lines_is_cut_and_nothing_else() -> None:
    assert trimmed("  a  \n\n   \n\tb\t \n") == "  a\n\n\n\tb\t\n"


def test_the_description_of_a_recipe_has_no_padding() -> None:
    text = describe_config()
    assert text == trimmed(text)
