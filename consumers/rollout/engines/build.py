"""The engine that a recipe names; nothing heavy is imported before."""

from pathlib import Path

from consumers.rollout.engines.base import Engine
from infra.roles.errors import ConfigError
from schemas.config import RunConfig

AVAILABLE = ("transformers", "vllm")


def build_engine(config: RunConfig) -> Engine:
    """Make the engine of a rollout worker; it is started by `Engine.start`.

    Raises:
        ConfigError: This version has no such engine, or does not know one of its options.
    """
    check_engine(config)
    section = config.rollout
    folder = Path(config.model.path)
    length = section.max_prompt_tokens + section.max_response_tokens
    options = {"kv_cache": section.kv_cache, **section.engine_options}
    if section.engine == "vllm":
        from consumers.rollout.engines.vllm import VllmEngine

        return VllmEngine(
            model_folder=folder,
            dtype=config.model.dtype,
            slots=section.slots,
            max_model_len=length,
            options=options,
        )
    from consumers.rollout.engines.transformers import TransformersEngine

    return TransformersEngine(
        model_folder=folder,
        dtype=config.model.dtype,
        slots=section.slots,
        max_model_len=length,
        options=options,
    )


def check_engine(config: RunConfig) -> None:
    """Refuse an engine that this version has not; imports nothing heavy.

    Raises:
        ConfigError: With the engines that there are.
    """
    if config.rollout.engine not in AVAILABLE:
        raise ConfigError(
            f"rollout.engine is {config.rollout.engine!r}",
            hint=f"this version has {' and '.join(AVAILABLE)}",
        )
