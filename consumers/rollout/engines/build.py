"""The engine that a recipe names; nothing heavy is imported before."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.options import check_sampling
from infra.runs.folder import RunFolder
from infra.weights.store import WeightStore
from schemas.config import RunConfig

if TYPE_CHECKING:
    from infra.weights.described import DescribedWeights
    from infra.weights.local.weights import LocalWeights


def build_engine(config: RunConfig) -> Engine:
    """Make the engine of a rollout worker; it is started by `Engine.start`.

    Raises:
        ConfigError: The engine is not installed, or does not know one of its options.
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
    if section.engine == "sglang":
        from consumers.rollout.engines.sglang.engine import SglangEngine

        return SglangEngine(
            model_folder=folder,
            dtype=config.model.dtype,
            slots=section.slots,
            max_model_len=length,
            options=options,
            log=RunFolder.of(config).logs / f"sglang-{os.getpid()}.log",
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
    """Refuse sampling and engine options that an engine does not take; imports nothing heavy.

    Raises:
        ConfigError: With the options that there are.
    """
    check_sampling(config)
    if config.rollout.engine == "vllm":
        from consumers.rollout.engines.vllm.setup import check_options

        check_options(config.rollout.engine_options)
    if config.rollout.engine == "simulated":
        from consumers.rollout.engines.simulated.profile import read_profile

        read_profile(config.rollout.engine_options)
    if config.rollout.engine == "sglang":
        from consumers.rollout.engines.sglang.options import check_reachable, read_options

        section = config.rollout
        check_reachable(read_options({"kv_cache": section.kv_cache, **section.engine_options}))
