"""The engine that a recipe names; nothing heavy is imported before."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.options import check_sampling
from infra.roles.errors import ConfigError
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
            log=_log_of_server(RunFolder.of(config)),
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
    section = config.rollout
    if section.engine == "vllm":
        from consumers.rollout.engines.vllm.setup import check_options

        check_options(section.engine_options)
    if section.engine == "simulated":
        from consumers.rollout.engines.simulated.profile import read_profile

        read_profile(section.engine_options)
    if section.engine == "sglang":
        from consumers.rollout.engines.sglang.options import (
            SEEDS,
            check_reachable,
            read_options,
            seeds_and_min_p,
        )

        options = read_options({"kv_cache": section.kv_cache, **section.engine_options})
        if options.url and section.workers > 1:
            raise ConfigError(
                f"rollout.workers={section.workers} with one rollout.engine_options.url: each "
                "worker needs a server of its own",
                hint="set rollout.workers = 1 and start more of them, as in run.py rollout RECIPE "
                "'rollout.engine_options.url=http://host:port'",
            )
        if section.min_p and SEEDS in (*options.command, *options.arguments):
            raise seeds_and_min_p()
        check_reachable(options)


def check_server(config: RunConfig) -> None:
    """Ask an engine that is given, as a running SGLang server, whether it will do.

    Raises:
        ConfigError: It does not answer, or will not do.
        EngineFailed: It wants other keys.
    """
    section = config.rollout
    if section.engine != "sglang":
        return
    from consumers.rollout.engines.sglang.facts import check_given
    from consumers.rollout.engines.sglang.options import read_options

    check_given(
        read_options({"kv_cache": section.kv_cache, **section.engine_options}),
        dtype=config.model.dtype,
        max_model_len=section.max_prompt_tokens + section.max_response_tokens,
        min_p=section.min_p,
    )


def _log_of_server(folder: RunFolder) -> Path:
    """Beside the logs of the `up` that started this worker; one on its own has no such place."""
    logs = folder.latest_logs if folder.latest_logs.exists() else folder.logs
    return logs / f"sglang-{os.getpid()}.log"
