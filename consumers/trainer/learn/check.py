"""What the learner refuses before anything starts."""

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from consumers.trainer.learn.sampled_from import SampledFrom
from infra.roles.errors import ConfigError
from infra.roles.registry import resolve
from schemas.config import RunConfig, TrainerSection


def check(config: RunConfig) -> list[str]:
    """Validate what the learner depends on, without loading the model.

    Returns:
        One line per thing that was checked.

    Raises:
        ConfigError: The policy gradient would be wrong or empty.
    """
    rollout, algorithm = config.rollout, config.algorithm
    if rollout.temperature == 0:
        raise ConfigError(
            "rollout.temperature=0 samples one response again and again: nothing to learn from",
            hint="use rollout.temperature = 1.0",
        )
    if algorithm.group_size == 1 and algorithm.filter_zero_variance:
        raise ConfigError(
            "algorithm.group_size=1 with filter_zero_variance=true filters every group: "
            "a single reward has no variance",
            hint="raise algorithm.group_size, or set algorithm.filter_zero_variance = false",
        )
    if config.trainer.lora_rank:
        require_peft()
    model = Path(config.model.path)
    if not (model / "config.json").is_file() or not any(model.glob("*.safetensors")):
        raise ConfigError(
            f"model.path={config.model.path!r} has no config.json or no *.safetensors",
            hint="model.path is a local Hugging Face folder with safetensors weights",
        )
    if config.trainer.lora_rank:
        check_targets(config.trainer, _module_names(model))
    resolve("objective", algorithm.objective)
    resolve("advantages", algorithm.advantages)
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    lines = [
        f"objective {algorithm.objective} on {algorithm.advantages} advantages, "
        f"batch of {algorithm.groups_per_step} x {algorithm.group_size}",
        f"model {config.model.path}: config and weights are there",
    ]
    if SampledFrom.of(rollout).truncates:
        lines.append(
            f"tokens are sampled from a truncated distribution (min_p {rollout.min_p:g}, top_k "
            f"{rollout.top_k}, top_p {rollout.top_p:g}): the trainer's log-probabilities are of "
            "the same truncation, which costs a sort of every row of logits"
        )
    if rollout.sampling_options:
        lines.append(
            f"WARNING rollout.sampling_options={sorted(rollout.sampling_options)}: the engine's "
            "log-probabilities are with them, the trainer's are without, so every ratio is biased; "
            "train/mismatch_kl tells by how much"
        )
    if longest > config.trainer.micro_batch_tokens:
        lines.append(
            f"trajectories may reach {longest} tokens; those above trainer.micro_batch_tokens="
            f"{config.trainer.micro_batch_tokens} get a micro-batch of their own"
        )
    return lines


def check_targets(section: TrainerSection, modules: Iterable[str]) -> None:
    """See that each target that a recipe names is there; of the default ones, PEFT takes those
    that are.

    Args:
        section: Of the recipe.
        modules: Names of what has weights, with dots.

    Raises:
        ConfigError: One is not.
    """
    if section.lora_targets == TrainerSection(lr=1.0).lora_targets:
        return
    known = {name.rpartition(".")[2] for name in modules}
    unknown = [one for one in section.lora_targets if one.rpartition(".")[2] not in known]
    if unknown:
        raise ConfigError(
            f"trainer.lora_targets: the model has no {', '.join(unknown)}",
            hint=f"what has weights in it is called {', '.join(sorted(known))}",
        )


def _module_names(folder: Path) -> Iterator[str]:
    """Of a model folder, without its weights being read.

    Raises:
        ConfigError: A file of it is damaged.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} is no safetensors file: {error}") from error
        yield from (name.rpartition(".")[0] for name in names)


def require_peft() -> None:
    """See that PEFT, which trains adapters, is installed.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "trainer.lora_rank > 0 trains an adapter, and PEFT is not installed",
            hint="pip install 'warren[lora]'",
        )
