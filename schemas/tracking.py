"""The `[tracking]` section of a recipe: where what is measured goes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.base import Frozen

LOOPBACK = "127.0.0.1"


class TrackingSection(Frozen):
    """Where metrics go besides metrics.jsonl."""

    backends: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """`tensorboard`, `wandb`, `trackio`, or import paths `package.module:name`; beside
    metrics.jsonl, which is always written."""
    prometheus_port: int = Field(default=0, ge=0, le=65_000)
    """Of the trainer's metrics endpoint; those of the other processes follow in the order of `up`:
    producer-1, rollout-1, ..., reward-1, ...; any other process takes a free one. 0 is off."""
    prometheus_host: str = Field(default=LOOPBACK, min_length=1)
    """Address that these endpoints listen at; anybody who reaches it can read them."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.prometheus_host != LOOPBACK and not self.prometheus_port:
            raise ValueError(
                f"tracking.prometheus_host={self.prometheus_host!r} has no effect without "
                f"tracking.prometheus_port"
            )
        repeated = {name for name in self.backends if self.backends.count(name) > 1}
        if repeated:
            raise ValueError(f"tracking.backends names {sorted(repeated)[0]!r} twice")
        return self
