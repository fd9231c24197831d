"""The engine that a recipe names; nothing heavy is imported before."""

from pathlib import Path
from typing import TYPE_CHECKING

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.options import check_sampling
from infra.roles.errors import ConfigError
from infra.weights.store import WeightStore
from schemas.config import RunConfig

if TYPE_CHECKING:
    from infra.weights.described import DescribedWeights
    from infra.weights.local.weights import LocalWeights

AVAILABLE = ("transformers", "vllm", "simulated")


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
    if section.engine == "simulated":
        from consumers.rollout.engines.simulated.engine import SimulatedEngine

        return SimulatedEngine(
            model_folder=folder,
            slots=section.slots,
            max_model_len=length,
            options=section.engine_options,
        )
    if section.engine == "vllm":
        from consumers.rollout.engines.vllm.engine import VllmEngine

        options["guided"] = "structured_outputs" in section.sampling_options
        return VllmEngine(
            model_folder=folder,
            dtype=config.model.dtype,
            slots=section.slots,
            max_model_len=length,
            options=options,
        )
    from consumers.rollout.engines.transformers.engine import TransformersEngine

    return TransformersEngine(
        model_folder=folder,
        dtype=config.model.dtype,
        slots=section.slots,
        max_model_len=length,
        options=options,
    )


def held_weights(config: RunConfig, store: WeightStore) -> "LocalWeights | DescribedWeights":
    """What fetches, verifies and holds weights for the engine of a recipe; it blocks."""
    folder = Path(config.model.path)
    if config.rollout.engine == "simulated":
        from infra.weights.described import DescribedWeights

        return DescribedWeights(store, model_folder=folder)
    from infra.weights.local.weights import LocalWeights

    return LocalWeights(store, model_folder=folder, cache=config.weights.cache)


def check_engine(config: RunConfig) -> None:
    """Refuse an engine that this version has not, sampling options that it does not take, or a
    profile of the simulated one that it does not understand; imports nothing heavy.

    Raises:
        ConfigError: With the engines, or the keys, that there are.
    """
    if config.rollout.engine not in AVAILABLE:
        raise ConfigError(
            f"rollout.engine is {config.rollout.engine!r}",
            hint=f"this version has {' and '.join(AVAILABLE)}",
        )
    check_sampling(config)
    if config.rollout.engine == "simulated":
        from consumers.rollout.engines.simulated.profile import read_profile

        read_profile(config.rollout.engine_options)
