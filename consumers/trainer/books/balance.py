"""The ledger's vocabulary: its rules, what a report comes to, and the counts that must balance."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

from infra.roles.errors import BooksDoNotBalance
from schemas.config import RunConfig


class Report(StrEnum):
    """What a member's report came to."""

    COUNTED = "counted"
    """The first terminal one of a pending member."""
    LATE = "late"
    """The member was decided before, or the failure is of an older attempt."""
    UNKNOWN = "unknown"
    """Never issued: refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The part of the recipe that decides how groups end."""

    group_size: int
    min_group_size: int
    filter_zero_variance: bool
    max_version_lag: int
    on_stale: Literal["wait", "drop", "train"]
    on_failure: Literal["shrink", "replace"] = "shrink"

    @classmethod
    def of(cls, config: RunConfig) -> "Rules":
        """The rules of a recipe."""
        algorithm = config.algorithm
        return cls(
            group_size=algorithm.group_size,
            min_group_size=algorithm.min_group_size,
            filter_zero_variance=algorithm.filter_zero_variance,
            max_version_lag=algorithm.max_version_lag,
            on_stale=algorithm.on_stale,
            on_failure=algorithm.on_failure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Counts of groups. They balance when every issued one is open or ended once."""

    issued: int
    open: int
    trained: int
    filtered: int
    stale: int
    dead: int
    balanced: bool

    def check(self, when: str) -> None:
        """Pass if the books balance.

        Raises:
            BooksDoNotBalance: With the difference.
        """
        if self.balanced:
            return
        accounted = self.open + self.trained + self.filtered + self.stale + self.dead
        raise BooksDoNotBalance(
            f"the books do not balance {when}: {self.issued} groups issued, {accounted} accounted "
            f"for ({self.issued - accounted:+d} missing): {asdict(self)}",
            hint="keep the run folder: its journal shows the record that went wrong",
        )
