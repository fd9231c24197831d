"""CPU seconds of processes and their descendants, by who they are."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from infra.roles.fleet.processes import descendants, process_tree

_KNOWN = ("trainer", "producer", "rollout", "reward", "evaluator", "monitor", "up")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(roots: Sequence[int]) -> Counter[str]:
    """Of all of them, with those of theirs that have ended."""
    tree = process_tree()
    spent: Counter[str] = Counter()
    for pid in {*roots, *(child for root in roots for child in descendants(root, tree))}:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        ticks = sum(map(int, stat.rpartition(")")[2].split()[11:15]))
        spent[_who(words)] += ticks / _TICKS
    return spent


def _who(words: Sequence[str]) -> str:
    """A role by its name, RabbitMQ, or what else runs here."""
    if any("rabbit" in word or "epmd" in word or "erl" in word for word in words[:1]):
        return "rabbitmq"
    if any(word.endswith("observing.scraper") for word in words):
        return "scraper"
    return next((word for word in words if word in _KNOWN), "others")
