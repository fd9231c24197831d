"""A metric's name and what it means."""

import re
from dataclasses import dataclass
from enum import StrEnum

_PART = re.compile(r"\{(\w+)\}")
_UNITS = {"s": "seconds", "bytes": "bytes", "tokens/s": "per_second"}
"""Units that a Prometheus name ends with; counts and shares have none."""


class Kind(StrEnum):
    """How a value changes."""

    COUNTER = "counter"
    """Only grows, from 0 at the start of its process (or run)."""
    GAUGE = "gauge"
    """The value of the moment, or of one step."""
    HISTOGRAM = "histogram"
    """A count in each of some buckets, which are a part of the name."""


class Source(StrEnum):
    """What tells it."""

    STEP = "step"
    """The line of a step in `metrics.jsonl`, trackers, and the trainer's endpoint."""
    EVAL = "eval"
    """The line of an evaluation, there too."""
    END = "end"
    """The line with which a run ends, in `metrics.jsonl` and trackers."""
    HEARTBEAT = "heartbeat"
    """Every role's heartbeat, and its endpoint."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the catalogue. A `{part}` of its name stands for any text."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    source: Source

    @property
    def role(self) -> str:
        """Who tells it."""
        return self.name.split("/")[0] if self.source is Source.HEARTBEAT else "trainer"

    @property
    def key(self) -> str:
        """Its name within the role."""
        if self.source is Source.HEARTBEAT:
            return self.name.partition("/")[2]
        return self.name

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its parts: Prometheus has them as labels."""
        return tuple(_PART.findall(self.name))

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names that it stands for."""
        parts = [re.escape(part) for part in _PART.split(self.name)[::2]]
        return re.compile("(.+)".join(parts))

    @property
    def prometheus(self) -> str:
        """`warren_<role>_<key>[_<unit>][_total]`."""
        words = [word for word in _PART.sub("", self.key).split("/") if word]
        name, unit = "_".join(words), _UNITS.get(self.unit, "")
        if unit:
            name = name.removesuffix(f"_{self.unit}").removesuffix("_per_s") + f"_{unit}"
        total = "_total" if self.kind is Kind.COUNTER else ""
        return f"warren_{self.role}_{name}{total}"
