"""What the demo must have shown when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REWARD_FINAL = 0.9
RESUMED = 50
RESUMED_ELSEWHERE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One thing that was to be reached."""

    name: str
    reached: bool
    shown: str


def judge(summary: Mapping[str, Any]) -> list[Mark]:
    """Every mark, from `summary.json`; what was not measured is not reached."""
    ledger = summary.get("ledger") or {}
    return [
        _at_least(summary, "reward_final", REWARD_FINAL),
        _at_least(summary, "snapshots_resumed", RESUMED),
        _at_least(summary, "snapshots_resumed_elsewhere", RESUMED_ELSEWHERE),
        Mark(
            name="ledger balanced",
            reached=ledger.get("balanced") is True,
            shown=str(bool(ledger.get("balanced"))).lower() if ledger else "not measured",
        ),
        Mark(
            name="trained_twice = 0",
            reached=summary.get("trained_twice") == 0,
            shown=str(summary.get("trained_twice", "not measured")),
        ),
    ]


def _at_least(summary: Mapping[str, Any], key: str, least: float) -> Mark:
    value = summary.get(key)
    reached = value is not None and value >= least
    shown = "not measured" if value is None else f"{value:g}"
    return Mark(name=f"{key} >= {least:g}", reached=reached, shown=shown)
