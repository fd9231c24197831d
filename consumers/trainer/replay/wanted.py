"""Which steps the command line asks for."""

import re
from dataclasses import dataclass

from infra.roles.errors import ConfigError

_WANTED = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Steps `first` to `last`, both included; without them, all."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Wanted":
        """From `N`, `N-M` or `all`.

        Raises:
            ConfigError: It is none of them.
        """
        match = _WANTED.fullmatch(text)
        if text != "all" and match is None:
            raise ConfigError(
                f"{text!r} names no step", hint="write 12, 12-20, or all; steps count from 1"
            )
        if match is None:
            return cls()
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last:
            raise ConfigError(f"no steps {text}", hint="steps count from 1, as in 12 or 12-20")
        return cls(first, last)
