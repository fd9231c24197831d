"""1 when the last number of the solution is the right one, as GSM8K is scored."""

import re
from decimal import Decimal
from typing import Any

from infra.roles.registry import register

_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*\.?\d*|\.\d+)")


@register("reward", "math_number")
def math_number(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """1.0 when the solution's number equals the ground truth's.

    The number of a text is the one behind its last `####`, or its last number where there is none.

    Raises:
        ValueError: The ground truth holds no number.
    """
    wanted = final_number(str(ground_truth))
    if wanted is None:
        raise ValueError(f"ground truth {ground_truth!r} holds no number")
    return float(final_number(solution_str) == wanted)


def final_number(text: str) -> Decimal | None:
    """The number that a text ends up with; thousands separators and a dollar sign are dropped."""
    _, marker, behind = text.rpartition("####")
    found = _NUMBER.findall(behind) if marker else _NUMBER.findall(text)
    if not found:
        return None
    number = found[0] if marker else found[-1]
    return Decimal(number.replace(",", "").replace("$", "").rstrip("."))
