"""`--with a.b=c`: the recorded batch of a step under another recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

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
            if "=" in override and key not in CHANGEABLE:
                raise ConfigError(
                    f"--with {override}: the batch is the recorded one, and {key} would have made "
                    f"another, or has no effect on a step",
                    hint=f"what a step can be tried with: {', '.join(sorted(CHANGEABLE))}",
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
