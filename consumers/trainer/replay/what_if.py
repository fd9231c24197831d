"""`--with a.b=c`: the recorded batch of a step under another recipe."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from infra.roles.command.describe import keys_at
from infra.roles.errors import ConfigError
from infra.roles.settings import apply_override
from schemas.config import RunConfig

CHANGEABLE = frozenset(
    {
        *(f"algorithm.{key}" for key in ("objective", "advantages")),
        *(f"algorithm.{key}" for key in ("clip_low", "clip_high", "dual_clip")),
        *(f"trainer.{key}" for key in ("lr", "warmup_steps", "betas", "weight_decay")),
        *(f"trainer.{key}" for key in ("grad_clip", "micro_batch_tokens")),
    }
)
"""What a step makes of its batch. Everything else decides which members are in it, what is trained
at all, or nothing that a step could show."""
_HINT = f"what a step can be tried with: {', '.join(sorted(CHANGEABLE))}"


@dataclass(frozen=True, slots=True)
class Changes:
    """Overrides that apply from the first wanted step on."""

    overrides: tuple[str, ...]

    @classmethod
    def parse(cls, overrides: Sequence[str]) -> "Changes | None":
        """None when there are none.

        Raises:
            ConfigError: One is no override, or of a key that a recorded batch cannot follow.
        """
        for override in overrides:
            key = override.partition("=")[0].strip()
            if "=" not in override or key in CHANGEABLE:
                continue
            *section, name = key.split(".")
            if name not in keys_at(section):
                raise ConfigError(
                    f"--with {override}: unknown key {key!r}{_nearest(key)}", hint=_HINT
                )
            raise ConfigError(
                f"--with {override}: the batch is the recorded one, and {key} would have made "
                f"another, or has no effect on a step",
                hint=_HINT,
            )
        return cls(tuple(overrides)) if overrides else None

    def applied(self, config: RunConfig) -> RunConfig:
        """The recipe with them.

        Raises:
            ConfigError: A value is wrong.
        """
        tree = config.model_dump(mode="json")
        for override in self.overrides:
            apply_override(tree, override)
        try:
            return RunConfig.model_validate(tree)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise ConfigError(f"--with {where}={problem['input']!r}: {problem['msg']}") from None


def _nearest(key: str) -> str:
    """`; did you mean ...?`, where one comes near; its section may be missing."""
    whole = [known for known in CHANGEABLE if known.endswith(f".{key}")]
    close = whole or difflib.get_close_matches(key, sorted(CHANGEABLE), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
